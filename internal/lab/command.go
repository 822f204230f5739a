// What an operator types on a node of a lab.
package lab

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// command is a `ballast ctl` that speaks to the daemon of its node.
type command struct {
	*process
	said, complained bytes.Buffer // complete when the process has ended
	began, ended     time.Time
}

// typed starts `ballast ctl` with arguments on a node.
func (l *Lab) typed(node string, arguments ...string) (*command, error) {
	c := &command{began: time.Now()}
	arguments = append([]string{"ctl", "--run-dir", filepath.Join(l.nodeDir(node), "run"), "--instance", instance}, arguments...)
	p, err := l.start(spawn{node: node, program: l.Binary, arguments: arguments, stdout: &c.said, stderr: &c.complained})
	if err != nil {
		return nil, err
	}
	c.process = p
	c.wanted.Store(true)
	return c, nil
}

// wait waits until the command has ended; ok is what its exit status must say.
func (c *command) wait(ctx context.Context, within time.Duration, ok bool) error {
	ctx, cancel := withMachineTime(ctx, within)
	defer cancel()
	select {
	case <-c.exited:
	case <-ctx.Done():
		c.kill()
		return fmt.Errorf("ballast %s: not done within %v: %s%s", c.line(), within, c.said.Bytes(), c.complained.Bytes())
	}
	c.ended = time.Now()
	if c.command.ProcessState.Success() != ok {
		return fmt.Errorf("ballast %s: %s: %s%s", c.line(), c.command.ProcessState, c.said.Bytes(), c.complained.Bytes())
	}
	return nil
}

func (c *command) line() string { return strings.Join(c.command.Args[1:], " ") }

// tell types a command that must succeed, and returns what it says.
func (t *trial) tell(node string, arguments ...string) (string, error) {
	c, err := t.typed(node, arguments...)
	if err == nil {
		err = c.wait(t.ctx, daemonDeadline, true)
	}
	if err != nil {
		return "", err
	}
	return c.said.String(), nil
}

// What an operator types on a node of a lab.
package lab

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// command is a running `ballast ctl`.
type command struct {
	*Process
	said, complained transcript
	began, ended     time.Time
}

// transcript is what a process has printed until now.
type transcript struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (t *transcript) Write(more []byte) (int, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.text.Write(more)
}

func (t *transcript) String() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.text.String()
}

// typed starts `ballast ctl` with arguments on a node. It speaks to the daemon there.
func (l *Lab) typed(node string, arguments ...string) (*command, error) {
	return l.typedWith(node, []string{"--run-dir", filepath.Join(l.nodeDir(node), "run"), "--instance", instance}, arguments)
}

// operated starts `ballast ctl` at the operator's. It speaks to the controllers, in that order.
func (l *Lab) operated(controllers string, arguments ...string) (*command, error) {
	return l.typedWith(operatorNode, []string{"--controller", controllers, "--tls-dir", l.certificates(), "--tls-name", operatorNode}, arguments)
}

func (l *Lab) typedWith(node string, flags, arguments []string) (*command, error) {
	c := &command{began: time.Now()}
	p, err := l.start(spawn{node: node, program: l.Binary, arguments: slices.Concat([]string{"ctl"}, flags, arguments), stdout: &c.said, stderr: &c.complained})
	if err != nil {
		return nil, err
	}
	c.Process = p
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
		return fmt.Errorf("ballast %s: not done within %v: %s%s", c.line(), within, c.said.String(), c.complained.String())
	}
	c.ended = time.Now()
	if c.command.ProcessState.Success() != ok {
		return fmt.Errorf("ballast %s: %s: %s%s", c.line(), c.command.ProcessState, c.said.String(), c.complained.String())
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

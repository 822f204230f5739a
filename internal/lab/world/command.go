// What an operator types on a node of a lab.
package world

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/pace"
)

// Command is a running `ballast ctl`.
type Command struct {
	*Process
	Said, Complained transcript
	Began, Ended     time.Time
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

// Typed starts `ballast ctl` with arguments on a node. It speaks to the daemon there.
func (l *Lab) Typed(node string, arguments ...string) (*Command, error) {
	return l.typedWith(node, []string{"--run-dir", filepath.Join(l.NodeDir(node), "run"), "--instance", instance}, arguments)
}

// Operated starts `ballast ctl` at the operator's. It speaks to the controllers, in that order.
func (l *Lab) Operated(controllers string, arguments ...string) (*Command, error) {
	return l.typedWith(operatorNode, []string{"--controller", controllers, "--tls-dir", l.certificates(), "--tls-name", operatorNode}, arguments)
}

func (l *Lab) typedWith(node string, flags, arguments []string) (*Command, error) {
	c := &Command{Began: time.Now()}
	p, err := l.Start(Spawn{Node: node, Program: l.Binary, Arguments: slices.Concat([]string{"ctl"}, flags, arguments), Stdout: &c.Said, stderr: &c.Complained})
	if err != nil {
		return nil, err
	}
	c.Process = p
	c.wanted.Store(true)
	return c, nil
}

// Wait waits until the command has ended; ok is what its exit status must say.
func (c *Command) Wait(ctx context.Context, within time.Duration, ok bool) error {
	ctx, cancel := pace.WithTimeout(ctx, within)
	defer cancel()
	select {
	case <-c.Exited:
	case <-ctx.Done():
		c.Kill()
		return fmt.Errorf("ballast %s: not done within %v: %s%s", c.Line(), within, c.Said.String(), c.Complained.String())
	}
	c.Ended = time.Now()
	if c.command.ProcessState.Success() != ok {
		return fmt.Errorf("ballast %s: %s: %s%s", c.Line(), c.command.ProcessState, c.Said.String(), c.Complained.String())
	}
	return nil
}

// Line is what was typed, but for the name of the program.
func (c *Command) Line() string { return strings.Join(c.command.Args[1:], " ") }

// Tell types a command that must succeed, and returns what it says.
func (t *Trial) Tell(node string, arguments ...string) (string, error) {
	c, err := t.Typed(node, arguments...)
	if err == nil {
		err = c.Wait(t.Context, DaemonDeadline, true)
	}
	if err != nil {
		return "", err
	}
	return c.Said.String(), nil
}

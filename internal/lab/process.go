// Processes of a lab: started inside a node's namespace, logged, ended with the lab.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Process is one program that runs on a node.
type Process struct {
	name    string // node/program
	command *exec.Cmd
	logPath string
	exited  chan struct{}
	err     error       // of Wait; valid once exited is closed
	wanted  atomic.Bool // that it ends
	ready   atomic.Bool // of a daemon: it has been
}

// spawn describes a process to start.
type spawn struct {
	node, program string
	arguments     []string
	environment   []string
	stdin         io.Reader
	stdout        io.Writer // nil: the log
	stderr        io.Writer // nil: the log
	ownMounts     bool      // in a new mount namespace, which has copies of all that is mounted now
}

// start starts a process on its node. Its log is NODE/PROGRAM.log in the lab's directory.
func (l *Lab) start(what spawn) (*Process, error) {
	name := what.node + "/" + filepath.Base(what.program)
	p := &Process{name: name, exited: make(chan struct{})}
	p.command = exec.Command(what.program, what.arguments...)
	p.command.Env = append(append(os.Environ(), labVariable+"="+l.id), what.environment...)
	p.command.Stdin = what.stdin
	// Of its own process group: an interrupt at the terminal is for the lab, which then ends its processes in order.
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if what.ownMounts {
		p.command.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
	}
	p.logPath = filepath.Join(l.nodeDir(what.node), filepath.Base(what.program)+".log")
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer log.Close()
	p.command.Stdout, p.command.Stderr = log, log
	if what.stdout != nil {
		p.command.Stdout = what.stdout
	}
	if what.stderr != nil {
		p.command.Stderr = what.stderr
	}
	if err := l.space(what.node).Start(p.command); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	l.mutex.Lock()
	l.processes = append(l.processes, p)
	l.mutex.Unlock()
	go func() {
		p.err = p.command.Wait()
		close(p.exited)
	}()
	return p, nil
}

// copyMounts starts what containers and services with private mounts are for a lab: a process that keeps copies of the mounts there are.
func (l *Lab) copyMounts() error {
	_, err := l.start(spawn{node: clientNode, program: "sleep", arguments: []string{"infinity"}, ownMounts: true})
	return err
}

// interrupt asks the process to end.
func (p *Process) interrupt() { p.signal(syscall.SIGTERM) }

// kill ends the process as a crash would.
func (p *Process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.exited
}

func (p *Process) signal(signal syscall.Signal) {
	p.wanted.Store(true)
	_ = p.command.Process.Signal(signal)
}

func (p *Process) waitOrKill(ctx context.Context) {
	select {
	case <-p.exited:
	case <-ctx.Done():
		p.kill()
	}
}

// stop asks the process to end and waits until it has.
func (p *Process) stop(ctx context.Context) error {
	p.interrupt()
	select {
	case <-p.exited:
		return nil
	case <-ctx.Done():
		p.kill()
		return fmt.Errorf("stop %s: it ignored SIGTERM: killed: see %s", p.name, p.logPath)
	}
}

// died says why a process that should be running is not; nil while it runs.
func (p *Process) died() error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s ended: %w; its last words:\n%s", p.name, p.err, p.lastWords())
	default:
		return nil
	}
}

// lastWords is the end of the process's log.
func (p *Process) lastWords() string {
	content, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// deaths tells of the processes that ended though nobody asked them to. A daemon that had been ready has broken the promise with it.
func (l *Lab) deaths() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	var deaths []error
	ready := false
	for _, p := range l.processes {
		if err := p.died(); err != nil && !p.wanted.Load() && !p.command.ProcessState.Success() {
			deaths = append(deaths, err)
			ready = ready || p.ready.Load()
		}
	}
	err := errors.Join(deaths...)
	if ready {
		return &brokenPromise{err}
	}
	return err
}

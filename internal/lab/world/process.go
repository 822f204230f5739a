// Processes of a lab: started inside a node's namespace, logged, ended with the lab.
package world

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"golang.org/x/sys/unix"
)

// Process is one program that runs on a node.
type Process struct {
	name    string // node/program
	command *exec.Cmd
	logPath string
	Exited  chan struct{}
	Err     error       // of Wait; valid once exited is closed
	wanted  atomic.Bool // that it ends
	ready   atomic.Bool // of a daemon: it has been
}

// Spawn describes a process to start.
type Spawn struct {
	Node, Program string
	Arguments     []string
	environment   []string
	stdin         io.Reader
	Stdout        io.Writer // nil: the log
	stderr        io.Writer // nil: the log
	ownMounts     bool      // in a new mount namespace, which has copies of all that is mounted now
}

// Start starts a process on its node. Its log is NODE/PROGRAM.log in the lab's directory.
func (l *Lab) Start(what Spawn) (*Process, error) {
	name := what.Node + "/" + filepath.Base(what.Program)
	p := &Process{name: name, Exited: make(chan struct{})}
	p.command = exec.Command(what.Program, what.Arguments...)
	p.command.Env = append(append(os.Environ(), labVariable+"="+l.id), what.environment...)
	p.command.Stdin = what.stdin
	// Of its own process group: an interrupt at the terminal is for the lab, which then ends its processes in order.
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if what.ownMounts {
		p.command.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
	}
	p.logPath = filepath.Join(l.NodeDir(what.Node), filepath.Base(what.Program)+".log")
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer log.Close()
	p.command.Stdout, p.command.Stderr = log, log
	if what.Stdout != nil {
		p.command.Stdout = what.Stdout
	}
	if what.stderr != nil {
		p.command.Stderr = what.stderr
	}
	if err := l.Space(what.Node).Start(p.command); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	l.mutex.Lock()
	l.processes = append(l.processes, p)
	l.mutex.Unlock()
	go func() {
		p.Err = p.command.Wait()
		close(p.Exited)
	}()
	return p, nil
}

// startPeer starts a process of ballast-lab with its options.
func (l *Lab) startPeer(name string, what Spawn, options any) *Process {
	what.Program, what.Arguments = l.Processes, []string{process.Peer, name, string(script.Must(json.Marshal(options)))}
	return script.Must(l.Start(what))
}

// CopyMounts starts what containers and services with private mounts are for a lab: a process that keeps copies of the mounts there are.
func (l *Lab) CopyMounts() {
	script.Must(l.Start(Spawn{Node: ClientNode, Program: "sleep", Arguments: []string{"infinity"}, ownMounts: true}))
}

func (p *Process) String() string { return p.name }

// interrupt asks the process to end.
func (p *Process) interrupt() { p.Signal(syscall.SIGTERM) }

// Kill ends the process as a crash would.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.Exited
}

// Signal sends a signal to the process, which may end of it.
func (p *Process) Signal(signal syscall.Signal) {
	p.wanted.Store(true)
	_ = p.command.Process.Signal(signal)
}

func (p *Process) waitOrKill(ctx context.Context) {
	select {
	case <-p.Exited:
	case <-ctx.Done():
		p.Kill()
	}
}

// Stop asks the process to end and waits until it has.
func (p *Process) Stop(ctx context.Context) {
	p.interrupt()
	select {
	case <-p.Exited:
		return
	case <-ctx.Done():
		p.Kill()
		script.Check(fmt.Errorf("stop %s: it ignored SIGTERM: killed: see %s", p.name, p.logPath))
	}
}

// Died says why a process that should be running is not; nil while it runs.
func (p *Process) Died() error {
	select {
	case <-p.Exited:
		return fmt.Errorf("%s ended: %w; its last words:\n%s", p.name, p.Err, p.LastWords())
	default:
		return nil
	}
}

// LastWords is the end of the process's log.
func (p *Process) LastWords() string {
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
		if err := p.Died(); err != nil && !p.wanted.Load() && !p.command.ProcessState.Success() {
			deaths = append(deaths, err)
			ready = ready || p.ready.Load()
		}
	}
	err := errors.Join(deaths...)
	if ready {
		return Broken(err)
	}
	return err
}

// Processes of a lab: started inside a node's namespace, logged, ended with the lab.
package host

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Process is one program that runs on a node.
type Process struct {
	lab     *Lab
	Node    string
	name    string // node/program
	Command *exec.Cmd
	logPath string
	Exited  chan struct{}
	Err     error       // of Wait; valid once Exited is closed
	Wanted  atomic.Bool // that it ends
	Ready   atomic.Bool // of a daemon: it has been
}

// Spawn describes a process to start.
type Spawn struct {
	Node, Program string
	Arguments     []string
	Environment   []string
	Stdin         io.Reader
	Stdout        io.Writer // nil: the log
	Stderr        io.Writer // nil: the log
	OwnMounts     bool      // in a new mount namespace, which has copies of all that is mounted now
}

// Start starts a process on its node. Its log is NODE/PROGRAM.log in the lab's directory.
func (l *Lab) Start(what Spawn) (*Process, error) {
	base := filepath.Base(what.Program)
	p := &Process{lab: l, Node: what.Node, name: what.Node + "/" + base, Exited: make(chan struct{})}
	p.Command = exec.Command(what.Program, what.Arguments...)
	p.Command.Env = append(append(os.Environ(), labVariable+"="+l.ID), what.Environment...)
	p.Command.Stdin = what.Stdin
	// Of its own process group: an interrupt at the terminal is for the lab, which then ends its processes in order.
	p.Command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if what.OwnMounts {
		p.Command.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
	}
	p.logPath = filepath.Join(l.NodeDir(what.Node), base+".log")
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", p.name, err)
	}
	defer log.Close()
	p.Command.Stdout, p.Command.Stderr = log, log
	if what.Stdout != nil {
		p.Command.Stdout = what.Stdout
	}
	if what.Stderr != nil {
		p.Command.Stderr = what.Stderr
	}
	if err := l.Space(what.Node).Start(p.Command); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	l.mutex.Lock()
	l.processes = append(l.processes, p)
	l.mutex.Unlock()
	go func() {
		p.Err = p.Command.Wait()
		close(p.Exited)
	}()
	return p, nil
}

// StartPeer starts a process of ballast-lab, with its options in JSON.
func (l *Lab) StartPeer(name string, what Spawn, options ...any) *Process {
	what.Program, what.Arguments = l.Processes, []string{process.Peer, name}
	for _, one := range options {
		what.Arguments = append(what.Arguments, string(script.Must(json.Marshal(one))))
	}
	return script.Must(l.Start(what))
}

// CopyMounts starts what containers and services with private mounts are for a lab: a process that keeps copies of
// the mounts there are.
func (l *Lab) CopyMounts(node string) {
	script.Must(l.Start(Spawn{Node: node, Program: "sleep", Arguments: []string{"infinity"}, OwnMounts: true}))
}

func (p *Process) String() string { return p.name }

// Context is that of the process's lab.
func (p *Process) Context() context.Context { return p.lab.Context }

// Interrupt asks the process to end.
func (p *Process) Interrupt() { p.Signal(syscall.SIGTERM) }

// Kill ends the process as a crash would.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.Exited
}

// KillAll is Kill for a process and all that it has started.
func (p *Process) KillAll() {
	_ = unix.Kill(-p.Command.Process.Pid, unix.SIGKILL)
	p.Kill()
}

// Signal sends a signal to the process, which may end of it.
func (p *Process) Signal(signal syscall.Signal) {
	p.Wanted.Store(true)
	_ = p.Command.Process.Signal(signal)
}

// WaitOrKill waits until the process has ended, and kills it when the context ends first.
func (p *Process) WaitOrKill(ctx context.Context) {
	select {
	case <-p.Exited:
	case <-ctx.Done():
		p.Kill()
	}
}

// Stop asks the process to end and waits until it has.
func (p *Process) Stop(ctx context.Context) {
	p.Interrupt()
	select {
	case <-p.Exited:
		return
	case <-ctx.Done():
		p.Kill()
		script.Check(fmt.Errorf("stop %s: it ignored SIGTERM: killed: see %s", p.name, p.logPath))
	}
}

// Finish waits until the process has ended by itself, which must succeed.
func (p *Process) Finish() {
	p.Wanted.Store(true)
	select {
	case <-p.Exited:
	case <-p.lab.Context.Done():
		script.Check(context.Cause(p.lab.Context))
	}
	if p.Err != nil {
		script.Check(fmt.Errorf("%s: %w: %s", p, p.Err, p.LastWords()))
	}
}

var errNoError = errors.New("exit status 0")

// Died returns why a process is not running, or nil while it runs.
func (p *Process) Died() error {
	select {
	case <-p.Exited:
		return fmt.Errorf("%s ended: %w; its last words:\n%s", p.name, cmp.Or(p.Err, errNoError), p.LastWords())
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

// Await waits for a condition of a process, or until the process has died.
func (p *Process) Await(what string, condition func() error) {
	await.Until(p.lab.Context, await.Deadline, what, func() error {
		if err := p.Died(); err != nil {
			return await.Stop(err)
		}
		return condition()
	})
}

// AwaitPort waits until something listens at an address of the process's node.
func (p *Process) AwaitPort(address netip.AddrPort) {
	p.Await(fmt.Sprintf("%s listens on %s", p.name, address), func() error {
		return p.lab.Space(p.Node).Do(func() error {
			connection, err := net.DialTimeout("tcp", address.String(), time.Second)
			if err == nil {
				err = connection.Close()
			}
			return err
		})
	})
}

// Deaths returns the processes that ended unasked. A daemon that had been ready has broken the
// promise with it.
func (l *Lab) Deaths() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	var deaths []error
	ready := false
	for _, p := range l.processes {
		if err := p.Died(); err != nil && !p.Wanted.Load() && !p.Command.ProcessState.Success() {
			deaths = append(deaths, err)
			ready = ready || p.Ready.Load()
		}
	}
	err := errors.Join(deaths...)
	if ready {
		return await.Broken(err)
	}
	return err
}

// Transcript is what a process has printed until now.
type Transcript struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (t *Transcript) Write(more []byte) (int, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.text.Write(more)
}

func (t *Transcript) String() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.text.String()
}

// Run runs a program on a node to its end, with input; its output is for the error.
func (l *Lab) Run(node, input string, command ...string) error {
	var output Transcript
	running := exec.Command(command[0], command[1:]...)
	running.Stdin, running.Stdout, running.Stderr = strings.NewReader(input), &output, &output
	err := l.Space(node).Start(running)
	if err == nil {
		err = running.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, output.String())
	}
	return nil
}

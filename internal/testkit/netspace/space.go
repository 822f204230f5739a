// Package netspace makes and removes the network namespaces of a lab and works inside them.
//
// Everything happens on one locked OS thread at a time, so that no other goroutine ever runs in a
// foreign namespace, and nothing needs `ip netns exec`, which would hide /sys/fs/bpf.
package netspace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Dir is where named namespaces are bound, as iproute2 does, so that `ip netns` shows them.
const Dir = "/run/netns"

// A Space is one network namespace. Most have names.
type Space struct {
	Name   string
	handle netns.NsHandle
	cpus   string // that the ends of links made here receive on, where the kernel does not see to it itself; empty: the kernel's choice
}

// Create makes a namespace, names it and brings its loopback up.
func Create(name string) (*Space, error) {
	space := &Space{Name: name}
	if err := shareDir(); err != nil {
		return nil, err
	}
	err := onThread(func() error {
		handle, err := netns.NewNamed(name)
		space.handle = handle
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create namespace %s: %w", name, err)
	}
	return space, space.SetLink("lo", true)
}

// CreateUnnamed makes a namespace that is gone once it is closed, or this process is, and brings its loopback up.
func CreateUnnamed() (*Space, error) {
	space := &Space{}
	err := onThread(func() (err error) {
		space.handle, err = netns.New()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create a namespace: %w", err)
	}
	return space, space.SetLink("lo", true)
}

// shareDir makes Dir a shared mount on itself, as the first `ip netns add` on a machine does. If that came
// after us it would cover our names with copies, and removing a name would fail with EBUSY.
func shareDir() error {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", Dir, err)
	}
	err := unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // not a mount yet
		if err = unix.Mount(Dir, Dir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return fmt.Errorf("share %s: %w", Dir, err)
	}
	return nil
}

// Do runs fn on a thread that is inside the namespace. Sockets that fn opens and processes that it
// starts stay there.
func (s *Space) Do(fn func() error) error {
	return onThread(func() error {
		if err := netns.Set(s.handle); err != nil {
			return fmt.Errorf("enter namespace %s: %w", s.Name, err)
		}
		return fn()
	})
}

// Start starts a process inside the namespace.
func (s *Space) Start(cmd *exec.Cmd) error { return s.Do(cmd.Start) }

// Sysctl writes a value below /proc/sys/net, which shows the namespace of the thread that opens it.
func (s *Space) Sysctl(key, value string) error {
	path := "/proc/sys/" + strings.ReplaceAll(key, ".", "/")
	err := s.Do(func() error { return os.WriteFile(path, []byte(value), 0o644) })
	if err != nil {
		return fmt.Errorf("set %s to %s in %s: %w", key, value, s.Name, err)
	}
	return nil
}

// ReadFile reads a file that shows the namespace of its reader, such as /proc/thread-self/net/netstat.
func (s *Space) ReadFile(path string) (content []byte, err error) {
	err = s.Do(func() error {
		content, err = os.ReadFile(path)
		return err
	})
	return content, err
}

// Close gives up the handle. A namespace with a name lives on until Remove.
func (s *Space) Close() { _ = s.handle.Close() }

// Names lists the named namespaces whose name begins with prefix.
func Names(prefix string) []string {
	paths, _ := filepath.Glob(filepath.Join(Dir, prefix+"*"))
	names := make([]string, 0, len(paths))
	for _, path := range paths {
		names = append(names, filepath.Base(path))
	}
	return names
}

// Remove ends every process inside the named namespace and removes the namespace.
func Remove(name string) error {
	path := filepath.Join(Dir, name)
	killInside(path)
	err := netns.DeleteNamed(name)
	if errors.Is(err, unix.EINVAL) { // bound in another mount namespace: that goes with the name
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove namespace %s: %w", name, err)
	}
	return nil
}

// killInside kills the processes whose network namespace is the one bound at path.
func killInside(path string) {
	var want unix.Stat_t
	if unix.Stat(path, &want) != nil {
		return
	}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		var have unix.Stat_t
		if unix.Stat(process+"/ns/net", &have) != nil || have.Ino != want.Ino || have.Dev != want.Dev {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(process, "/proc/%d", &pid); err == nil && pid != os.Getpid() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// onThread runs fn on a locked thread and puts the thread back into the namespace it came from. A
// thread that cannot go back is never reused: its goroutine ends without unlocking it.
func onThread(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		err := errors.New("the goroutine ended in there: t.Fatal is for the goroutine of the test")
		defer func() { result <- err }() // also then
		runtime.LockOSThread()
		home, failed := netns.Get()
		if failed != nil {
			err = fmt.Errorf("look up own namespace: %w", failed)
			return
		}
		done := fn()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		err = errors.Join(done, home.Close())
	}()
	return <-result
}

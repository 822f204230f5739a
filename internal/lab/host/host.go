// Package host runs a lab on one machine: the namespaces of its nodes, their files, and the processes in them.
//
// A lab never touches the machine's own interfaces, routes, firewall or sysctls, and removes all that
// it made on every way out; what a killed lab leaves behind is removed by the next.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Implementation constants.
const (
	baseDir     = "/run/ballast-lab"
	SpacePrefix = "ballast-"
	lockFile    = "lock"
	keptFile    = "kept"
	labVariable = "BALLAST_LAB" // in the environment of all that a lab starts: its id
	stopGrace   = 5 * time.Second
)

// Options are what a lab is made with.
type Options struct {
	Binary    string // the ballast binary; default: the one beside this program
	Processes string // the ballast-lab binary; default: this program
	Seed      uint64 // of every random choice
	Keep      bool   // leave namespaces and processes when done, for a look around
	Progress  func(format string, arguments ...any)
}

// A Lab has a directory and a namespace for each of its nodes.
type Lab struct {
	Options
	Context context.Context
	ID      string
	Dir     string
	lock    *os.File
	spaces  map[string]*netspace.Space

	mutex     sync.Mutex
	processes []*Process
	closers   []func()
}

// ErrNotRoot is why a lab cannot be started or removed.
var ErrNotRoot = errors.New(
	"start or remove a lab: not root: namespaces and BPF programs need root: run it with sudo")

// New makes an empty lab after removing what dead ones left behind.
func New(ctx context.Context, options Options) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	if err := unix.Access(options.Binary, unix.X_OK); err != nil {
		return nil, fmt.Errorf("find ballast: %s: %w: `make build` makes it, beside ballast-lab; --binary names another",
			options.Binary, err)
	}
	alone, err := lockAll()
	if err != nil {
		return nil, err
	}
	cleaned, err := clean(false)
	for _, removed := range cleaned.Removed {
		options.Progress("removed what an earlier run left: %s", removed)
	}
	if err != nil {
		options.Progress("cannot remove all of what earlier runs left: %v", err)
	}
	lab := &Lab{Options: options, Context: ctx, spaces: map[string]*netspace.Space{}}
	return lab, errors.Join(lab.claim(), alone.Close())
}

// lockAll keeps labs from coming and going until the returned file is closed: a directory is made before
// it is locked, and must not look abandoned in between.
func lockAll() (*os.File, error) {
	if err := os.MkdirAll(baseDir, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", baseDir, err)
	}
	dir, err := os.Open(baseDir)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", baseDir, err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", baseDir, err), dir.Close())
	}
	return dir, nil
}

// claim takes a free lab id by locking its directory; the lock tells others that this lab is alive.
func (l *Lab) claim() error {
	for number := 0; ; number++ {
		l.ID = fmt.Sprintf("%d.%d", os.Getpid(), number)
		l.Dir = filepath.Join(baseDir, l.ID)
		err := os.Mkdir(l.Dir, 0o755)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("make lab directory: %w", err)
		}
		l.lock, err = tryLock(l.Dir)
		return err
	}
}

// tryLock locks a lab's directory; an error means that its owner lives.
func tryLock(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lab lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), file.Close())
	}
	return file, nil
}

// OnClose has something of this process done before the lab is removed.
func (l *Lab) OnClose(do func()) { l.closers = append(l.closers, do) }

// Close ends every process and removes every namespace, mount and file of the lab, unless it is to be kept.
func (l *Lab) Close() error {
	defer l.lock.Close()
	for _, do := range l.closers {
		do()
	}
	if l.Keep {
		l.Progress("kept: namespaces %s%s-*, files in %s; remove with `ballast-lab clean`", SpacePrefix, l.ID, l.Dir)
		return os.WriteFile(filepath.Join(l.Dir, keptFile), nil, 0o644)
	}
	l.mutex.Lock()
	processes := l.processes
	l.mutex.Unlock()
	for _, process := range processes {
		process.Interrupt()
	}
	deadline, cancel := loadmeter.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	for _, process := range processes {
		process.WaitOrKill(deadline)
	}
	for _, space := range l.spaces {
		space.Close()
	}
	alone, err := lockAll() // whoever cleans up would make the lock anew while the directory goes
	if err != nil {
		return err
	}
	defer alone.Close()
	_, err = removeLab(l.ID)
	return err
}

// NodeDir is the directory of a node's configuration, sockets, pins and logs.
func (l *Lab) NodeDir(node string) string { return filepath.Join(l.Dir, node) }

// Space returns a node's namespace; a wrong name is a mistake in a scenario.
func (l *Lab) Space(node string) *netspace.Space {
	space, found := l.spaces[node]
	if !found {
		panic("lab has no node " + node)
	}
	return space
}

// AddSpace creates the namespace of a node with sysctls, a later table over an earlier.
func (l *Lab) AddSpace(node string, sysctls ...map[string]string) *netspace.Space {
	space := script.Must(netspace.Create(SpacePrefix + l.ID + "-" + node))
	l.spaces[node] = space
	script.Checkf(os.MkdirAll(l.NodeDir(node), 0o755), "make directory of %s", node)
	for _, table := range sysctls {
		for key, value := range table {
			script.Check(space.Sysctl(key, value))
		}
	}
	script.Check(space.ReceiveOn(netspace.AllCPUs()))
	return space
}

// Share gives a node the namespace of another one, and a directory of its own.
func (l *Lab) Share(node, with string) *netspace.Space {
	l.spaces[node] = l.Space(with)
	script.Checkf(os.MkdirAll(l.NodeDir(node), 0o755), "make directory of %s", node)
	return l.spaces[node]
}

// Complete fills in what the caller left open.
func (o *Options) Complete() error {
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()>>1 | 1
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	o.Binary, o.Processes = cmp.Or(o.Binary, filepath.Join(filepath.Dir(self), "ballast")), cmp.Or(o.Processes, self)
	return nil
}

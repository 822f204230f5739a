// The BPF file system that pins are in.
package pin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// EnsureBPFFS makes dir a BPF file system of our own, so that pins do not depend on /sys/fs/bpf being mounted, writable
// or shared. A bpffs that is there already is used as it is: its pins are what a restart takes over.
func EnsureBPFFS(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make %s for pinned maps: %w", dir, err)
	}
	if mounted, err := isBPFFS(dir); err != nil || mounted {
		return err
	}
	return alone(dir, func() error {
		if mounted, err := isBPFFS(dir); err != nil || mounted {
			return err
		}
		if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RELATIME, "mode=0700"); err != nil {
			return fmt.Errorf("mount a BPF file system on %s: %w: run as root, or with CAP_SYS_ADMIN and CAP_BPF", dir, err)
		}
		return nil
	})
}

// alone keeps other processes from mounting dir, or unmounting it, meanwhile: daemons of a machine start at the same time, and a second mount would hide
// the pins in the first.
func alone(dir string, do func() error) error {
	above, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return fmt.Errorf("lock the directory of %s: %w", dir, err)
	}
	defer above.Close() // which unlocks
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(above.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return fmt.Errorf("lock the directory of %s: %w", dir, err)
	}
	return do()
}

// RemoveBPFFS unmounts dir and removes it, unless an instance still has pins there. Where nothing is mounted it changes nothing: dir may be
// a mount point in another mount namespace, and Linux unmounts a directory that is removed in all of them.
func RemoveBPFFS(dir string) error {
	if _, err := isBPFFS(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return alone(dir, func() error { return removeBPFFS(dir) })
}

func removeBPFFS(dir string) error {
	if mounted, err := isBPFFS(dir); err != nil || !mounted {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	// Instances are directories; the kernel puts files of its own beside them (maps.debug, progs.debug).
	isInstance := func(entry os.DirEntry) bool { return entry.IsDir() && !strings.HasPrefix(entry.Name(), HostPrefix) }
	if slices.ContainsFunc(entries, isInstance) {
		return nil
	}
	if err := unmount(dir); err != nil {
		return fmt.Errorf("unmount the BPF file system on %s: %w", dir, err)
	}
	return nil
}

// Who forks has copies of open directories until the child runs its own program.
const (
	busyPatience = time.Second
	busyInterval = 10 * time.Millisecond
)

// unmount waits for those who have a file there open for a moment.
func unmount(dir string) error {
	for end := time.Now().Add(busyPatience); ; time.Sleep(busyInterval) {
		err := unix.Unmount(dir, 0)
		if !errors.Is(err, unix.EBUSY) || !time.Now().Before(end) {
			return err
		}
	}
}

// Private says why what is pinned under dir ends with this process, empty: it does not, or that cannot be known. A mount namespace of
// one's own (`ip netns exec`, PrivateTmp= and others of systemd, containers) goes with its last process, and its mounts with it.
func Private(dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	const effect = "only this process's mount namespace has the pins in %s: the data path ends with the process, and nothing can be taken over: " +
		"start it in the host's (nsenter --net=/run/netns/NAME instead of ip netns exec; no PrivateTmp= and the like), or mount bpf there first"
	first, err := mounts("/proc/1/mountinfo")
	if err != nil {
		return "" // not told
	}
	var here unix.Stat_t
	if mounted, err := isBPFFS(dir); err == nil && mounted && unix.Stat(dir, &here) == nil {
		device := fmt.Sprintf("%d:%d", unix.Major(here.Dev), unix.Minor(here.Dev))
		if slices.ContainsFunc(first, func(m mount) bool { return m.device == device }) {
			return ""
		}
		return fmt.Sprintf(effect, dir)
	}
	own, err := mounts("/proc/thread-self/mountinfo")
	if err != nil || len(own) == 0 || slices.ContainsFunc(first, func(m mount) bool { return m.id == own[0].id }) {
		return ""
	}
	return fmt.Sprintf(effect, dir)
}

// A mount as the kernel lists it: ids are the system's, so that namespaces that share none are two.
type mount struct{ id, device string }

func mounts(path string) (found []mount, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 2 {
			found = append(found, mount{fields[0], fields[2]})
		}
	}
	return found, nil
}

func isBPFFS(dir string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return false, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return fs.Type == unix.BPF_FS_MAGIC, nil
}

// TryBPFFS tells whether dir is, or could be made, a BPF file system. Nothing stays mounted.
func TryBPFFS(dir string) error {
	if mounted, err := isBPFFS(dir); err == nil && mounted {
		return nil
	}
	context, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open a BPF file system: %w", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return fmt.Errorf("create a BPF file system: %w", err)
	}
	mount, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount a BPF file system: %w", err)
	}
	return unix.Close(mount)
}

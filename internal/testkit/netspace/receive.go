// Which CPUs the devices of a namespace receive on.
package netspace

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// AllCPUs is a mask for ReceiveOn: without one a flow runs on whatever CPU its sender is on, and is reordered.
func AllCPUs() string { return fmt.Sprintf("%x", 1<<min(runtime.NumCPU(), 31)-1) }

// ReceiveOn makes devices that come into the namespace later receive on CPUs, by a mask in hexadecimal (RPS).
func (s *Space) ReceiveOn(mask string) error {
	err := s.Sysctl("net.core.rps_default_mask", mask)
	if errors.Is(err, os.ErrNotExist) { // before Linux 6.3: Connect tells each queue
		s.cpus, err = mask, nil
	}
	return err
}

// spread sets the receiving CPUs of a device's queues. It runs inside the namespace.
func (s *Space) spread(device string) error {
	if s.cpus == "" {
		return nil
	}
	tree, err := openSysfs()
	if err != nil {
		return fmt.Errorf("set the CPUs that %s receives on: %w", device, err)
	}
	defer tree.Close()
	queues := path.Join("class/net", device, "queues")
	dir, err := tree.Open(queues)
	if err != nil {
		return fmt.Errorf("list the queues of %s: %w", device, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list the queues of %s: %w", device, err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "rx-") {
			continue
		}
		if err := tree.WriteFile(path.Join(queues, name, "rps_cpus"), []byte(s.cpus), 0o644); err != nil {
			return fmt.Errorf("set the CPUs that %s receives on: %w", device, err)
		}
	}
	return nil
}

// openSysfs opens the /sys of the calling thread's network namespace, which is mounted nowhere.
func openSysfs() (*os.Root, error) {
	context, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open sysfs: %w", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, fmt.Errorf("create a view of sysfs: %w", err)
	}
	mount, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("mount sysfs: %w", err)
	}
	defer unix.Close(mount)
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", mount))
}

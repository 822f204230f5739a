package datapath

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// EnsureBPFFS makes dir a BPF file system of our own, so that pins do not depend on /sys/fs/bpf being mounted, writable
// or shared. A bpffs that is there already is used as it is: its pins are what a restart takes over.
func EnsureBPFFS(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make %s for pinned maps: %w", dir, err)
	}
	mounted, err := isBPFFS(dir)
	if err != nil || mounted {
		return err
	}
	if err := unix.Mount("bpf", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RELATIME, "mode=0700"); err != nil {
		return fmt.Errorf("mount a BPF file system on %s: %w: run as root, or with CAP_SYS_ADMIN and CAP_BPF", dir, err)
	}
	return nil
}

// RemoveBPFFS unmounts dir and removes it, unless an instance still has pins there. Nothing mounted is no error.
func RemoveBPFFS(dir string) error {
	mounted, err := isBPFFS(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	// Instances are directories; the kernel puts files of its own beside them (maps.debug, progs.debug).
	if slices.ContainsFunc(entries, os.DirEntry.IsDir) {
		return nil
	}
	if mounted {
		if err := unix.Unmount(dir, 0); err != nil {
			return fmt.Errorf("unmount the BPF file system on %s: %w", dir, err)
		}
	}
	return os.Remove(dir)
}

func isBPFFS(dir string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return false, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return fs.Type == unix.BPF_FS_MAGIC, nil
}

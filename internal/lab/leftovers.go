// Removing what labs of dead processes left behind: processes, namespaces, cgroups, mounts, files.
package lab

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/lab/netspace"
)

// Clean removes the labs whose owner has died; with kept also those that were left on purpose.
// Labs that are running are not touched: their owners hold their locks.
func Clean(kept bool) error {
	alone, err := lockAll()
	if err != nil {
		return err
	}
	defer alone.Close()
	return clean(kept)
}

func clean(kept bool) error {
	entries, err := os.ReadDir(baseDir)
	if err != nil {
		return fmt.Errorf("list labs: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		dir := filepath.Join(baseDir, entry.Name())
		if _, err := os.Stat(filepath.Join(dir, keptFile)); err == nil && !kept {
			continue
		}
		lock, err := tryLock(dir)
		if err != nil {
			continue
		}
		errs = append(errs, removeLab(entry.Name()), lock.Close())
	}
	return errors.Join(errs...)
}

// removeLab removes a lab by its id. Its directory goes last: while it is there, the next lab tries again.
func removeLab(id string) error {
	dir := filepath.Join(baseDir, id)
	var errs []error
	for _, name := range netspace.Names(spacePrefix + id + "-") {
		errs = append(errs, netspace.Remove(name))
	}
	if err := errors.Join(append(errs, removeCgroups(id), unmountBelow(dir))...); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// unmountBelow unmounts what is mounted below dir (the nodes' bpffs), the deepest first.
func unmountBelow(dir string) error {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	defer file.Close()
	var points []string
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		fields := strings.Fields(scanner.Text())
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			points = append(points, fields[4])
		}
	}
	var errs []error
	for i := len(points) - 1; i >= 0; i-- {
		if err := unix.Unmount(points[i], unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", points[i], err))
		}
	}
	return errors.Join(errs...)
}

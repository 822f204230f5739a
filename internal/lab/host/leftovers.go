// Removing what labs of dead processes left behind: processes, namespaces, cgroups, mounts, files.
package host

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Removed is what there was of a lab.
type Removed struct {
	Lab        string   `json:"lab"`
	Kept       bool     `json:"kept"` // on purpose, by --keep
	Namespaces []string `json:"namespaces"`
	Processes  int      `json:"processes"`
	Mounts     int      `json:"mounts"`
	Cgroups    int      `json:"cgroups"`
}

func (r Removed) String() string {
	how := "its run was killed"
	if r.Kept {
		how = "kept"
	}
	return fmt.Sprintf("lab %s (%s): %d namespaces, %d processes, %d mounts, %d cgroups", r.Lab, how, len(r.Namespaces), r.Processes, r.Mounts, r.Cgroups)
}

// Cleaned is what Clean found.
type Cleaned struct {
	Removed []Removed `json:"removed"`
	Running []string  `json:"running"` // labs that were not touched: their owners hold their locks
}

// Clean removes the labs whose owner has died; with kept also those that were left on purpose.
func Clean(kept bool) (Cleaned, error) {
	if os.Geteuid() != 0 {
		return Cleaned{}, ErrNotRoot
	}
	alone, err := lockAll()
	if err != nil {
		return Cleaned{}, err
	}
	defer alone.Close()
	return clean(kept)
}

func clean(kept bool) (Cleaned, error) {
	cleaned := Cleaned{Removed: []Removed{}, Running: []string{}}
	entries, err := os.ReadDir(baseDir)
	if err != nil {
		return cleaned, fmt.Errorf("list labs: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		dir := filepath.Join(baseDir, entry.Name())
		_, err := os.Stat(filepath.Join(dir, keptFile))
		isKept := err == nil
		if isKept && !kept {
			continue
		}
		lock, err := tryLock(dir)
		if err != nil {
			cleaned.Running = append(cleaned.Running, entry.Name())
			continue
		}
		removed, err := removeLab(entry.Name())
		removed.Kept = isKept
		cleaned.Removed = append(cleaned.Removed, removed)
		errs = append(errs, err, lock.Close())
	}
	return cleaned, errors.Join(errs...)
}

// removeLab removes a lab by its id. Its directory goes last: while it is there, the next lab tries again.
func removeLab(id string) (Removed, error) {
	dir := filepath.Join(baseDir, id)
	removed := Removed{Lab: id, Namespaces: netspace.Names(SpacePrefix + id + "-")}
	removed.Processes = killProcesses(id)
	var errs []error
	for _, name := range removed.Namespaces {
		errs = append(errs, netspace.Remove(name))
	}
	var groups, mounts error
	removed.Cgroups, groups = removeCgroups(id)
	removed.Mounts, mounts = RemovePins(dir)
	if err := errors.Join(append(errs, groups, mounts)...); err != nil {
		return removed, err
	}
	return removed, removeDir(dir)
}

// removeDir removes a lab's directory, which takes the mount points of pins away in every mount namespace. Processes
// that were killed may still be dying, and writing.
func removeDir(dir string) error {
	var err error
	for begin := time.Now(); loadmeter.Since(begin) < stopGrace; time.Sleep(await.Interval) {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
	}
	return fmt.Errorf("remove the files of a lab: %w", err)
}

// killProcesses kills what a lab has started, in whatever namespaces it is, and returns how many these were. It goes by
// a variable of their environment, which they and their children have from it.
func killProcesses(id string) (count int) {
	mark := []byte(labVariable + "=" + id)
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		environment, err := os.ReadFile(path)
		if err != nil || !slices.ContainsFunc(bytes.Split(environment, []byte{0}), func(v []byte) bool { return bytes.Equal(v, mark) }) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && pid != os.Getpid() && unix.Kill(pid, unix.SIGKILL) == nil {
			count++
		}
	}
	return count
}

// RemovePins removes what the nodes below dir have pinned in file systems for it, and unmounts these. Unmounting alone
// is not enough: whatever made a mount namespace meanwhile (a container, a service with a /tmp of its own) has a copy
// of the mount, which would keep maps and links, and so a dead node's program on its interface.
func RemovePins(dir string) (count int, err error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return 0, fmt.Errorf("list mounts: %w", err)
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
	for i := len(points) - 1; i >= 0; i-- { // the deepest first
		entries, err := os.ReadDir(points[i])
		errs = append(errs, err)
		for _, entry := range entries {
			if entry.IsDir() { // beside them are files of the kernel's own
				errs = append(errs, attach.Detach(filepath.Join(points[i], entry.Name())))
			}
		}
		if err := unix.Unmount(points[i], unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", points[i], err))
		}
	}
	return len(points), errors.Join(errs...)
}

// CPU limits of application servers: a cgroup of the lab's own for each, of either version, made and removed by the
// lab.
package host

import (
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
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Implementation constants: how often a limit is refilled (short, so that a small share comes in small pieces), and the
// smallest piece that the kernel takes.
const (
	cgroupPeriod   = 20 * time.Millisecond
	cgroupQuotaMin = time.Millisecond
)

// cgroupRoot is where groups with CPU limits can be made.
type cgroupRoot struct {
	path    string
	version int
}

// cgroupRoots are the places where distributions mount them, the newer first. The lab changes nothing there but what it
// makes.
var cgroupRoots = []cgroupRoot{
	{"/sys/fs/cgroup", 2}, {"/sys/fs/cgroup/unified", 2}, {"/sys/fs/cgroup/cpu", 1}, {"/sys/fs/cgroup/cpu,cpuacct", 1},
}

// usable returns why no group with a CPU limit can be made below the root, or nil.
func (r cgroupRoot) usable() error {
	if unix.Access(r.path, unix.W_OK) != nil {
		return fmt.Errorf("%s cannot be written", r.path)
	}
	if r.version == 1 {
		_, err := os.Stat(filepath.Join(r.path, "cpu.cfs_quota_us"))
		return err
	}
	enabled, err := os.ReadFile(filepath.Join(r.path, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(string(enabled)), "cpu") {
		return fmt.Errorf("%s gives its groups no CPU controller", r.path)
	}
	return nil
}

// findCgroups returns a root to make groups below, or why there is none.
func findCgroups() (cgroupRoot, error) {
	var errs []error
	for _, root := range cgroupRoots {
		err := root.usable()
		if err == nil {
			return root, nil
		}
		errs = append(errs, err)
	}
	return cgroupRoot{}, fmt.Errorf("limit CPU by cgroups: %w", errors.Join(errs...))
}

// Cgroup is the directory of a group of the lab, or why CPU cannot be limited.
func (l *Lab) Cgroup(name string) (dir string, err error) {
	root, err := findCgroups()
	return filepath.Join(root.path, SpacePrefix+l.ID+"-"+name), err
}

// LimitCPU puts a process that has just started into a group that gets cpus CPUs, and all its threads and children.
func (p *Process) LimitCPU(group string, cpus float64) {
	root := script.Must(findCgroups())
	dir := script.Must(p.lab.Cgroup(group))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		script.Check(fmt.Errorf("make cgroup: %w", err))
	}
	period := max(cgroupPeriod, time.Duration(float64(cgroupQuotaMin)/cpus)).Microseconds()
	quota := strconv.FormatInt(int64(cpus*float64(period)), 10)
	settings := [][2]string{{"cpu.max", quota + " " + strconv.FormatInt(period, 10)}}
	if root.version == 1 {
		settings = [][2]string{{"cpu.cfs_period_us", strconv.FormatInt(period, 10)}, {"cpu.cfs_quota_us", quota}}
	}
	settings = append(settings, [2]string{"cgroup.procs", strconv.Itoa(p.Command.Process.Pid)})
	for _, setting := range settings {
		script.Checkf(os.WriteFile(filepath.Join(dir, setting[0]), []byte(setting[1]), 0o644), "set %s of %s to %s", setting[0], dir, setting[1])
	}
}

// removeCgroups removes the groups of a lab, whose processes have been killed.
func removeCgroups(id string) (count int, err error) {
	var errs []error
	for _, root := range cgroupRoots {
		groups, _ := filepath.Glob(filepath.Join(root.path, SpacePrefix+id+"-*"))
		for _, group := range groups {
			errs = append(errs, removeCgroup(group))
			count++
		}
	}
	return count, errors.Join(errs...)
}

// removeCgroup waits for the processes that are dying in it.
func removeCgroup(group string) error {
	for begin := time.Now(); ; time.Sleep(await.Interval) {
		err := unix.Rmdir(group)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if loadmeter.Since(begin) > stopGrace {
			return fmt.Errorf("remove cgroup %s: %w", group, err)
		}
	}
}

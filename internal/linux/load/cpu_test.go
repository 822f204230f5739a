package load

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tree makes files below a directory, by path.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		check(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		check(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o644))
	}
	return root
}

func TestCPUOfAControlGroupIsThatOfItsQuota(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string // CPU time used: 3 s
		cpus  float64
	}{
		{"v2", map[string]string{"a/cgroup.procs": "", "a/b/cgroup.procs": "", "a/b/cpu.max": "50000 100000\n", "a/b/cpu.stat": "usage_usec 3000000\nuser_usec 2000000\n"}, 0.5},
		{"v2, the quota of the group around it", map[string]string{"a/cgroup.procs": "", "a/b/cgroup.procs": "", "a/b/cpu.max": "max 100000\n", "a/cpu.max": "25000 100000\n",
			"a/b/cpu.stat": "usage_usec 3000000\n"}, 0.25},
		{"v1", map[string]string{"a/b/cgroup.procs": "", "a/b/cpu.cfs_quota_us": "20000\n", "a/b/cpu.cfs_period_us": "100000\n", "a/b/cpu.stat": "nr_periods 0\n",
			"a/b/cpuacct.usage": "3000000000\n"}, 0.2},
		{"v1 without a quota", map[string]string{"a/b/cgroup.procs": "", "a/cgroup.procs": "", "a/b/cpu.cfs_quota_us": "-1\n", "a/b/cpu.cfs_period_us": "100000\n",
			"a/cpu.cfs_quota_us": "10000\n", "a/cpu.cfs_period_us": "100000\n", "a/b/cpu.stat": "nr_periods 0\n", "a/b/cpuacct.usage": "3000000000\n"}, 0.1},
	} {
		t.Run(c.name, func(t *testing.T) {
			group := filepath.Join(tree(t, c.files), "a/b")
			m := cpuMeter{cgroup: group}
			now := time.Now()
			m.read(now)
			if _, _, err := m.permille(); !errors.Is(err, errEarly) {
				t.Errorf("after one reading: %v", err)
			}
			// In the next second it uses a tenth of a CPU more.
			for name, text := range c.files {
				text = strings.NewReplacer("usage_usec 3000000", "usage_usec 3050000", "3000000000", "3050000000").Replace(text)
				check(t, os.WriteFile(filepath.Join(filepath.Dir(filepath.Dir(group)), name), []byte(text), 0o644))
			}
			m.read(now.Add(time.Second))
			used, cpus, err := m.permille()
			check(t, err)
			if want := uint16(50/c.cpus + 0.5); used != want || cpus != c.cpus {
				t.Errorf("%d per mille of %v CPUs, want %d of %v", used, cpus, want, c.cpus)
			}
		})
	}
}

func TestAControlGroupThatIsNotThereIsNamed(t *testing.T) {
	m := cpuMeter{cgroup: "/sys/fs/cgroup/ballast-none"}
	m.read(time.Now())
	if _, _, err := m.permille(); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), m.cgroup) {
		t.Errorf("have %v", err)
	}
}

func TestCPUIsThatOfTheLastMoments(t *testing.T) {
	group := tree(t, map[string]string{"cgroup.procs": "", "cpu.max": "100000 100000"})
	m := cpuMeter{cgroup: group}
	now, used := time.Now(), 0
	step := func(milliseconds, busy int) {
		now, used = now.Add(time.Duration(milliseconds)*time.Millisecond), used+busy
		check(t, os.WriteFile(filepath.Join(group, "cpu.stat"), fmt.Appendf(nil, "usage_usec %d\n", used*1000), 0o644))
		m.read(now)
	}
	step(0, 0)
	for range 100 {
		step(10, 10)
	}
	for range 30 {
		step(10, 2)
	}
	if have, _, err := m.permille(); err != nil || have != 200 {
		t.Errorf("%d per mille, %v", have, err)
	}
	if len(m.readings) > int(cpuWindow/cpuEvery)+2 {
		t.Errorf("%d readings are kept", len(m.readings))
	}
}

func TestCPUOfTheHostIsMeasured(t *testing.T) {
	var m cpuMeter
	m.read(time.Now())
	for end := time.Now().Add(deadline); ; {
		for begin := time.Now(); time.Since(begin) < cpuWindow; { // one CPU is busy: this one, unless somebody takes it away
		}
		m.read(time.Now())
		used, cpus, err := m.permille()
		check(t, err)
		least := 800 / cpus
		if float64(used) >= least && used <= 1000 && cpus >= 1 {
			return
		}
		if used > 1000 || cpus < 1 || time.Now().After(end) {
			t.Fatalf("%d per mille of %v CPUs, want %.0f at least", used, cpus, least)
		}
	}
}

// newGroup makes a real control group with a quota in CPUs: of v2, or of v1's cpu controller.
func newGroup(t *testing.T, cpus float64) (dir string, join func(pid int)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("control groups need root")
	}
	name := fmt.Sprintf("ballast-load-%d", os.Getpid())
	quota := int(cpus * 100000)
	var dirs []string
	if controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil && strings.Contains(string(controllers), "cpu ") {
		_ = os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+cpu"), 0o644)
		dirs = []string{"/sys/fs/cgroup/" + name}
	} else {
		dirs = []string{"/sys/fs/cgroup/cpu/" + name, "/sys/fs/cgroup/cpuacct/" + name}
	}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Skipf("no control groups here: %v", err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
	}
	if len(dirs) == 1 {
		check(t, os.WriteFile(dirs[0]+"/cpu.max", fmt.Appendf(nil, "%d 100000", quota), 0o644))
	} else {
		check(t, os.WriteFile(dirs[0]+"/cpu.cfs_period_us", []byte("100000"), 0o644))
		check(t, os.WriteFile(dirs[0]+"/cpu.cfs_quota_us", fmt.Append(nil, quota), 0o644))
	}
	return dirs[0], func(pid int) {
		for _, dir := range dirs {
			check(t, os.WriteFile(dir+"/cgroup.procs", fmt.Append(nil, pid), 0o644))
		}
	}
}

func TestAServerThatUsesUpItsQuotaIsFullyBusy(t *testing.T) {
	group, join := newGroup(t, 0.2)
	m := cpuMeter{cgroup: group}
	m.read(time.Now())
	if _, cpus, err := m.permille(); !errors.Is(err, errEarly) {
		t.Fatalf("%v CPUs, %v", cpus, err)
	}
	busy := exec.Command("sh", "-c", "while :; do :; done")
	check(t, busy.Start())
	t.Cleanup(func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
	})
	join(busy.Process.Pid)
	used, cpus, err := uint16(0), 0.0, error(nil)
	for end := time.Now().Add(deadline); used < 800; {
		if time.Now().After(end) {
			t.Fatalf("%d per mille of %v CPUs, %v", used, cpus, err)
		}
		<-time.After(cpuEvery)
		m.read(time.Now())
		used, cpus, err = m.permille()
	}
	if cpus != 0.2 {
		t.Errorf("%v CPUs", cpus)
	}
}

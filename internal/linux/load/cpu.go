// How much of the CPU is in use: of the host, or of a control group.
package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const (
	// The kernel counts the host's CPU time in ticks of 10 ms: over a short time they say nothing.
	cpuWindow = 200 * time.Millisecond
	cpuEvery  = 50 * time.Millisecond // /proc/stat is long on large hosts
)

// errEarly: nothing to compare with yet.
var errEarly = errors.New("it has been measured for too short a time")

// cpuMeter compares the CPU time that is used with what there is. The zero value measures the host.
type cpuMeter struct {
	cgroup   string
	account  string    // where cgroup v1 keeps the group's account
	readings []reading // oldest first; the first is cpuWindow old or the oldest there is
	problem  error     // of the last reading
}

// reading is CPU time since some point in the past.
type reading struct {
	at          time.Time
	used, total float64 // in any unit
	cpus        float64
}

// read takes a reading, if the last one is not of just now.
func (m *cpuMeter) read(now time.Time) {
	if n := len(m.readings); n > 0 && now.Sub(m.readings[n-1].at) < cpuEvery {
		return
	}
	next := reading{at: now}
	if m.cgroup == "" {
		m.problem = next.ofHost()
	} else {
		m.problem = m.readGroup(&next)
	}
	if m.problem != nil {
		m.readings = m.readings[:0]
		return
	}
	m.readings = append(m.readings, next)
	for len(m.readings) > 2 && now.Sub(m.readings[1].at) >= cpuWindow {
		m.readings = append(m.readings[:0], m.readings[1:]...)
	}
}

// forget begins anew.
func (m *cpuMeter) forget() { m.readings = m.readings[:0] }

// early reports whether readings are yet to come that permille compares.
func (m *cpuMeter) early() bool { return m.problem == nil && len(m.readings) < 2 }

// permille returns how much of how many CPUs has been in use of late.
func (m *cpuMeter) permille() (used uint16, cpus float64, err error) {
	if m.problem != nil {
		return 0, 0, m.problem
	}
	if len(m.readings) < 2 {
		return 0, 0, errEarly
	}
	first, last := m.readings[0], m.readings[len(m.readings)-1]
	if last.total <= first.total {
		return 0, 0, errEarly
	}
	part := (last.used - first.used) / (last.total - first.total)
	return uint16(min(max(1000*part, 0), 1000) + 0.5), last.cpus, nil
}

// ofHost reads /proc/stat (proc_stat(5)): CPU time of all CPUs by kind.
func (r *reading) ofHost() error {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() && strings.HasPrefix(lines.Text(), "cpu") {
		fields := strings.Fields(lines.Text())
		if fields[0] != "cpu" {
			r.cpus++
			continue
		}
		// user nice system idle iowait irq softirq steal; what guests use is counted in user and nice already.
		for i, field := range fields[1:min(len(fields), 9)] {
			ticks, err := strconv.ParseUint(field, 10, 64)
			if err != nil {
				return fmt.Errorf("read /proc/stat: %w", err)
			}
			r.total += float64(ticks)
			if i != 3 && i != 4 { // idle, iowait
				r.used += float64(ticks)
			}
		}
	}
	if r.total == 0 || r.cpus == 0 {
		return errors.New("read /proc/stat: it has no cpu lines")
	}
	return nil
}

// readGroup reads the account and the limits of the control group, in seconds.
func (m *cpuMeter) readGroup(r *reading) (err error) {
	if r.used, err = m.groupUsage(); err != nil {
		return fmt.Errorf("read the CPU time of control group %s: %w", m.cgroup, err)
	}
	if r.cpus, err = groupCPUs(m.cgroup); err != nil {
		return fmt.Errorf("read the CPU quota of control group %s: %w", m.cgroup, err)
	}
	if n := len(m.readings); n > 0 {
		r.total = m.readings[n-1].total + r.at.Sub(m.readings[n-1].at).Seconds()*r.cpus
	}
	return nil
}

// groupUsage returns the CPU time of the group in seconds.
func (m *cpuMeter) groupUsage() (float64, error) {
	text, err := os.ReadFile(filepath.Join(m.cgroup, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
			used, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return used / 1e6, err
		}
	}
	if m.account == "" { // cgroup v1
		if m.account, err = accountOf(m.cgroup); err != nil {
			return 0, err
		}
	}
	used, err := readNumber(filepath.Join(m.account, "cpuacct.usage"))
	return used / 1e9, err
}

// groupCPUs returns how many CPUs the group may use: the smallest of the quotas on the way up, or what the host has.
func groupCPUs(group string) (float64, error) {
	cpus := float64(runtime.NumCPU())
	for dir := group; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			return cpus, nil // above the root of the hierarchy
		}
		quota, err := quotaOf(dir)
		if err != nil {
			return 0, err
		}
		if quota > 0 {
			cpus = min(cpus, quota)
		}
	}
}

// quotaOf returns the quota of one group in CPUs, 0 when there is none.
func quotaOf(dir string) (float64, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cpu.max")) // v2: "max 100000" or "25000 100000"
	if err == nil {
		fields := strings.Fields(string(text))
		if len(fields) != 2 || fields[0] == "max" {
			return 0, nil
		}
		quota, err := strconv.ParseFloat(fields[0], 64)
		period, err2 := strconv.ParseFloat(fields[1], 64)
		return ratio(quota, period), errors.Join(err, err2)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	quota, err := readNumber(filepath.Join(dir, "cpu.cfs_quota_us")) // v1: -1 is none
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // the root of the hierarchy, or the controller is not enabled
	}
	period, err2 := readNumber(filepath.Join(dir, "cpu.cfs_period_us"))
	return ratio(quota, period), errors.Join(err, err2)
}

func ratio(quota, period float64) float64 {
	if quota <= 0 || period <= 0 {
		return 0
	}
	return quota / period
}

func readNumber(path string) (float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
}

// accountOf returns where cgroup v1 keeps the CPU time of a group: in the group itself where cpu and cpuacct are mounted together,
// else in the group of the same name below cpuacct.
func accountOf(group string) (string, error) {
	if _, err := os.Stat(filepath.Join(group, "cpuacct.usage")); err == nil {
		return group, nil
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	account, relative := "", ""
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		mounted := fields[min(4, len(fields)-1)]
		if !strings.Contains(line, " - cgroup ") {
			continue
		}
		if strings.Contains(","+fields[len(fields)-1]+",", ",cpuacct,") {
			account = mounted
		}
		if inside, ok := strings.CutPrefix(group, mounted+"/"); ok {
			relative = inside
		}
	}
	if account == "" || relative == "" {
		return "", errors.New("neither cpu.stat has usage_usec nor is there a cpuacct.usage: name a directory of cgroup v2, or of v1's cpu controller")
	}
	return filepath.Join(account, relative), nil
}

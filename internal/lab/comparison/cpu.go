package comparison

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/lab/script"
)

// ticks are those of a second in /proc (USER_HZ).
const ticks = 100

// busy is the CPU time in seconds that the machine has not been idle, or waiting for disks, since it started.
func busy() (seconds float64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU times: %w", err)
	}
	return parseBusy(text)
}

// parseBusy adds up the first line of /proc/stat: user, nice, system, irq and softirq, without idle, iowait, and what a hypervisor has given to
// others.
func parseBusy(text []byte) (seconds float64, err error) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, errors.New("read CPU times: /proc/stat has no line of all CPUs")
	}
	for i, field := range fields[1:8] {
		value, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU times: %w", err)
		}
		if i != 3 && i != 4 {
			seconds += value / ticks
		}
	}
	return seconds, nil
}

// spent is the CPU time in seconds of all that this machine does but for other programs: those that this process has not started.
func spent() float64 {
	seconds := script.Must(busy())
	all := processes()
	parent := map[int]int{}
	for _, p := range all {
		parent[p.id] = p.parent
	}
	for _, p := range all {
		if !descends(p.id, os.Getpid(), parent) {
			// Of a process that has ended, its parent has the time: the sum only moves.
			seconds -= p.own + p.ended
		}
	}
	return seconds
}

func descends(id, from int, parent map[int]int) bool {
	for ; id > 1; id = parent[id] {
		if id == from {
			return true
		}
	}
	return false
}

// ownCPU is the CPU time in seconds of the contender's processes, and of those that they have started.
func (r *round) ownCPU() (seconds float64) {
	for _, p := range r.ownProcesses() {
		seconds += p.own
	}
	return seconds
}

// ownProcesses are the contender's, and those that they have started.
func (r *round) ownProcesses() (own []accounted) {
	groups := map[int]bool{}
	for _, p := range r.balancing.Processes() {
		groups[p.Command.Process.Pid] = true
	}
	if len(groups) == 0 {
		return nil
	}
	for _, p := range processes() {
		if groups[p.group] {
			own = append(own, p)
		}
	}
	return own
}

// accounted is a process and its CPU time in seconds.
type accounted struct {
	id, parent, group int
	own, ended        float64 // its own, and that of its children that have ended
}

// processes are all of the machine.
func processes() (all []accounted) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if p, err := parseProcess(string(text)); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// parseProcess reads /proc/PID/stat. The name is in parentheses and may have spaces and parentheses. Behind it: state, ppid, pgrp, ..., 11 utime, stime,
// cutime, cstime.
func parseProcess(text string) (p accounted, err error) {
	name := strings.LastIndexByte(text, ')')
	id, _, _ := strings.Cut(text, " ")
	fields := strings.Fields(text[name+1:])
	if name < 0 || len(fields) < 15 {
		return p, fmt.Errorf("read process %q: too short", text)
	}
	var numbers [7]float64
	for i, field := range []string{id, fields[1], fields[2], fields[11], fields[12], fields[13], fields[14]} {
		if numbers[i], err = strconv.ParseFloat(field, 64); err != nil {
			return p, fmt.Errorf("read process %q: %w", text, err)
		}
	}
	return accounted{int(numbers[0]), int(numbers[1]), int(numbers[2]), (numbers[3] + numbers[4]) / ticks, (numbers[5] + numbers[6]) / ticks}, nil
}

// kernel is what runs here.
func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err.Error()
	}
	return "Linux " + unix.ByteSliceToString(name.Release[:])
}

// processor is the model of the machine's CPU.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// What an agent itself wants to know, between reports or without any.
package load

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Counter counts the connections of services in the network namespace of the thread that made it. It is not safe for concurrent use.
type Counter struct {
	sockets *sockets
	targets *targets
	counts  []count
}

// NewCounter returns a counter; Close it.
func NewCounter() (*Counter, error) {
	sockets, err := openSockets()
	if err != nil {
		return nil, err
	}
	return &Counter{sockets: sockets, targets: newTargets(nil)}, nil
}

// SetServices says whose connections Count counts.
func (c *Counter) SetServices(services []Service) {
	c.targets, c.counts = newTargets(services), make([]count, len(services))
}

// Count returns the open connections of each service, those that wait to be accepted among them. Cost: a walk through the kernel's table of
// sockets.
func (c *Counter) Count() ([]uint32, error) {
	if c.targets.any() {
		if err := c.sockets.count(c.targets, c.counts); err != nil {
			return nil, err
		}
	}
	connections := make([]uint32, len(c.counts))
	for i, n := range c.counts {
		connections[i] = n.accepted + n.waiting
	}
	return connections, nil
}

// Close lets go of the kernel's list.
func (c *Counter) Close() { c.sockets.close() }

// Strain measures how hard it is to get a CPU. It is not safe for concurrent use.
type Strain struct {
	cpu     cpuMeter
	waits   string // the file of the kernel's pressure information
	stalled []stall
}

// stall is how long, since some point in the past, there was always a task that waited for a CPU.
type stall struct {
	at   time.Time
	time time.Duration
}

// NewStrain measures a control group, or the host if the directory is empty.
func NewStrain(cgroup string) *Strain {
	waits := "/proc/pressure/cpu"
	if cgroup != "" {
		waits = filepath.Join(cgroup, "cpu.pressure")
	}
	return &Strain{cpu: cpuMeter{cgroup: cgroup}, waits: waits}
}

// Percent returns how much CPU time is in use of late, plus, where the kernel knows it (PSI), in how much of the time a task waited for a CPU:
// 0 to 100 while there is room, to 200 when there is none. Known is false as long as there is nothing to compare with. It wants to be called
// several times a second.
func (s *Strain) Percent(now time.Time) (percent uint32, known bool, err error) {
	s.cpu.read(now)
	waiting, err := s.waiting(now)
	if err != nil {
		return 0, false, err
	}
	used, _, err := s.cpu.permille()
	if errors.Is(err, errEarly) {
		return 0, false, nil
	}
	return uint32(used)/10 + waiting, err == nil, err
}

// waiting returns in how many percent of the last moments a task waited; 0 without pressure information.
func (s *Strain) waiting(now time.Time) (uint32, error) {
	text, err := os.ReadFile(s.waits)
	if err != nil { // such a kernel, or psi=0: EOPNOTSUPP
		return 0, nil
	}
	total, err := stalledFor(string(text))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", s.waits, err)
	}
	s.stalled = append(s.stalled, stall{now, total})
	for len(s.stalled) > 2 && now.Sub(s.stalled[1].at) >= cpuWindow {
		s.stalled = append(s.stalled[:0], s.stalled[1:]...)
	}
	elapsed := now.Sub(s.stalled[0].at)
	if elapsed <= 0 {
		return 0, nil
	}
	return uint32(min(max(100*(total-s.stalled[0].time)/elapsed, 0), 100)), nil
}

// stalledFor reads the line "some" of pressure information (Documentation/accounting/psi.rst).
func stalledFor(text string) (time.Duration, error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "some" {
			continue
		}
		if total, ok := strings.CutPrefix(fields[len(fields)-1], "total="); ok {
			microseconds, err := strconv.ParseInt(total, 10, 64)
			return time.Duration(microseconds) * time.Microsecond, err
		}
	}
	return 0, errors.New("it has no line \"some\"")
}

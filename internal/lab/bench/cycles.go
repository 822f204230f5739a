package bench

import (
	"encoding/binary"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// cyclesSample is for how long cycles are counted.
const cyclesSample = 20 * time.Millisecond

// CycleRate is how many cycles a nanosecond of CPU time has.
type CycleRate struct {
	Of    string // whose cycles; empty: this machine lets nobody count any
	PerNS float64
}

// Cycles counts the core's own cycles or, where the machine hides them, as most virtual ones do, those of the time stamp counter, whose rate is fixed.
var Cycles = sync.OnceValue(func() CycleRate {
	events := []struct {
		of   string
		attr unix.PerfEventAttr
	}{
		{"core", unix.PerfEventAttr{Type: unix.PERF_TYPE_HARDWARE, Config: unix.PERF_COUNT_HW_CPU_CYCLES}},
		{"TSC", unix.PerfEventAttr{Type: eventSource("msr")}}, // its event 0
	}
	for _, e := range events {
		if perNS := countEvent(&e.attr); perNS > 0 {
			return CycleRate{e.of, perNS}
		}
	}
	return CycleRate{}
})

// eventSource is the type of a kernel's source of events; one that does not exist if there is none.
func eventSource(name string) uint32 {
	text, err := os.ReadFile("/sys/bus/event_source/devices/" + name + "/type")
	if err != nil {
		return ^uint32(0)
	}
	number, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return ^uint32(0)
	}
	return uint32(number)
}

// countEvent returns how often an event comes in a nanosecond of this thread; 0: it cannot be counted.
func countEvent(attr *unix.PerfEventAttr) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	attr.Size, attr.Read_format = uint32(binary.Size(attr)), unix.PERF_FORMAT_TOTAL_TIME_RUNNING
	fd, err := unix.PerfEventOpen(attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	for begin := time.Now(); time.Since(begin) < cyclesSample; { // busy
	}
	var read [16]byte // the count, and for how many nanoseconds
	if n, err := unix.Read(fd, read[:]); err != nil || n != len(read) {
		return 0
	}
	count, running := binary.NativeEndian.Uint64(read[:]), binary.NativeEndian.Uint64(read[8:])
	if running == 0 {
		return 0
	}
	return float64(count) / float64(running)
}

// Package bench measures how long a packet stays in our data path, beside what others do in the least possible time.
//
// Method: a kernel test run of a wrapper (bpf/bench.bpf.c) that writes the frame of a flow drawn at random, which has been made ahead, and calls the
// program under test, timed by the thread's CPU clock; the same wrapper around an empty program is subtracted; cells are
// interleaved in rounds of alternating order. Every cell asserts the last run's action and frame, the growth of every frame and the
// program's own counters: a program that silently passes packets wins every benchmark.
package bench

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
)

// Least numbers of rounds and repetitions whose results mean something.
const (
	DefaultRounds = 15
	DefaultRepeat = 500_000
)

// MaxFlows is how many distinct flows there are.
const MaxFlows = 1 << 24

// Options say how long and on how many flows to measure.
type Options struct {
	Rounds   int
	Repeat   uint32
	Flows    []uint32
	Peers    []string                // files of package peer: programs to compare with
	Progress func(round, rounds int) // before each round, from 1; may be nil
}

// Cell is one measured cell. Times are CPU time per packet in the wrapper. Where flows come in batches, what these cost more than one long list is
// taken off.
type Cell struct {
	Program      string  `json:"program"`
	Flows        uint32  `json:"flows"`
	MinNS        float64 `json:"min_ns"`
	MedianNS     float64 `json:"median_ns"`
	MaxNS        float64 `json:"max_ns"`
	NetMinNS     float64 `json:"net_min_ns"`    // least less the wrapper's least: what other load on the machine disturbs least
	NetMedianNS  float64 `json:"net_median_ns"` // less the wrapper: the program alone
	RawMedianNS  float64 `json:"raw_median_ns"` // nothing taken off
	Verdict      string  `json:"verdict"`       // that every packet got
	VerdictCount uint64  `json:"verdict_count"`
}

// Run measures every program at every number of flows. It takes about rounds * repeat * flows * 0.7 us.
func Run(ctx context.Context, options Options) ([]Cell, error) {
	peers, unload, err := openPeers(options.Peers)
	if err != nil {
		return nil, err
	}
	defer unload()
	r, err := openRig(loopback)
	if err != nil {
		return nil, err
	}
	defer r.close()
	space, device, err := routeToClients()
	if err != nil {
		return nil, err
	}
	defer space.Close()
	all := measurements(slices.Concat(r.subjects(), r.inMemory(device), peers), options)
	if err := space.Do(func() error { return r.run(ctx, all, &options) }); err != nil {
		return nil, err
	}
	return results(all), nil
}

// inMemory are subjects that are not measured over devices: their frames do not come back, or differ from others only in what the program reads.
func (r *rig) inMemory(device net.HardwareAddr) []subject {
	all := []subject{r.stopped(), r.acknowledgement(), r.refused()}
	return slices.Concat(all, r.throughSubjects(device), r.optionSubjects())
}

// Returns is what the kernel does about returns that can be misled. With "Safe RET" each of them is mispredicted: a call in a program costs some 7 ns.
func Returns() string {
	text, err := os.ReadFile("/sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// Find returns the cell of a program at a number of flows.
func Find(cells []Cell, program string, flows uint32) (Cell, bool) {
	for _, c := range cells {
		if c.Program == program && c.Flows == flows {
			return c, true
		}
	}
	return Cell{}, false
}

// Target is the largest net median that a program aims at, as a multiple of minimal-ipip's at as many flows; 0: none.
func Target(program string) float64 {
	switch program {
	case "cookie", "syn-rr", "syn-awrr":
		return 2.2
	case "history":
		return 2.42
	case "syn-choices", "syn-choices-srv6":
		return 4
	case "replica-hit":
		return 3
	case "syn-p2c", "syn-awfd":
		return 3.3
	case "syn-least":
		return 4.4
	}
	return 0
}

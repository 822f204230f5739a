// Package bench measures how long a packet stays in our data path, beside what others do in the least possible time.
//
// Method: a kernel test run of a wrapper (bpf/bench.bpf.c) that makes the frame of a random flow and calls the program
// under test, timed by the thread's CPU clock; the same wrapper around an empty program is subtracted; cells are
// interleaved in rounds of alternating order. Every cell asserts the last run's action and frame, the growth of every frame and the
// program's own counters: a program that silently passes packets wins every benchmark.
package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"github.com/ballast-lb/ballast/internal/linux/datapath"
)

// Least numbers of rounds and repetitions whose results mean something.
const (
	DefaultRounds = 15
	DefaultRepeat = 500_000
)

// MaxFlows is how many distinct flows the wrapper can draw from.
const MaxFlows = 1 << 24

const xdpTX = 3

// attempts bounds how often a measurement that a signal interrupted is repeated.
const attempts = 10

// Options say how long and on how many flows to measure.
type Options struct {
	Rounds   int
	Repeat   uint32
	Flows    []uint32
	Progress func(round, rounds int) // before each round, from 1; may be nil
}

// Cell is one measured cell. Times are CPU time per packet in the wrapper, where making a frame costs as much as for `empty`:
// what a cell's frames cost more than those (a cookie to compute) is taken off.
type Cell struct {
	Program      string  `json:"program"`
	Flows        uint32  `json:"flows"`
	MinNS        float64 `json:"min_ns"`
	MedianNS     float64 `json:"median_ns"`
	MaxNS        float64 `json:"max_ns"`
	NetMedianNS  float64 `json:"net_median_ns"` // less the wrapper: the program alone
	RawMedianNS  float64 `json:"raw_median_ns"` // nothing taken off
	Verdict      string  `json:"verdict"`       // that every packet got
	VerdictCount uint64  `json:"verdict_count"`
}

// measurement collects the samples of one cell, in ns per packet, one a round.
type measurement struct {
	subject *subject
	flows   uint32
	raw     []float64
	count   uint64
	control *measurement // the empty program, fed the same frames
	plain   *measurement // the empty program, fed frames without a cookie; nil: this is only a control
}

// Run measures every program at every number of flows. It takes about rounds * repeat * flows * 0.7 us.
func Run(ctx context.Context, options Options) ([]Cell, error) {
	r, err := openRig()
	if err != nil {
		return nil, err
	}
	defer r.close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all := r.measurements(options.Flows)
	order := slices.Clone(all)
	for round := range options.Rounds {
		if options.Progress != nil {
			options.Progress(round+1, options.Rounds)
		}
		for _, m := range order {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if err := r.sample(m, options.Repeat, uint64(round)*0x9e3779b97f4a7c15+1); err != nil {
				return nil, fmt.Errorf("measure %s at %d flows: %w", m.subject.name, m.flows, err)
			}
		}
		slices.Reverse(order)
	}
	return results(all), nil
}

// measurements lists the cells and what is subtracted from them.
func (r *rig) measurements(flows []uint32) (all []*measurement) {
	subjects := r.subjects()
	for _, n := range flows {
		plain := &measurement{subject: &subjects[0], flows: n}
		plain.control, plain.plain = plain, plain
		all = append(all, plain)
		for i := range subjects[1:] {
			m := &measurement{subject: &subjects[1+i], flows: n, control: plain, plain: plain}
			if m.subject.cell.CookieBits != 0 {
				making := subjects[0]
				making.cell = m.subject.cell
				making.cell.Growth = 0
				m.control = &measurement{subject: &making, flows: n}
				all = append(all, m.control)
			}
			all = append(all, m)
		}
	}
	return all
}

// sample runs one cell once and checks everything that can be checked.
func (r *rig) sample(m *measurement, repeat uint32, seed uint64) error {
	for range attempts {
		run, err := r.measure(m, repeat, seed)
		if err != nil {
			return err
		}
		if run.Runs == uint64(repeat) {
			m.raw = append(m.raw, float64(run.CPU.Nanoseconds())/float64(run.Runs))
			m.count += run.Runs
			return nil
		}
	}
	return fmt.Errorf("interrupted %d times: measure on a quieter machine, or with a lower --repeat", attempts)
}

// measure runs one cell once. A run that was interrupted has been started anew by the system call's wrapper: it has more runs
// than asked for, and only its counters are checked.
func (r *rig) measure(m *measurement, repeat uint32, seed uint64) (run datapath.BenchRun, err error) {
	s := m.subject
	cell := s.cell
	cell.Flows = m.flows
	before, err := r.counters(s)
	if err != nil {
		return run, err
	}
	if run, err = r.programs.Run(s.program, cell, repeat, seed); err != nil {
		return run, err
	}
	after, err := r.counters(s)
	if err != nil {
		return run, err
	}
	if run.Action != xdpTX || (run.Surprises != 0 && run.Runs == uint64(repeat)) {
		return run, fmt.Errorf("%d of %d frames had another length than expected, the last action is %d (want %d)",
			run.Surprises, run.Runs, run.Action, xdpTX)
	}
	for verdict := range after {
		want := uint64(0)
		if r.verdicts[verdict] == s.verdict {
			want = run.Runs
		}
		if got := after[verdict].Packets - before[verdict].Packets; got != want {
			return run, fmt.Errorf("%d of %d packets were %s, want %d", got, run.Runs, r.verdicts[verdict], want)
		}
	}
	return run, s.check(run.Output, cell, run.Flow)
}

// counters are those of the subject's service, nil if the subject counts nothing.
func (r *rig) counters(s *subject) ([]datapath.Traffic, error) {
	if s.verdict == "" {
		return nil, nil
	}
	return r.lb.VerdictTraffic(s.service)
}

func results(all []*measurement) (cells []Cell) {
	for _, m := range all {
		if m.plain == nil {
			continue
		}
		net := less(m.raw, m.control.raw)
		wrapped := spreadOf(plus(net, m.plain.raw))
		verdict := m.subject.verdict
		if verdict == "" {
			verdict = "tx"
		}
		cells = append(cells, Cell{Program: m.subject.name, Flows: m.flows, MinNS: wrapped.min, MedianNS: wrapped.median,
			MaxNS: wrapped.max, NetMedianNS: spreadOf(net).median, RawMedianNS: spreadOf(m.raw).median,
			Verdict: verdict, VerdictCount: m.count})
	}
	return cells
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

// Target is the largest median that a program aims at, as a multiple of minimal-ipip's at as many flows; 0: none.
func Target(program string) float64 {
	switch program {
	case "cookie":
		return 2.5
	case "syn-rr", "syn-p2c", "syn-least", "syn-awrr", "syn-awfd":
		return 3
	}
	return 0
}

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

const xdpTX = 3

// Options say how long and on how many flows to measure.
type Options struct {
	Rounds   int
	Repeat   uint32
	Flows    []uint32
	Progress func(round, rounds int) // may be nil
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
			options.Progress(round, options.Rounds)
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
	s := m.subject
	cell := s.cell
	cell.Flows = m.flows
	before, err := r.counters(s)
	if err != nil {
		return err
	}
	run, err := r.programs.Run(s.program, cell, repeat, seed)
	if err != nil {
		return err
	}
	after, err := r.counters(s)
	if err != nil {
		return err
	}
	if run.Action != xdpTX || run.Surprises != 0 || run.Runs < uint64(repeat) {
		return fmt.Errorf("%d runs of %d, %d frames of another length than expected, last action %d (want %d)",
			run.Runs, repeat, run.Surprises, run.Action, xdpTX)
	}
	if err := s.check(run.Output, cell, run.Flow); err != nil {
		return err
	}
	for verdict, name := range r.verdicts {
		want := uint64(0)
		if name == s.verdict {
			want = run.Runs
		}
		if after != nil && after[verdict].Packets-before[verdict].Packets != want {
			return fmt.Errorf("%d of %d packets were %s, want %d", after[verdict].Packets-before[verdict].Packets, run.Runs, name, want)
		}
	}
	m.raw = append(m.raw, float64(run.CPU.Nanoseconds())/float64(run.Runs))
	m.count += run.Runs
	return nil
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

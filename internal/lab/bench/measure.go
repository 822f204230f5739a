package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/verdict"
	"github.com/ballast-lb/ballast/internal/plan"
)

// What programs return of enum xdp_action in linux/bpf.h.
const (
	xdpDrop     = 1
	xdpTX       = 3
	xdpRedirect = 4
)

// attempts bounds how often a measurement that a signal interrupted is repeated.
const attempts = 10

var errInterrupted = fmt.Errorf("interrupted %d times: measure on a quieter machine, or with a lower --repeat", attempts)

// changesPart is the part of the runs that cells get whose runs change what they meet: between their batches much is put in order.
const changesPart = 4

// A subject is one row of the table: a program and what it is fed.
type subject struct {
	name    string
	program *wrapper.Program
	cell    wrapper.Cell // but for the number of flows
	keeps   bool         // the frame keeps its length
	action  uint32       // that the program returns; 0: XDP_TX
	prepare func() error // before each sample; nil: nothing
	changes *changes     // nil: what a packet meets is the same for all
	only    uint32       // at most so many flows; 0: any number
	fresh   *uint32      // the first flow that no packet has had yet: each comes once; nil: flows are drawn at random
	indices []uint8      // that the flows' cookies carry; nil: none
	lb      *lb.LB       // whose counters count; nil: the program counts none
	place   plan.Place   // of the service
	verdict string       // that every packet must get
	check   func(output []byte, s sent) error
	counted func() (packets uint64, err error) // by a program that is not ours; nil: it counts none
}

// changes feed a program whose runs change what the next would meet. Each flow of a batch comes once; then all is put back.
type changes struct {
	batches func() func() []uint32     // a new supply of batches of flows
	restore func(batch []uint32) error // after each batch; nil: nothing
}

// measurement collects the samples of one cell, in ns per packet, one a round.
type measurement struct {
	subject *subject
	flows   uint32
	next    func() []uint32
	raw     []float64
	count   uint64
	control *measurement // the empty program, fed the same frames
	plain   *measurement // the empty program, fed flows drawn at random; nil: this is only a control
}

// runner measures.
type runner struct {
	programs *wrapper.Wrapper
	verdicts []string
}

// measurements lists the cells of all subjects at all numbers of flows, and what is subtracted from them. The first subject is the empty
// program with plain frames.
func measurements(subjects []subject, options Options) (all []*measurement) {
	for _, n := range options.Flows {
		all = append(all, measureSubjects(subjects, n)...)
	}
	return all
}

func measureSubjects(subjects []subject, flows uint32) (all []*measurement) {
	plain := &measurement{subject: &subjects[0], flows: flows}
	plain.control, plain.plain = plain, plain
	all = append(all, plain)
	for i := range subjects[1:] {
		m := &measurement{subject: &subjects[1+i], flows: flows, control: plain, plain: plain}
		if m.subject.changes != nil {
			m.control = m.subject.controlBy(&subjects[0], flows)
			all = append(all, m.control)
			m.next = m.subject.changes.batches()
		}
		all = append(all, m)
	}
	return all
}

// controlBy is the empty program, fed the batches that the subject is fed.
func (s *subject) controlBy(empty *subject, flows uint32) *measurement {
	making := *empty
	making.cell, making.indices, making.changes = s.cell, s.indices, &changes{}
	making.cell.Growth = 0
	return &measurement{subject: &making, flows: flows, next: s.changes.batches()}
}

// run takes one sample of every measurement in each round.
func (r *runner) run(ctx context.Context, all []*measurement, options *Options) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	order := slices.Clone(all)
	for round := range options.Rounds {
		if options.Progress != nil {
			options.Progress(round+1, options.Rounds)
		}
		for _, m := range order {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := r.sample(m, options.Repeat, uint64(round)*0x9e3779b97f4a7c15+1); err != nil {
				return fmt.Errorf("measure %s at %d flows: %w", m.subject.name, m.flows, err)
			}
		}
		slices.Reverse(order)
	}
	return nil
}

// sample runs one cell once and checks everything that can be checked.
func (r *runner) sample(m *measurement, repeat uint32, seed uint64) error {
	if m.subject.prepare != nil {
		if err := m.subject.prepare(); err != nil {
			return err
		}
	}
	if m.subject.changes != nil {
		return r.sampleChanges(m, max(1, repeat/changesPart))
	}
	cell := m.cell()
	if m.subject.fresh != nil {
		repeat = min(repeat, wrapper.Listed)
	}
	for range attempts {
		run, err := r.measure(m, m.subject.draw(&cell, repeat, seed), repeat)
		if err != nil {
			return err
		}
		if run.Discarded == 0 || m.subject.fresh == nil {
			m.add(run.CPU, run.Runs)
			return nil
		}
	}
	return errInterrupted
}

// draw lists flows to feed.
func (s *subject) draw(cell *wrapper.Cell, count uint32, seed uint64) []uint32 {
	if s.fresh == nil {
		return cell.Draw(count, seed)
	}
	flows := sequence(*s.fresh, min(count, wrapper.Listed))
	*s.fresh += uint32(len(flows))
	for i := range flows {
		flows[i] %= MaxFlows
	}
	return flows
}

func (m *measurement) add(cpu time.Duration, runs uint64) {
	m.raw = append(m.raw, float64(cpu.Nanoseconds())/float64(runs))
	m.count += runs
}

// sampleChanges runs one cell batch by batch.
func (r *runner) sampleChanges(m *measurement, repeat uint32) error {
	var cpu time.Duration
	var runs uint64
	c := m.subject.changes
	for interrupted := 0; runs < uint64(repeat); {
		batch := m.next()
		run, err := r.measure(m, batch, uint32(len(batch)))
		if c.restore != nil {
			err = errors.Join(err, c.restore(batch))
		}
		if err != nil {
			return err
		}
		if run.Discarded > 0 {
			if interrupted++; interrupted == attempts {
				return errInterrupted
			}
			continue
		}
		cpu, runs = cpu+run.CPU, runs+run.Runs
	}
	m.add(cpu, runs)
	return nil
}

// measure runs one cell once, on frames of these flows. One that was interrupted has begun anew: all of its packets were
// counted. Nothing is checked then where each flow should have come once.
func (r *runner) measure(m *measurement, flows []uint32, repeat uint32) (run wrapper.Result, err error) {
	s, cell := m.subject, m.cell()
	if err := errors.Join(r.programs.Put(s.program), r.programs.List(&cell, flows, s.indices)); err != nil {
		return run, err
	}
	before, err := s.counters()
	if err != nil {
		return run, err
	}
	var packets uint64
	if s.counted != nil {
		if packets, err = s.counted(); err != nil {
			return run, err
		}
	}
	if run, err = r.programs.Run(repeat); err != nil {
		return run, err
	}
	after, err := s.counters()
	if err != nil {
		return run, err
	}
	if want := cmp.Or(s.action, xdpTX); run.Action != want || run.Surprises != 0 {
		return run, fmt.Errorf("%d of %d frames had another length than expected, the last action is %d (want %d)",
			run.Surprises, run.Runs, run.Action, want)
	}
	if run.Discarded > 0 && (s.changes != nil || s.fresh != nil) {
		return run, nil
	}
	if err := r.checkCounters(s, before, after, run.Runs+run.Discarded); err != nil {
		return run, err
	}
	if err := s.checkCounted(packets, run.Runs+run.Discarded); err != nil {
		return run, err
	}
	return run, s.check(run.Output, sent{cell, run.Flow, run.Index})
}

func (r *runner) checkCounters(s *subject, before, after []verdict.Traffic, runs uint64) error {
	for verdict := range after {
		want := uint64(0)
		if r.verdicts[verdict] == s.verdict {
			want = runs
		}
		if got := after[verdict].Packets - before[verdict].Packets; got != want {
			return fmt.Errorf("%d of %d packets were %s, want %d", got, runs, r.verdicts[verdict], want)
		}
	}
	return nil
}

// cell is what the subject is fed at the measurement's number of flows.
func (m *measurement) cell() wrapper.Cell {
	cell := m.subject.cell
	cell.Flows = m.subject.flows(m.flows)
	return cell
}

func (s *subject) flows(wanted uint32) uint32 {
	if s.only != 0 {
		return min(wanted, s.only)
	}
	return wanted
}

// counters are those of the subject's service, nil if the subject counts nothing.
func (s *subject) counters() ([]verdict.Traffic, error) {
	if s.lb == nil {
		return nil, nil
	}
	return s.lb.VerdictTraffic(s.place)
}

func results(all []*measurement) (cells []Cell) {
	for _, m := range all {
		if m.plain == nil {
			continue
		}
		net, least := less(m.raw, m.control.raw), spreadOf(m.raw).min-spreadOf(m.control.raw).min
		wrapped := spreadOf(plus(net, m.plain.raw))
		verdict := m.subject.verdict
		if verdict == "" {
			verdict = "tx"
		}
		cells = append(cells, Cell{Program: m.subject.name, Flows: m.flows, MinNS: wrapped.min, MedianNS: wrapped.median,
			MaxNS: wrapped.max, NetMinNS: least, NetMedianNS: spreadOf(net).median, RawMedianNS: spreadOf(m.raw).median,
			Verdict: verdict, VerdictCount: m.count})
	}
	return cells
}

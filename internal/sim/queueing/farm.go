package queueing

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/sim"
	"github.com/ballast-lb/ballast/internal/sim/flows"
	"github.com/ballast-lb/ballast/internal/sim/random"
)

// farm is servers of one core behind a balancer whose own time does not count. Requests come at random (Poisson), each on a connection of its
// own, whatever becomes of those before (an open loop). Arrivals and work depend on the seed and the number of the request only, so that
// all policies meet the same requests.
type farm struct {
	servers int
	load    float64                 // mean part of a server's time that is needed
	mean    float64                 // of work, ns
	work    func(flow uint64) int64 // ns
	warmNS  int64                   // before anything counts
	countNS int64                   // how long requests count that arrive
}

// Alarms of a farm.
const (
	arrival = iota
	reports
	window
)

// windowNS is how long the load of a server is averaged over for its variance.
const windowNS = second

// play is one run of a farm with one policy.
type play struct {
	*farm
	*network
	policy *policy
	open   []int32     // requests at each server
	told   []int32     // loads as the policy sees them
	busy   []float64   // as each server has told the last time: part of the interval
	past   []reporting // what each server had worked when it told
	born   []int64     // ns, by flow
	times  []int64     // from arrival to end, ns, of those that count
	spread spread
}

// reporting is how long a server had worked at a moment, in ns.
type reporting struct{ busyNS, at int64 }

// spread gathers the variance between servers of their busy part in each window.
type spread struct {
	past     []reporting
	variance float64 // sum over windows
	windows  float64
}

// run plays the farm with a policy.
func (f *farm) run(run *sim.Run, p *policy) (*play, error) {
	a := &play{farm: f, network: newNetwork(), policy: p, open: make([]int32, f.servers), busy: make([]float64, f.servers)}
	a.told, a.past = a.open, make([]reporting, f.servers)
	for range f.servers {
		a.add(1)
	}
	if p.byReports {
		a.told = make([]int32, f.servers)
	}
	if p.interval != 0 {
		a.alarm(p.interval, reports)
	}
	a.spread.past = make([]reporting, f.servers)
	a.alarm(f.warmNS, window)
	gaps, gap := random.New(run.Seed, "arrivals"), f.mean/(f.load*float64(f.servers))
	next := gaps.Exp(gap)
	a.alarm(int64(next), arrival)
	for {
		h, ok := a.next(f.warmNS + f.countNS)
		if !ok {
			break
		}
		switch {
		case !h.alarm:
			a.end(h)
		case h.id == arrival:
			a.arrive()
			next += gaps.Exp(gap)
			a.alarm(int64(next), arrival)
			if len(a.born)%4096 == 0 && run.Err() != nil {
				return nil, run.Err()
			}
		case h.id == reports:
			a.report()
		case h.id == window:
			a.window()
		}
	}
	a.finish()
	return a, nil
}

func (a *play) arrive() {
	flow := uint64(len(a.born))
	a.born = append(a.born, a.now)
	server := a.policy.chooser.Choose(flow, a.told)
	a.open[server]++
	a.enter(int(server), uint32(flow), a.work(flow))
}

func (a *play) end(h happening) {
	a.open[h.station]--
	if born := a.born[h.id]; born >= a.warmNS {
		a.times = append(a.times, a.now-born)
	}
}

// finish serves those that are still there. Nobody else comes: the last few have it a little easier.
func (a *play) finish() {
	for slices.Max(a.open) > 0 {
		if h, ok := a.next(never); ok && !h.alarm {
			a.end(h)
		}
	}
	slices.Sort(a.times)
}

// report has every server tell how busy it was since it told the last time.
func (a *play) report() {
	for server := range a.past {
		a.busy[server] = a.past[server].until(a.busyNS(server), a.now)
		if a.policy.byReports {
			a.told[server] = int32(1e6 * a.busy[server])
		}
	}
	if a.policy.weigh != nil {
		a.policy.weigh(a.busy)
	}
	a.alarm(a.now+a.policy.interval, reports)
}

// until returns the busy part of the time since, and begins again.
func (r *reporting) until(busyNS, now int64) float64 {
	part := float64(busyNS-r.busyNS) / float64(max(now-r.at, 1))
	*r = reporting{busyNS, now}
	return part
}

// window adds the variance of a window.
func (a *play) window() {
	sum, squares := 0.0, 0.0
	for server := range a.spread.past {
		part := a.spread.past[server].until(a.busyNS(server), a.now)
		sum, squares = sum+part, squares+float64(part*part)
	}
	if a.now > a.warmNS {
		n := float64(a.servers)
		mean := sum / n
		a.spread.variance += squares/n - float64(mean*mean) // the conversion keeps processors from rounding once instead of twice
		a.spread.windows++
	}
	a.alarm(a.now+windowNS, window)
}

// quantile returns the time in seconds that a part of the requests does not exceed.
func (a *play) quantile(part float64) float64 { return quantile(a.times, part) }

// variance is the mean over all windows of the variance between servers of their busy part.
func (a *play) variance() float64 { return a.spread.variance / a.spread.windows }

// quantile of sorted times in ns, in seconds.
func quantile(times []int64, part float64) float64 {
	return float64(times[min(int(part*float64(len(times))), len(times)-1)]) / float64(second)
}

// A policy is how a balancer chooses, and what it is told.
type policy struct {
	chooser   flows.Chooser
	interval  int64                // between two reports of a server; 0: it does not report
	byReports bool                 // the chooser is shown busy parts in millionths as reported, not the connections that the balancer counts
	weigh     func(busy []float64) // what is made of reports; may be nil
}

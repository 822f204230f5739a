package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants: what is simulated at most, so that no file takes a machine's memory or days of its time.
const (
	maxLive     = 1e8            // connections at the same time: 8 bytes each
	maxSteps    = 2e10           // of one seed, of some ten nanoseconds: minutes
	maxRequests = 1e7            // of one seed and policy: 16 bytes each
	maxChanges  = 1e7            // of the rate of requests: 8 bytes each, until the request would have come that was expected before
	maxDay      = 24 * time.Hour // of a scenario with requests
	maxWork     = time.Hour      // of a request
	maxSeen     = 1 << 29
)

// Implementation constants of what things cost, in steps.
const (
	requestSteps = 60 // of a request, from its arrival to its end
	reportSteps  = 80 // of a server to a controller
	turnsOfStep  = 8  // of a round that is laid out
)

// samples are the points of each curve.
const samples = 200

// peakServers bounds how many servers there ever are: those that come back are counted twice.
func (s *Scenario) peakServers() int {
	count := int64(s.servers())
	for _, e := range s.Events {
		count = min(count+int64(e.Add)*e.times(), 1<<31)
	}
	return int(count)
}

// highestRate returns the connections or requests per second at the busiest time.
func (s *Scenario) highestRate() float64 {
	rate := s.Traffic.Rate
	for _, e := range s.Events {
		rate = max(rate, e.Rate)
	}
	return rate
}

// checkCost objects to scenarios that would run for too long or need too much memory.
func (r *reader) checkCost(s *Scenario) {
	if s.requests() {
		r.checkWork(s)
	} else {
		r.checkLive(s)
	}
	if steps := s.steps(); steps > maxSteps {
		r.FailAt("", "make it shorter or smaller, or let fewer things happen", "too much to simulate: about %.2g steps, at most %.2g", steps, float64(maxSteps))
	}
}

// checkLive objects to more connections than fit.
func (r *reader) checkLive(s *Scenario) {
	rate, mean := s.highestRate(), 0.0
	if s.Traffic.Trace == nil {
		mean = s.Traffic.Lifetimes.Mean()
		if longest := s.Traffic.Lifetimes.At(1); rate*longest > maxSeen {
			r.FailAt("traffic", "make it slower or shorter", "%.3g connections begin while the longest lives, at most %d can be told apart", rate*longest, maxSeen)
		}
	}
	if rate*mean > maxLive {
		r.FailAt("traffic", fmt.Sprintf("have at most %d", int64(maxLive)), "%.3g connections at the same time", rate*mean)
	}
}

// checkWork objects to more requests than fit, and to times that the servers' clocks do not have (station.clock of internal/lab/sim/queueing).
func (r *reader) checkWork(s *Scenario) {
	if s.Length < 2*int64(time.Second) {
		r.FailAt("length", "use 2s or more", "how busy servers are is measured by the second")
	}
	if all := time.Duration(s.Length + s.WarmUp); all > maxDay {
		r.FailAt("length", fmt.Sprintf("use %v at most", maxDay), "%v of requests, the warm-up included", all)
	}
	r.checkChanges(s)
	slowest := slices.MinFunc(s.Servers, func(a, b Group) int { return cmp.Compare(a.Speed, b.Speed) }).Speed
	if longest := s.Traffic.Work.At(1) / slowest; longest > maxWork.Seconds() {
		r.FailAt("traffic.work", fmt.Sprintf("use %v at most", maxWork), "a request may take %.3g s of a server's time", longest)
	}
	if expected := s.highestRate() * s.seconds(); expected > maxRequests {
		r.FailAt("traffic", fmt.Sprintf("have at most %d: less traffic, or a shorter length", int64(maxRequests)), "about %.3g requests", expected)
	}
}

// checkChanges objects to the event that sets the rate of requests once too often.
func (r *reader) checkChanges(s *Scenario) {
	changes := int64(0)
	for i, e := range s.Events {
		if e.Rate < 0 {
			continue
		}
		if changes += e.times(); changes > maxChanges {
			r.FailAt(fmt.Sprintf("events[%d]", i), fmt.Sprintf("have at most %d: let it happen less often", int64(maxChanges)), "rates change %d times", changes)
			return
		}
	}
}

// seconds are the length and the warm-up.
func (s *Scenario) seconds() float64 { return float64(s.Length+s.WarmUp) / nsPerSecond }

// steps estimates what one seed costs.
func (s *Scenario) steps() float64 {
	happenings, total := 0.0, 0.0
	for _, e := range s.Events {
		happenings += float64(e.times())
	}
	for _, p := range s.Policies {
		change := s.changeSteps(p)
		total += s.trafficSteps() + happenings*change + samples*float64(s.peakServers())
		if p.follows() {
			total += float64(s.Length+s.WarmUp) / float64(p.Interval) * s.reportSteps(change)
		}
	}
	return total
}

// trafficSteps is what connections or requests cost, and windows of a second.
func (s *Scenario) trafficSteps() float64 {
	switch {
	case s.requests():
		return requestSteps*s.highestRate()*s.seconds() + 4*s.seconds()*float64(s.peakServers())
	case s.Traffic.Trace == nil:
		return 4 * s.highestRate() * (s.seconds() + s.Traffic.Lifetimes.Mean())
	}
	return 4 * float64(len(s.Traffic.Trace))
}

// changeSteps is what it costs a policy to hear of other servers or weights.
func (s *Scenario) changeSteps(p Policy) float64 {
	servers := float64(s.peakServers())
	switch {
	case p.usesTable():
		return servers + 16*float64(s.TableSlots)*float64(p.columns())
	case slices.Contains(byRounds, p.Dispatch):
		turns := servers
		if p.Dispatch != "rr" {
			turns *= model.MaxWeight
		}
		return servers + servers*min(turns, model.MaxRoundServers)/turnsOfStep // each turn looks at everybody
	}
	return servers
}

// reportSteps is what it costs when all servers tell their load.
func (s *Scenario) reportSteps(change float64) float64 {
	servers := float64(s.peakServers())
	if s.requests() {
		return reportSteps*servers + change
	}
	return 8*servers + change
}

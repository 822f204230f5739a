package scenario

import (
	"fmt"
	"slices"
)

// Implementation constants: what is simulated at most, so that no file takes a machine's memory or days of its time.
const (
	maxLive  = 1e8  // connections at the same time: 8 bytes each
	maxSteps = 2e10 // of one seed, of some ten nanoseconds: minutes
	maxSeen  = 1 << 29
)

// samples are the points of each curve.
const samples = 200

// mostServers bounds how many servers there ever are: those that come back are counted twice.
func (s *Scenario) mostServers() int {
	count := int64(s.servers())
	for _, e := range s.Events {
		count = min(count+int64(e.Add)*e.times(), 1<<31)
	}
	return int(count)
}

// highestRate returns the connections per second at the busiest time.
func (s *Scenario) highestRate() float64 {
	rate := s.Traffic.Rate
	for _, e := range s.Events {
		rate = max(rate, e.Rate)
	}
	return rate
}

// checkCost objects to scenarios that would run for too long or need too much memory.
func (r *reader) checkCost(s *Scenario) {
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
	if steps := s.steps(); steps > maxSteps {
		r.FailAt("", "make it shorter or smaller, or let fewer things happen", "too much to simulate: about %.2g steps, at most %.2g", steps, float64(maxSteps))
	}
}

// steps estimates what one seed costs.
func (s *Scenario) steps() float64 {
	servers, seconds := float64(s.mostServers()), float64(s.Length+s.WarmUp)/nsPerSecond
	connections := float64(len(s.Traffic.Trace))
	if s.Traffic.Trace == nil {
		connections = s.highestRate() * (seconds + s.Traffic.Lifetimes.Mean())
	}
	happenings := 0.0
	for _, e := range s.Events {
		happenings += float64(e.times())
	}
	total := 0.0
	for _, p := range s.Policies {
		change := servers
		if p.usesTable() {
			change += 16 * float64(s.TableSlots)
		}
		total += 4*connections + happenings*change + samples*servers
		if slices.Contains(byReport, p.Dispatch) {
			total += float64(s.Length+s.WarmUp) / float64(p.Interval) * 8 * servers
		}
	}
	return total
}

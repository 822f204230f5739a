// Package scenario is for questions of users: a YAML file says which servers there are, who connects to them for how long, or what work requests
// are to them, what happens, and which policies are to be compared. It becomes an experiment like those of the papers.
package scenario

import (
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// Scenario is what a file says. Make it with Parse: Run takes for granted what that has checked.
type Scenario struct {
	Title   string
	Length  int64 // ns, without the warm-up
	WarmUp  int64 // ns, before anything is counted and before time 0 of the events
	Servers []Group
	Traffic Traffic

	LoadBalancers int // that take turns by counters of their own (rr, wrr, awrr), and remember connections by themselves (affinity local-table)
	TableSlots    uint32
	Policies      []Policy
	Events        []Event
	Expect        []Expectation
}

// Group is a number of equal servers: a rack, a generation of hardware.
type Group struct {
	Name   string
	Count  int
	Weight int // part of new connections that policies with weights give to one of them, and what its load is compared with

	// What requests run on.
	Cores int
	Speed float64 // of a core: work takes 1/Speed of its time
}

// Traffic is who connects. Either Rate is set, or Trace. With Work it is requests that come, each on a connection of its own.
type Traffic struct {
	Rate      float64           // connections or requests per second, Poisson
	Load      float64           // instead of Rate, until the file is read: part of what all cores can do
	Lifetimes data.Distribution // in seconds
	Trace     []Connection      // in the order of their starts
	Work      data.Distribution // of a request on a core of speed 1, in seconds; zero: only connections are known
}

// Connection is a line of a trace, in ns since the start of the simulation, warm-up included.
type Connection struct{ Start, Life int64 }

// Policy is a contender: how new connections find a server, and how later packets do.
type Policy struct {
	Name     string
	Dispatch string
	Affinity string // "": there are requests, one for each connection
	Depth    int    // affinity history: distinct owners of a slot that are remembered, the present one included
	Interval int64  // ns between reports of load: awrr, awfd, lcf
	Load     string // what those reports are of: "connections" or "cpu"
	Classes  int    // awfd: m
	Counters int    // rr, wrr, awrr: of each load balancer, which walk the round independently

	// choices
	Candidates int
	Threshold  int // of what a server has open, from which on it passes on; 0: it moves the threshold by itself
}

// Event is something that happens once, or again and again.
type Event struct {
	At    int64 // ns after the warm-up
	Every int64 // ns; 0: it happens once
	Until int64 // ns; of those that repeat

	Group         string  // whose servers; "": all
	Remove        int     // servers that get no new connections from now on; those they have go on
	Fail          int     // servers whose connections break
	Add           int     // servers; those that are away come back first, in the order in which they went
	Slow          int     // servers that other work slows down, to Speed of theirs; those that an event slowed before are fast again
	Speed         float64 // 0 to 1
	Rate          float64 // connections or requests per second from now on; below 0: unchanged
	LoadBalancers int     // from now on; 0: unchanged
}

// Expectation is a band for a measure of a policy: a claim of the file.
type Expectation struct {
	Policy    string // "": all
	Measure   string
	Low, High float64
}

// kind is what is known of the world, and so what can be measured of every policy.
type kind struct {
	measures []measure
	figures  []sim.Figure
}

type measure struct{ name, unit, what string }

// requests reports whether servers work for requests, or only have connections.
func (s *Scenario) requests() bool { return !s.Traffic.Work.IsZero() }

func (s *Scenario) kind() *kind {
	if s.requests() {
		return &ofRequests
	}
	return &ofConnections
}

// what tells users what there is.
func (s *Scenario) what() string {
	if s.requests() {
		return "requests"
	}
	return "connections"
}

func (k *kind) names() (names []string) {
	for _, m := range k.measures {
		names = append(names, m.name)
	}
	return names
}

// What a policy may be made of. Names are those of the configuration of services (docs/features/policies.md).
var (
	byTable  = []string{"maglev", "hash", "wcmp"}
	byRounds = []string{"rr", "wrr", "p2c", "least", "awrr"}
	byReport = []string{"awrr", "awfd", "lcf"}
	byTurns  = []string{"rr", "wrr", "awrr"}

	dispatches = []string{"rr", "wrr", "p2c", "least", "awrr", "awfd", "lcf", "maglev", "hash", "wcmp", "choices"}
	affinities = []string{"cookie", "hash", "history", "local-table"}
	sources    = []string{"connections", "cpu"}
)

// usesTable reports whether a policy finds the server of every packet, or at least of the first, by a table of slots.
func (p Policy) usesTable() bool {
	return slices.Contains(byTable, p.Dispatch) || p.Dispatch == "choices"
}

// takesTurns reports whether a policy walks a round by counters, of which every load balancer has its own.
func (p Policy) takesTurns() bool { return slices.Contains(byTurns, p.Dispatch) }

// knowsLoadBalancers reports whether the number of load balancers makes a difference to a policy.
func (p Policy) knowsLoadBalancers() bool { return p.takesTurns() || p.Affinity == "local-table" }

// columns are the cells of a slot.
func (p Policy) columns() int {
	if p.Dispatch == "choices" {
		return p.Candidates
	}
	return 1
}

// name is what a policy is called that its file gives no name.
func (p Policy) name() string {
	switch {
	case p.Affinity == "" && p.Load == "cpu":
		return p.Dispatch + "-cpu"
	case p.Affinity == "":
		return p.Dispatch
	case p.Affinity == "history":
		return p.Dispatch + "-history" + fmt.Sprint(p.Depth)
	}
	return p.Dispatch + "-" + p.Affinity
}

// servers returns how many there are at the start.
func (s *Scenario) servers() (count int) {
	for _, group := range s.Servers {
		count += group.Count
	}
	return count
}

// times returns how often an event happens.
func (e Event) times() int64 {
	if e.Every == 0 {
		return 1
	}
	return (e.Until-e.At)/e.Every + 1
}

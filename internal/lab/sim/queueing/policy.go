package queueing

import (
	"gonum.org/v1/gonum/floats"

	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/algo/awrr"
	"github.com/ballast-lb/ballast/internal/algo/capacity"
	"github.com/ballast-lb/ballast/internal/algo/lcf"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/machine/estimate"
)

// hashSlots of each server in the table of hash. They are as many for each: what is uneven is chance, not the table.
const hashSlots = 64

// chooser returns a policy of the data plane for servers of one size.
func chooser(name string, seed uint64, stream string, servers int) dispatch.Policy {
	p := dispatch.New(name, uint32(hashSlots*servers), random.Keyed(seed, stream))
	p.Weigh(dispatch.Alike(dispatch.Everybody(servers)))
	return p
}

func hash(seed uint64, servers int) *policy {
	return &policy{chooser: chooser("hash", seed, "hash", servers)}
}

// roundRobin is rr by a number of counters: load balancers times the counters of each.
func roundRobin(counters int) maker {
	return func(seed uint64, servers int) *policy {
		return &policy{chooser: turnsOf("rr", seed, counters, servers)}
	}
}

// turnsOf returns rr, wrr or awrr.
func turnsOf(name string, seed uint64, counters, servers int) dispatch.Policy {
	p := chooser(name, seed, "counters", servers)
	p.(dispatch.Counting).SetCounters(counters)
	return p
}

// twoChoices is p2c by the connections that the balancer counts.
func twoChoices(seed uint64, servers int) *policy {
	return &policy{chooser: chooser("p2c", seed, "choices", servers)}
}

// least is the data plane's, by the connections that the balancer counts.
func least(seed uint64, servers int) *policy {
	return &policy{chooser: chooser("least", seed, "", servers)}
}

// reported is what a load balancer compares where servers report: estimate.Reports, and what each connection adds until the next report.
type reported struct {
	chooser flows.Chooser
	loads   []int32 // in estimate.Unit
	begun   uint64  // connections since the last report
}

// Choose implements flows.Chooser.
func (r *reported) Choose(flow uint64, _ []int32) uint32 {
	server := r.chooser.Choose(flow, r.loads)
	r.loads[server] += estimate.Unit
	r.begun++
	return server
}

// comparesReports is p2c or least, compare, by what servers of one size report: how busy they were.
func comparesReports(compare dispatch.Policy, servers int, interval int64) *policy {
	everybody := dispatch.Alike(dispatch.Everybody(servers))
	r := &reported{chooser: compare, loads: make([]int32, servers)}
	var reports estimate.Reports
	intervals := 0. // before the first report
	return &policy{chooser: r, interval: interval, weigh: func(busy []float64) {
		known := make([]estimate.Reported, servers)
		for server := range known {
			known[server] = estimate.Reported{Weight: 1, TakesNew: true, Known: true, Load: busy[server]}
		}
		r.loads = reports.Loads(known, r.begun, intervals, 1, false)
		r.begun, intervals = 0, 1
		compare.Weigh(everybody) // least begins anew with these loads
	}}
}

// twoReported is p2c by what servers report.
func twoReported(interval int64) maker {
	return func(seed uint64, servers int) *policy {
		return comparesReports(chooser("p2c", seed, "choices", servers), servers, interval)
	}
}

// leastReported is least by what servers report.
func leastReported(interval int64) maker {
	return func(seed uint64, servers int) *policy {
		compare := chooser("least", seed, "", servers)
		compare.(*dispatch.Least).Step = estimate.Unit
		return comparesReports(compare, servers, interval)
	}
}

// lowestReported sends all requests to the server that has reported the lowest load, the first of several: what Cheetah (V-B) calls the least
// loaded server. Ballast has no such policy.
func lowestReported(interval int64) maker {
	return func(_ uint64, servers int) *policy {
		l := &lowest{}
		return &policy{chooser: l, interval: interval, weigh: func(busy []float64) { l.server = uint32(floats.MinIdx(busy)) }}
	}
}

// lowest is the server that has reported the lowest load.
type lowest struct{ server uint32 }

// Choose implements flows.Chooser.
func (l *lowest) Choose(uint64, []int32) uint32 { return l.server }

// weighted is awrr by a number of counters.
func weighted(interval int64, counters int) maker {
	return func(seed uint64, servers int) *policy {
		turns := turnsOf("awrr", seed, counters, servers)
		return &policy{chooser: turns, interval: interval, weigh: func(busy []float64) {
			loads := make([]awrr.Load, servers)
			for s := range loads {
				loads[s] = awrr.Load{ID: uint16(s + 1), Load: busy[s]}
			}
			turns.Weigh(awrr.Turns(loads))
		}}
	}
}

// leastCongested is lcf by what servers report: equals share.
func leastCongested(interval int64) maker {
	return func(seed uint64, servers int) *policy {
		classes := chooser("lcf", seed, "choices", servers)
		return &policy{chooser: classes, interval: interval, weigh: func(busy []float64) {
			left := make([]awfd.Available, servers)
			for s := range left {
				left[s] = awfd.Available{ID: uint16(s + 1), Capacity: capacity.FromCPU(uint16(1000*busy[s]), 1, 1)}
			}
			classes.Weigh(lcf.Weights(left))
		}}
	}
}

// maker makes a policy for servers of one size.
type maker func(seed uint64, servers int) *policy

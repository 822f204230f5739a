package queueing

import (
	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/algo/awrr"
	"github.com/ballast-lb/ballast/internal/algo/capacity"
	"github.com/ballast-lb/ballast/internal/algo/lcf"
	"github.com/ballast-lb/ballast/internal/algo/modulo"
	"github.com/ballast-lb/ballast/internal/algo/rounds"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/sim/random"
)

// hashSlots of each server in the table of hash. They are as many for each: what is uneven is chance, not the table.
const hashSlots = 64

// alike are servers of one size. Server s has the id s+1.
func alike(servers int) []model.Share {
	shares := make([]model.Share, servers)
	for s := range shares {
		shares[s] = model.Share{ID: uint16(s + 1), Weight: 1}
	}
	return shares
}

func serversOf(ids []uint16) []uint32 {
	servers := make([]uint32, len(ids))
	for i, id := range ids {
		servers[i] = uint32(id) - 1
	}
	return servers
}

// hashed is hash: the slot of a flow's number.
type hashed struct {
	table   []uint32
	numbers random.Key
}

// Choose implements flows.Chooser.
func (h *hashed) Choose(flow uint64, _ []int32) uint32 {
	return h.table[random.Below(h.numbers.At(flow), uint32(len(h.table)))]
}

func hash(seed uint64, servers int) *policy {
	table := modulo.Table(uint32(hashSlots*servers), alike(servers))
	return &policy{chooser: &hashed{serversOf(table), random.Keyed(seed, "hash")}}
}

func roundRobin(_ uint64, servers int) *policy {
	return &policy{chooser: &dispatch.Turns{Round: serversOf(rounds.Equal(alike(servers)))}}
}

// twoChoices is p2c by the connections that the balancer counts.
func twoChoices(seed uint64, servers int) *policy {
	round, _ := dispatch.Rounds(alike(servers))
	return &policy{chooser: &dispatch.TwoChoices{Round: round, Numbers: random.Keyed(seed, "choices")}}
}

// twoReported is p2c by what servers report.
func twoReported(interval int64) maker {
	return func(seed uint64, servers int) *policy {
		p := twoChoices(seed, servers)
		p.interval, p.byReports = interval, true
		return p
	}
}

// least is the data plane's, by the connections that the balancer counts.
func least(_ uint64, servers int) *policy {
	round, everybody := dispatch.Rounds(alike(servers))
	return &policy{chooser: &dispatch.Least{Round: round, Everybody: everybody}}
}

// weighted is awrr.
func weighted(interval int64) maker {
	return func(seed uint64, servers int) *policy {
		turns := &dispatch.Turns{Round: serversOf(rounds.Equal(alike(servers)))}
		return &policy{chooser: turns, interval: interval, weigh: func(busy []float64) {
			loads := make([]awrr.Load, servers)
			for s := range loads {
				loads[s] = awrr.Load{ID: uint16(s + 1), Load: busy[s]}
			}
			turns.Round = serversOf(rounds.Weighted(awrr.Turns(loads)))
		}}
	}
}

// leastReported sends all requests to the server that has reported the lowest load, the first of several: what Cheetah (V-B) calls the least
// loaded server. Ballast has no such policy.
func leastReported(interval int64) maker {
	return func(uint64, int) *policy {
		return &policy{chooser: lowest{}, interval: interval, byReports: true}
	}
}

type lowest struct{}

// Choose implements flows.Chooser.
func (lowest) Choose(_ uint64, told []int32) uint32 {
	best := 0
	for server, load := range told {
		if load < told[best] {
			best = server
		}
	}
	return uint32(best)
}

// leastCongested is lcf by what servers report: equals share.
func leastCongested(interval int64) maker {
	return func(seed uint64, servers int) *policy {
		classes := &dispatch.Classes{Classes: awfd.NewClasses(alike(servers)), Numbers: random.Keyed(seed, "choices")}
		return &policy{chooser: classes, interval: interval, weigh: func(busy []float64) {
			left := make([]awfd.Available, servers)
			for s := range left {
				left[s] = awfd.Available{ID: uint16(s + 1), Capacity: capacity.FromCPU(uint16(1000*busy[s]), 1, 1)}
			}
			classes.Classes = awfd.NewClasses(lcf.Weights(left))
		}}
	}
}

// maker makes a policy for servers of one size.
type maker func(seed uint64, servers int) *policy

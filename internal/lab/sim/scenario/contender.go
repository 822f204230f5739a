package scenario

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/algo/awrr"
	"github.com/ballast-lb/ballast/internal/algo/capacity"
	"github.com/ballast-lb/ballast/internal/algo/lcf"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

// chooserOf returns the dispatch of a policy. Numbers are drawn from a stream of each kind of policy.
func chooserOf(s *Scenario, policy Policy, seed uint64) dispatch.Policy {
	stream := "hash"
	switch policy.Dispatch {
	case "choices":
		return offersOf(s, policy, seed)
	case "rr", "wrr", "awrr":
		stream = "counters"
	case "p2c":
		stream = "choices"
	case "awfd", "lcf":
		stream = "classes"
	}
	chooser := dispatch.New(policy.Dispatch, s.TableSlots, random.Keyed(seed, stream))
	policy.setLoadBalancers(chooser, s.LoadBalancers)
	return chooser
}

// setLoadBalancers has a policy that takes turns do so by the counters of a number of load balancers.
func (p Policy) setLoadBalancers(chooser dispatch.Policy, count int) {
	if turns, ok := chooser.(dispatch.Counting); ok {
		turns.SetCounters(count * p.Counters)
	}
}

// offersOf returns choices.
func offersOf(s *Scenario, policy Policy, seed uint64) *dispatch.Offers {
	return dispatch.NewOffers(policy.Candidates, uint32(policy.Threshold), s.TableSlots, random.Keyed(seed, "hash"))
}

// contender is a policy at work in a world of connections.
type contender struct {
	policy  Policy
	slots   uint32
	nodes   int // load balancers
	chooser dispatch.Policy
}

// contenderOf returns a policy, and completes what a world with the servers of a pool is made of.
func contenderOf(s *Scenario, policy Policy, p *pool, config *flows.Config) *contender {
	c := &contender{policy: policy, slots: s.TableSlots, nodes: s.LoadBalancers}
	if policy.Affinity == "cookie" {
		c.chooser = chooserOf(s, policy, config.Seed)
		c.chooser.Weigh(c.weights(p, make([]int32, len(p.active))))
		config.Chooser = c.chooser
		return c
	}
	config.Table = &flows.Table{Owners: c.owners(p), Depth: 1}
	if policy.Dispatch == "choices" {
		config.Table.Choices, config.Table.Accepts = policy.Candidates, offersOf(s, policy, config.Seed).Accepts
	}
	switch policy.Affinity {
	case "history":
		config.Table.Depth = policy.Depth
	case "local-table":
		config.Table.Nodes = routes(c.nodes)
	}
	return c
}

// changed is told that servers came or went, or their loads were reported.
func (c *contender) changed(w *flows.World, p *pool) {
	if c.chooser == nil {
		w.PlaceAll(c.owners(p))
		return
	}
	c.chooser.Weigh(c.weights(p, w.Loads()))
}

// owners are those of the cells of a table.
func (c *contender) owners(p *pool) []uint32 {
	if c.policy.Dispatch == "choices" {
		return dispatch.Candidates(c.slots, c.policy.Candidates, p.shares())
	}
	return dispatch.Owners(c.policy.Dispatch, c.slots, p.shares())
}

// weights are what a policy makes of connections that are open now, or the configured ones.
func (c *contender) weights(p *pool, loads []int32) []model.Share {
	shares := p.shares()
	if !c.policy.follows() {
		return shares
	}
	var reports []awrr.Load
	var available []awfd.Available
	for _, share := range shares {
		load, weight := float64(loads[share.ID-1]), float64(share.Weight)
		reports = append(reports, awrr.Load{ID: share.ID, Load: max(load, 1) / weight})
		available = append(available, awfd.Available{ID: share.ID, Capacity: capacity.FromQueue(load, weight)})
	}
	switch c.policy.Dispatch {
	case "awrr":
		return awrr.Turns(reports)
	case "awfd":
		return awfd.Weights(available, uint8(c.policy.Classes))
	}
	return lcf.Weights(available)
}

// routeCells are the cells by which routers spread flows over load balancers.
const routeCells = 4093

// routes returns which of n load balancers each cell leads to: routers that know no better, flow i to next hop i mod n.
func routes(n int) []uint32 {
	return dispatch.Owners("hash", routeCells, dispatch.Alike(dispatch.Everybody(n)))
}

// follows reports whether a policy is told loads at intervals.
func (p Policy) follows() bool { return slices.Contains(byReport, p.Dispatch) }

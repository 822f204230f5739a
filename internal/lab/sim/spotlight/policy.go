package spotlight

import (
	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/algo/lcf"
	"github.com/ballast-lb/ballast/internal/algo/modulo"
	"github.com/ballast-lb/ballast/internal/algo/wcmp"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

// policy is how flows are dispatched: by a table that stays as it is, or by weights that follow the available capacity.
type policy struct {
	table      []uint16 // owners of slots; nil: it follows
	weigh      func([]awfd.Available) []model.Share
	intervalNS int64 // between polls; 0: before every flow
}

// ecmp has all instances alike.
func ecmp(n int) policy { return policy{table: modulo.Table(model.DefaultSlots, sized(n))} }

// weighted knows the size of every instance.
func weighted(n int) policy { return policy{table: wcmp.Table(model.DefaultSlots, sized(n))} }

func sized(n int) []model.Share {
	shares := make([]model.Share, n)
	for i := range shares {
		shares[i] = model.Share{ID: uint16(i + 1), Weight: size(i)}
	}
	return shares
}

// adaptive is AWFD with the largest weight m.
func adaptive(m uint8, intervalNS int64) policy {
	return policy{weigh: func(left []awfd.Available) []model.Share { return awfd.Weights(left, m) }, intervalNS: intervalNS}
}

func leastCongested(intervalNS int64) policy {
	return policy{weigh: lcf.Weights, intervalNS: intervalNS}
}

// heuristic is Spotlight's "heuristic sub-optimal approach": least congested first with updates that take no time.
func heuristic() policy { return leastCongested(0) }

// chooser is what a load balancer dispatches the flows of a service by.
type chooser struct {
	table   []uint16     // not nil: owners of slots
	classes awfd.Classes // else
}

// choose returns the index of the server that a flow's number leads to.
func (c *chooser) choose(number uint32) int {
	if c.table != nil {
		return int(c.table[random.Below(uint64(number)<<32, uint32(len(c.table)))]) - 1
	}
	return int(c.classes.Choose(number)) - 1
}

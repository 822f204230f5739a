package scenario

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/algo/awrr"
	"github.com/ballast-lb/ballast/internal/algo/capacity"
	"github.com/ballast-lb/ballast/internal/algo/lcf"
	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/algo/modulo"
	"github.com/ballast-lb/ballast/internal/algo/rounds"
	"github.com/ballast-lb/ballast/internal/algo/wcmp"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/sim/flows"
	"github.com/ballast-lb/ballast/internal/sim/random"
)

// contender is a policy at work in a world.
type contender interface {
	// config completes what the world is made of.
	config(c *flows.Config)
	// changed is told that servers came or went, or their loads were reported.
	changed(w *flows.World, p *pool)
}

// contenderOf returns a policy for the servers of a pool.
func contenderOf(s *Scenario, policy Policy, p *pool, seed uint64) contender {
	if policy.usesTable() {
		table := &tableContender{policy: policy, slots: s.TableSlots, pool: p, nodes: s.LoadBalancers}
		if policy.Affinity == "cookie" {
			return &placedContender{tableContender: table, hash: random.Keyed(seed, "hash")}
		}
		return table
	}
	switch policy.Dispatch {
	case "p2c":
		c := &twoContender{dispatch.TwoChoices{Numbers: random.Keyed(seed, "choices")}}
		c.changed(nil, p)
		return c
	case "least":
		c := &leastContender{}
		c.changed(nil, p)
		return c
	case "awfd", "lcf":
		c := &classContender{policy: policy, classes: dispatch.Classes{Numbers: random.Keyed(seed, "classes")}}
		c.weigh(p, make([]int32, len(p.active)))
		return c
	}
	c := &turnContender{policy: policy}
	c.turn(p, make([]int32, len(p.active)))
	return c
}

// tableContender finds the server of every packet by a table.
type tableContender struct {
	policy Policy
	slots  uint32
	pool   *pool
	nodes  int
}

// owners returns the server of every slot.
func (c *tableContender) owners(p *pool) []uint32 {
	fill := map[string]func(uint32, []model.Share) []uint16{"maglev": maglev.Table, "hash": modulo.Table, "wcmp": wcmp.Table}[c.policy.Dispatch]
	owners := make([]uint32, c.slots)
	for i, id := range fill(c.slots, p.shares()) {
		owners[i] = uint32(id) - 1
	}
	return owners
}

func (c *tableContender) config(config *flows.Config) {
	config.Table = &flows.Table{Owners: c.owners(c.pool), Depth: 1}
	switch c.policy.Affinity {
	case "history":
		config.Table.Depth = c.policy.Depth
	case "local-table":
		config.Table.Nodes = routes(c.nodes)
	}
}

func (c *tableContender) changed(w *flows.World, p *pool) { w.PlaceAll(c.owners(p)) }

// routeCells are the cells by which routers spread flows over load balancers.
const routeCells = 4093

// routes returns which of n load balancers each cell leads to: routers that know no better, flow i to next hop i mod n.
func routes(n int) []uint32 {
	shares := make([]model.Share, n)
	for i := range shares {
		shares[i] = model.Share{ID: uint16(i + 1), Weight: 1}
	}
	nodes := make([]uint32, routeCells)
	for i, id := range modulo.Table(routeCells, shares) {
		nodes[i] = uint32(id) - 1
	}
	return nodes
}

// placedContender looks into a table once, and the connection carries what it found.
type placedContender struct {
	*tableContender
	hash random.Key
	now  []uint32
}

func (c *placedContender) config(config *flows.Config) {
	c.now = c.owners(c.pool)
	config.Chooser = c
}

func (c *placedContender) changed(_ *flows.World, p *pool) { c.now = c.owners(p) }

// Choose implements flows.Chooser: where affinity hash would lead the flow at this moment.
func (c *placedContender) Choose(flow uint64, _ []int32) uint32 {
	return c.now[random.Below(c.hash.At(flow), uint32(len(c.now)))]
}

// turnContender walks a round: rr, wrr, awrr.
type turnContender struct {
	policy Policy
	turns  dispatch.Turns
}

func (c *turnContender) config(config *flows.Config) { config.Chooser = &c.turns }

func (c *turnContender) changed(w *flows.World, p *pool) { c.turn(p, w.Loads()) }

func (c *turnContender) turn(p *pool, loads []int32) {
	shares := p.shares()
	var round []uint16
	switch c.policy.Dispatch {
	case "rr":
		round = rounds.Equal(shares)
	case "wrr":
		round = rounds.Weighted(shares)
	case "awrr":
		var reports []awrr.Load
		for _, share := range shares {
			load := max(float64(loads[share.ID-1]), 1)
			reports = append(reports, awrr.Load{ID: share.ID, Load: load / float64(share.Weight)})
		}
		round = rounds.Weighted(awrr.Turns(reports))
	}
	c.turns.Round = c.turns.Round[:0]
	for _, id := range round {
		c.turns.Round = append(c.turns.Round, uint32(id)-1)
	}
}

// twoContender compares two servers: p2c.
type twoContender struct{ dispatch.TwoChoices }

func (c *twoContender) config(config *flows.Config) { config.Chooser = c }

func (c *twoContender) changed(_ *flows.World, p *pool) { c.Round, _ = dispatch.Rounds(p.shares()) }

// leastContender compares all servers, or some of many: least.
type leastContender struct{ dispatch.Least }

func (c *leastContender) config(config *flows.Config) { config.Chooser = c }

func (c *leastContender) changed(_ *flows.World, p *pool) {
	c.Round, c.Everybody = dispatch.Rounds(p.shares())
}

// classContender draws a server by classes of what is available: awfd, lcf.
type classContender struct {
	policy  Policy
	classes dispatch.Classes
}

func (c *classContender) config(config *flows.Config) { config.Chooser = &c.classes }

func (c *classContender) changed(w *flows.World, p *pool) { c.weigh(p, w.Loads()) }

func (c *classContender) weigh(p *pool, loads []int32) {
	var available []awfd.Available
	for _, share := range p.shares() {
		queue := float64(loads[share.ID-1])
		available = append(available, awfd.Available{ID: share.ID, Capacity: capacity.FromQueue(queue, float64(share.Weight))})
	}
	weights := lcf.Weights(available)
	if c.policy.Dispatch == "awfd" {
		weights = awfd.Weights(available, uint8(c.policy.Classes))
	}
	c.classes.Classes = awfd.NewClasses(weights)
}

// follows tells whether a policy is told loads at intervals.
func (p Policy) follows() bool { return slices.Contains(byReport, p.Dispatch) }

package flows

import (
	"fmt"
	"math/bits"

	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// tableSteerer finds the server of a connection by its hash, when it arrives and when it ends.
type tableSteerer struct {
	world    *World
	owners   owners
	nodes    *owners // nil: load balancers do not matter
	buckets  uint32
	choices  uint32
	accepts  func(server uint32, load int32) bool
	bucketOf random.Key
	nodeOf   random.Key
	flowBits uint     // of what the queue keeps of a flow: its number; above: which candidate took it
	failed   bool     // some server has
	failedAt []uint64 // by server: number of the first flow after its last failure; 0: it never failed
	order    uint32   // of the latest change
	longest  int64    // ns, life of a connection
	forgotAt int64    // ns, when changes were last forgotten
	forgot   uint64   // number of the next flow then

	steps, nodeSteps []step // to be reused
}

func newTableSteerer(w *World, t Table) *tableSteerer {
	s := &tableSteerer{
		world: w, owners: newOwners(t.Owners), choices: uint32(max(t.Choices, 1)), accepts: t.Accepts,
		longest:  int64(w.config.Durations.At(1)*second) + 1,
		bucketOf: random.Keyed(w.config.Seed, "hash"), nodeOf: random.Keyed(w.config.Seed, "node hash"),
	}
	s.flowBits = 32 - uint(bits.Len32(s.choices-1))
	s.buckets = uint32(len(t.Owners)) / s.choices
	if t.Depth < 0 || t.Depth > MaxDepth {
		panic(fmt.Sprintf("flows: a history of %d: at most %d are told apart", t.Depth, MaxDepth))
	}
	if s.choices > 4 || s.buckets == 0 || len(t.Owners)%int(s.choices) != 0 {
		panic("flows: a table needs whole buckets of 1 to 4 cells")
	}
	if t.Nodes != nil {
		nodes := newOwners(t.Nodes)
		s.nodes = &nodes
	}
	return s
}

func (s *tableSteerer) addServer() { s.failedAt = append(s.failedAt, 0) }

func (s *tableSteerer) fail(server uint32) { s.failed, s.failedAt[server] = true, s.world.flow }

func (s *tableSteerer) cell(flow uint64, choice uint32) uint32 {
	return random.Below(s.bucketOf.At(flow), s.buckets)*s.choices + choice
}

func (s *tableSteerer) arrive(flow uint64) (server, payload uint32) {
	s.forgetAtTimes()
	first := s.cell(flow, 0)
	choice := uint32(0)
	if s.accepts != nil {
		for ; choice < s.choices-1; choice++ {
			if candidate := s.owners.cells[first+choice].owner; s.accepts(candidate, s.world.loads[candidate]) {
				break
			}
		}
	}
	return s.owners.cells[first+choice].owner, s.payload(flow, choice)
}

func (s *tableSteerer) payload(flow uint64, choice uint32) uint32 {
	return uint32(flow)&(1<<s.flowBits-1) | choice<<s.flowBits
}

// age returns how many flows have arrived since the one of a payload, itself included.
func (s *tableSteerer) age(payload uint32) uint32 {
	return (uint32(s.world.flow) - payload) & (1<<s.flowBits - 1)
}

func (s *tableSteerer) end(payload uint32) (server uint32, depth int, gone bool) {
	age := s.age(payload)
	flow := s.world.flow - uint64(age)
	return s.judge(flow, age, s.cell(flow, payload>>s.flowBits))
}

// judge tells the server of a flow that ends, and what would have kept it.
func (s *tableSteerer) judge(flow uint64, age, cell uint32) (server uint32, depth int, gone bool) {
	server, depth = s.owners.cells[cell].owner, 1
	if s.owners.changedSince(cell, age, s.world.flow) {
		server, s.steps = s.owners.since(cell, age, s.world.flow, s.steps)
		if s.nodes == nil {
			depth = s.depthOfLife(server)
		} else {
			depth = s.depthAtNodes(server, flow, age)
		}
	}
	return server, depth, flow < s.failedAt[server]
}

// depthOfLife returns how deep a history has to be to have had the server after each of the steps.
func (s *tableSteerer) depthOfLife(server uint32) int {
	deepest := 1
	for i := range s.steps {
		deepest = max(deepest, rank(server, s.steps[i:]))
	}
	return deepest
}

// depthAtNodes returns how deep a history has to be to have had the server whenever the flow came to a load balancer that did not know it.
func (s *tableSteerer) depthAtNodes(server uint32, flow uint64, age uint32) int {
	deepest := 1
	node := random.Below(s.nodeOf.At(flow), uint32(len(s.nodes.cells)))
	var first uint32
	first, s.nodeSteps = s.nodes.since(node, age, s.world.flow, s.nodeSteps)
	for i := len(s.nodeSteps) - 1; i >= 0; i-- {
		if s.knewIt(first, i) {
			continue
		}
		latest := 0 // of the steps that the table had made by then
		for latest < len(s.steps) && int32(s.steps[latest].order-s.nodeSteps[i].order) > 0 {
			latest++
		}
		deepest = max(deepest, rank(server, s.steps[latest:]))
	}
	return deepest
}

// knewIt reports whether the load balancer of a step had the flow before.
func (s *tableSteerer) knewIt(first uint32, at int) bool {
	for _, earlier := range s.nodeSteps[at+1:] {
		if earlier.owner == s.nodeSteps[at].owner {
			return true
		}
	}
	return first == s.nodeSteps[at].owner
}

// forgetAtTimes forgets once in the longest life.
func (s *tableSteerer) forgetAtTimes() {
	if s.world.now-s.forgotAt > s.longest {
		s.forget()
	}
}

// forget drops changes that no living flow has seen: those before it was last called, if that is longer ago than any life.
func (s *tableSteerer) forget() {
	now := s.world.flow
	age := uint32(now - s.forgot)
	s.owners.forget(now, age)
	if s.nodes != nil {
		s.nodes.forget(now, age)
	}
	s.forgot, s.forgotAt = now, s.world.now
}

// Place makes a server the owner of a cell from now on. Only for worlds with a table.
func (w *World) Place(cell int, server uint32) {
	s := w.steer.(*tableSteerer)
	s.order++
	s.owners.place(cell, server, w.flow, s.order)
}

// PlaceAll makes owners those of all cells from now on.
func (w *World) PlaceAll(owners []uint32) {
	for cell, server := range owners {
		w.Place(cell, server)
	}
}

// Owner returns the server that owns a cell. Only for worlds with a table.
func (w *World) Owner(cell int) uint32 { return w.steer.(*tableSteerer).owners.cells[cell].owner }

// PlaceNode leads the connections of a cell of Table.Nodes through another load balancer from now on.
func (w *World) PlaceNode(cell int, node uint32) {
	s := w.steer.(*tableSteerer)
	s.order++
	s.nodes.place(cell, node, w.flow, s.order)
}

package flows

import (
	"fmt"
	"math/bits"

	"github.com/ballast-lb/ballast/internal/sim/random"
)

// batch is how many connections go through the table together, so that the memory answers for all of them at once.
const batch = 256

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

// loadBlind tells that nothing depends on loads, so that arrivals and ends need not take turns.
func (s *tableSteerer) loadBlind() bool { return s.choices == 1 }

func (s *tableSteerer) addServer() { s.failedAt = append(s.failedAt, 0) }

func (s *tableSteerer) fail(server uint32) { s.failedAt[server] = s.world.flow }

func (s *tableSteerer) cell(flow uint64, choice uint32) uint32 {
	return random.Below(s.bucketOf.At(flow), s.buckets)*s.choices + choice
}

func (s *tableSteerer) arrive(flow uint64) (server, payload uint32) {
	if s.world.now-s.forgotAt > s.longest {
		s.forget()
	}
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

// knewIt tells whether the load balancer of a step had the flow before.
func (s *tableSteerer) knewIt(first uint32, at int) bool {
	for _, earlier := range s.nodeSteps[at+1:] {
		if earlier.owner == s.nodeSteps[at].owner {
			return true
		}
	}
	return first == s.nodeSteps[at].owner
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

// runBatches is runEvents where the order of arrivals and ends does not matter.
func (w *World) runBatches(s *tableSteerer, until int64) {
	window := int64(max(1, batch*16/max(w.rate, 1e-9)))
	for w.now < until {
		limit := until
		if until-w.now > window {
			limit = w.now + window
		}
		for w.next < float64(limit) {
			w.admitBatch(s, float64(limit))
		}
		for w.endBatch(s, limit) == batch {
		}
		w.now = limit
	}
}

// admitBatch lets the next connections begin that do so before limit.
func (w *World) admitBatch(s *tableSteerer, limit float64) {
	var found [batch]uint32
	if w.now-s.forgotAt > s.longest {
		s.forget()
	}
	n := 0
	for ; n < batch && w.next < limit; n++ {
		found[n] = s.cell(w.flow, 0)
		life := w.lives.At(w.lifeOf.Float64At(w.flow))
		w.queue.Push(int64(w.next)+int64(life), s.payload(w.flow, 0))
		w.flow++
		w.next += w.gaps.Exp(1) / w.rate
	}
	for i, cell := range found[:n] {
		found[i] = s.owners.cells[cell].owner
	}
	for _, server := range found[:n] {
		w.loads[server]++
	}
	w.live += int64(n)
	w.stats.Arrived += int64(n)
}

// endBatch lets the next connections end that do so before limit, and returns how many.
func (w *World) endBatch(s *tableSteerer, limit int64) int {
	var payloads, found [batch]uint32
	var cells [batch]cell
	n := w.queue.BatchBefore(limit, payloads[:])
	for i, payload := range payloads[:n] {
		found[i] = s.cell(w.flow-uint64(s.age(payload)), 0)
	}
	for i, at := range found[:n] {
		cells[i] = s.owners.cells[at]
	}
	for i, payload := range payloads[:n] {
		age := s.age(payload)
		server, depth, gone := cells[i].owner, 1, w.flow-uint64(age) < s.failedAt[cells[i].owner]
		if uint32(w.flow)-cells[i].changed < age {
			server, depth, gone = s.judge(w.flow-uint64(age), age, found[i])
		}
		if gone {
			continue
		}
		w.loads[server]--
		w.live--
		w.stats.Depths[depth]++
	}
	return n
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

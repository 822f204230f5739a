package flows

import "github.com/ballast-lb/ballast/internal/lab/sim/event"

// Implementation constants: what the queue keeps of a connection that carries its server.
const (
	serverBits = 24
	serverMask = 1<<serverBits - 1
)

// Follower is a Chooser that is told when loads fall, so that it need not look at all of them for each connection.
type Follower interface {
	Chooser
	// Ended tells that a server has one connection less than load.
	Ended(server uint32, load int32)
}

// Oblivious is a Chooser that does not look at loads: it makes no difference to it when connections end.
type Oblivious interface {
	Chooser
	// ChooseAll chooses for flows that follow one another.
	ChooseAll(first uint64, servers []uint32)
}

// choiceSteerer asks a policy once for each connection. Changes of servers break none, only their failures do.
type choiceSteerer struct {
	chooser   Chooser
	follower  Follower  // the chooser, if it is one; else nil
	oblivious Oblivious // the same
	world     *World
	failures  []uint32 // by server: how often it has failed, in the bits above serverBits; the last 256 times are told apart
}

func newChoiceSteerer(w *World, chooser Chooser) *choiceSteerer {
	follower, _ := chooser.(Follower)
	oblivious, _ := chooser.(Oblivious)
	return &choiceSteerer{chooser: chooser, follower: follower, oblivious: oblivious, world: w}
}

func (s *choiceSteerer) arrive(flow uint64) (server, payload uint32) {
	server = s.chooser.Choose(flow, s.world.loads)
	return server, server | s.failures[server]
}

func (s *choiceSteerer) end(payload uint32) (server uint32, depth int, gone bool) {
	server = payload & serverMask
	gone = payload&^serverMask != s.failures[server]
	if s.follower != nil && !gone {
		s.follower.Ended(server, s.world.loads[server])
	}
	return server, 1, gone
}

// endAmong is World.endAmong where nobody but the chooser wants to know the loads. What is left to do is so little that calls would be a part of it.
func (s *choiceSteerer) endAmong(ends []event.Event, begun int) int {
	w, loads, survived := s.world, s.world.loads, 0
	for _, e := range ends {
		for at := w.queue.At(e); w.drawn.at[begun] <= at; begun++ {
			server := s.chooser.Choose(w.flow, loads)
			w.drawn.payloads[begun] = server | s.failures[server]
			loads[server]++
			w.flow++
		}
		server := e.Payload() & serverMask
		if e.Payload()&^serverMask == s.failures[server] {
			loads[server]--
			survived++
		}
	}
	w.survive(survived)
	return begun
}

func (s *choiceSteerer) fail(server uint32) {
	s.failures[server] += 1 << serverBits
	for load := s.world.loads[server]; s.follower != nil && load > 0; load-- {
		s.follower.Ended(server, load)
	}
}

func (s *choiceSteerer) addServer() {
	if len(s.failures) > serverMask {
		panic("flows: more servers than a connection can tell apart")
	}
	s.failures = append(s.failures, 0)
}

// arriveAll implements batcher.
func (s *choiceSteerer) arriveAll(first uint64, payloads []uint32) {
	s.oblivious.ChooseAll(first, payloads)
	if !s.world.counting { // nor has any server failed
		return
	}
	for i, server := range payloads {
		s.world.loads[server]++
		payloads[i] = server | s.failures[server]
	}
}

// endAll implements batcher.
func (s *choiceSteerer) endAll(events []event.Event) {
	if !s.world.counting {
		s.world.survive(len(events))
		return
	}
	survived := 0
	for _, e := range events {
		server := e.Payload() & serverMask
		if e.Payload()&^serverMask == s.failures[server] {
			s.world.loads[server]--
			survived++
		}
	}
	s.world.survive(survived)
}

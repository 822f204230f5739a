package check

import (
	"bytes"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/algo/siphash"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// Small is a fleet so small that all its states can be visited. It has one key; time stands still; a message may stay on its way for
// ever, which is as good as lost.
//
// Two things are left out, which only random schedules have: messages to the controller and answers arrive at once, and of the news that
// a view is synced the same is true.
type Small struct {
	Name         string
	Nodes, Chain int
	Key          ring.Key
	Direct       bool     // DirectToHead
	Packets      []uint16 // nodes at which they arrive, in this order, at any times; 0: each
	Repeats      int      // messages that are delivered and stay on their way
	Crashes      int
	Restarts     int              // of crashed nodes
	Retries      int              // of nodes, of what was not acknowledged
	SameViews    bool             // a new view is at all nodes at once
	Changes      []replica.Change // in this order, at any times

	Slow       bool // takes longer than a few seconds
	Without    []string
	LoseCommon bool
	Limit      int // states to visit at most; 0: DefaultLimit
}

// DefaultLimit is how many states are visited unless one says.
const DefaultLimit = 500_000

// Visited is what a search has done.
type Visited struct {
	States  int
	Whole   bool   // all states that there are
	Depth   int    // steps to the last one
	Example *Trace // the shortest counterexample, or nil
}

// state is a world that was reached, and how.
type state struct {
	world *world // nil once its successors are known
	from  int32
	step  Step
	depth int32
	left  budget
}

// budget is what may still happen.
type budget struct{ packets, repeats, crashes, restarts, retries, changes int }

// search is a breadth-first search.
type search struct {
	small   *Small
	setup   *Setup
	states  []state
	seen    map[[2]uint64]struct{}
	texts   [][]byte // of messages; kept for its memory
	text    []byte
	example *Trace
}

// Search visits all states, nearest first, until a promise is broken or there are too many.
func (s Small) Search() Visited {
	config := replica.DefaultConfig(s.Chain)
	config.DirectToHead, config.EvenTo, config.Timeout = s.Direct, 0, 1<<20
	switchOff(&config.Rules, s.Without)
	setup := &Setup{Config: config, Nodes: s.Nodes, Keys: []ring.Key{s.Key}, LoseCommon: s.LoseCommon}
	q := &search{small: &s, setup: setup, seen: map[[2]uint64]struct{}{}}
	q.reach(newWorld(setup), -1, Step{}, budget{len(s.Packets), s.Repeats, s.Crashes, s.Restarts, s.Retries, len(s.Changes)})
	limit, at := s.Limit, 0
	if limit == 0 {
		limit = DefaultLimit
	}
	for ; at < len(q.states) && q.example == nil && len(q.states) < limit; at++ {
		q.expand(int32(at))
		q.states[at].world = nil
	}
	return Visited{
		States: len(q.states), Whole: at == len(q.states), Depth: int(q.states[len(q.states)-1].depth), Example: q.example,
	}
}

// reach adds a world, unless one like it was reached before.
func (q *search) reach(w *world, from int32, step Step, left budget) {
	q.hurry(w)
	if w.violation == nil && w.controller.Phase() == replica.Synced && !slices.Contains(w.crashed, true) {
		w.checkTuples()
	}
	depth := int32(0)
	if from >= 0 {
		depth = q.states[from].depth + 1
	}
	if w.violation != nil {
		q.states = append(q.states, state{from: from, step: step, depth: depth})
		q.example = q.trace(*w.violation)
		return
	}
	if w.keys[0].void {
		return
	}
	key := q.digest(w, left)
	if _, old := q.seen[key]; old {
		return
	}
	q.seen[key] = struct{}{}
	q.states = append(q.states, state{world: w, from: from, step: step, depth: depth, left: left})
}

// expand does every step that is possible in a state.
func (q *search) expand(from int32) {
	w, left := q.states[from].world, q.states[from].left
	try := func(step Step, at int, left budget) {
		next := w.clone()
		if q.example == nil && next.do(&step, at) {
			q.reach(next, from, step, left)
		}
	}
	for at := range w.messages {
		m := w.messages[at].Message
		try(Step{Action: Deliver, Message: *m}, at, left)
		if left.repeats > 0 {
			fewer := left
			fewer.repeats--
			try(Step{Action: Repeat, Message: *m}, at, fewer)
		}
	}
	for id := 1; id < len(w.nodes); id++ {
		fewer := left
		running := w.nodes[id] != nil
		switch {
		case running && q.arrives(uint16(id), left):
			fewer.packets--
			try(Step{Action: Packet, Node: uint16(id), Owner: w.owners + 1}, 0, fewer)
		case !running && w.crashed[id] && left.restarts > 0:
			fewer.restarts--
			try(Step{Action: Restart, Node: uint16(id)}, 0, fewer)
		}
		if fewer = left; running && left.crashes > 0 {
			fewer.crashes--
			try(Step{Action: Crash, Node: uint16(id)}, 0, fewer)
		}
		if fewer = left; running && left.retries > 0 {
			fewer.retries--
			try(Step{Action: RetryNode, Node: uint16(id)}, 0, fewer)
		}
	}
	if done := len(q.small.Changes) - left.changes; left.changes > 0 {
		left.changes--
		try(Step{Action: Change, Change: q.small.Changes[done]}, 0, left)
	}
}

// arrives reports whether the next packet may arrive at a node.
func (q *search) arrives(id uint16, left budget) bool {
	if left.packets == 0 {
		return false
	}
	at := q.small.Packets[len(q.small.Packets)-left.packets]
	return at == 0 || at == id
}

// hurry delivers what arrives at once, and leaves out what no node would heed.
func (q *search) hurry(w *world) {
	for at := 0; at < len(w.messages) && w.violation == nil; {
		m := w.messages[at].Message
		if m.To != replica.None && !q.atOnce(w, m) {
			at++
			continue
		}
		w.give(w.remove(at))
		at = 0
	}
}

// atOnce reports whether a message to a node needs not wait: it is an answer, or old, or nothing new but that the view is synced.
func (q *search) atOnce(w *world, m *replica.Message) bool {
	node := w.nodes[m.To]
	if node == nil || m.Kind == replica.Owns {
		return true
	}
	view, _ := node.View()
	switch m.Kind {
	case replica.NewView:
		return m.View <= view || q.small.SameViews
	case replica.WhoOwns, replica.Write:
		return m.View < view && q.setup.Config.Rules.CheckView && !q.setup.Config.Rules.AskAgain
	case replica.Copy:
		return m.View < view && q.setup.Config.Rules.CheckView
	}
	return m.View < view && m.Kind == replica.StartSync
}

// clone returns a world that goes its own way.
func (w *world) clone() *world {
	copied := *w
	copied.nodes, copied.crashed = slices.Clone(w.nodes), slices.Clone(w.crashed)
	copied.messages, copied.keys = slices.Clone(w.messages), slices.Clone(w.keys)
	copied.shared = true
	return &copied
}

// digest is the same for worlds with the same future. By chance two others have the same one with a probability below 1e-26 among a
// million.
func (q *search) digest(w *world, left budget) [2]uint64 {
	text := w.controller.Append(q.text[:0])
	for id := range w.nodes {
		if w.nodes[id] != nil {
			text = w.nodes[id].Append(text)
		}
		text = append(text, flag(w.crashed[id]))
	}
	for len(q.texts) < len(w.messages) {
		q.texts = append(q.texts, nil)
	}
	texts := q.texts[:len(w.messages)]
	for i := range w.messages {
		texts[i] = w.messages[i].Append(texts[i][:0])
	}
	slices.SortFunc(texts, bytes.Compare)
	for i := range texts {
		text = append(text, texts[i]...)
	}
	text = append(text, byte(w.owners), byte(w.keys[0].owner), byte(left.packets), byte(left.repeats), byte(left.crashes),
		byte(left.restarts), byte(left.retries), byte(left.changes))
	q.text = text
	return [2]uint64{siphash.Sum13(1, 2, text), siphash.Sum13(3, 4, text)}
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// trace returns the steps to the last state.
func (q *search) trace(violation Violation) *Trace {
	t := &Trace{setup: q.setup, Violation: violation}
	for at := int32(len(q.states) - 1); q.states[at].from >= 0; at = q.states[at].from {
		t.Steps = append(t.Steps, q.states[at].step)
	}
	slices.Reverse(t.Steps)
	return t
}

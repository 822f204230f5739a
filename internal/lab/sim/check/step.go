package check

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// Action is what happens in a step.
type Action uint8

// All actions.
const (
	Packet            Action = iota + 1 // of connection Key arrives at Node, which proposes Owner
	Deliver                             // Message
	Lose                                // Message
	Repeat                              // Message is delivered and is still on its way
	Crash                               // Node
	Restart                             // Node, that has crashed
	Change                              // of the list
	RetryNode                           // Node sends again
	RetryController                     // sends again
	RestartController                   // goes on from what it has saved
	Tick                                // a part of a period passes
	Settle                              // what has crashed is started, all is delivered and sent again until all is synced; then all nodes ask
)

// Step is one step of a schedule.
type Step struct {
	Action  Action
	Node    uint16
	Key     int
	Owner   replica.Owner
	Message replica.Message
	Change  replica.Change
}

// do does a step with the at-th message, if it is about one, and reports whether it could be done.
func (w *world) do(step *Step, at int) bool {
	switch step.Action {
	case Packet:
		w.packet(step.Node, step.Key, step.Owner)
	case Deliver:
		w.give(w.remove(at))
	case Lose:
		w.remove(at)
	case Repeat:
		w.give(w.messages[at].Message)
	case Crash:
		return w.crash(step.Node)
	case Restart:
		return w.restart(step.Node)
	case Change:
		return w.change(step.Change)
	case RetryNode:
		w.retryNode(step.Node)
	case RetryController:
		w.retryController()
	case RestartController:
		w.restartController()
	case Tick:
		w.tick()
	case Settle:
		w.settle()
	}
	return true
}

// find returns the index of the message that a step is about, 0 if it is about none, or -1 if it is not on its way.
func (w *world) find(step *Step) int {
	if step.Action != Deliver && step.Action != Lose && step.Action != Repeat {
		return 0
	}
	want := step.Message.Append(nil)
	var text []byte
	for i := range w.messages {
		text = w.messages[i].Append(text[:0])
		if bytes.Equal(text, want) {
			return i
		}
	}
	return -1
}

// settle ends a schedule.
func (w *world) settle() {
	for id := range w.nodes {
		if id > 0 && w.nodes[id] == nil && w.crashed[id] {
			w.restart(uint16(id))
		}
	}
	for range 40 {
		w.deliverAll()
		if w.violation != nil {
			return
		}
		if w.controller.Phase() == replica.Synced {
			w.checkTuples()
			w.ask()
			return
		}
		w.retryController()
		for id := range w.nodes {
			w.retryNode(uint16(id))
		}
	}
	w.fail(Unsynced, "never synced: version %d, synced %d, %d syncs go on", w.controller.State.Version, w.controller.State.Synced,
		len(w.controller.State.Ongoing))
}

// ask has a packet of each connection arrive at each node.
func (w *world) ask() {
	for id := range w.nodes {
		for key := range w.keys {
			before := w.answers
			w.packet(uint16(id), key, w.owners+1)
			w.deliverAll()
			if w.answers == before && w.mayAsk(uint16(id), w.keys[key].key) {
				w.fail(Unheard, "key %d: node %d gets no answer", key, id)
			}
		}
	}
}

// mayAsk reports whether a node must get an answer about a key: it has a list, all others of the chain that it knows have the newest one, and no table can be
// full.
func (w *world) mayAsk(id uint16, key ring.Key) bool {
	if w.nodes[id] == nil || w.setup.Config.Entries > 0 {
		return false
	}
	chain := w.nodes[id].Chain(key)
	return len(chain) > 0 && !slices.ContainsFunc(chain, func(other uint16) bool {
		return other != id && (w.nodes[other] == nil || w.view(other) != w.controller.State.Version)
	})
}

func (w *world) view(id uint16) uint32 {
	view, _ := w.nodes[id].View()
	return view
}

// checkTuples checks that the chains of all keys have good tuples.
func (w *world) checkTuples() {
	for i := range w.keys {
		if w.keys[i].void {
			continue
		}
		if tuple := w.tuple(w.keys[i].key); !good(tuple) {
			w.fail(Tuple, "key %d: the chain has %v", i, tuple)
		}
	}
}

// tuple returns what the nodes of a chain have, head first.
func (w *world) tuple(key ring.Key) (tuple []replica.Owner) {
	chains := w.chains(key)
	for _, member := range chains[len(chains)-1] {
		var owner replica.Owner
		if node := w.nodes[member.Node]; node != nil {
			owner, _ = node.Lookup(key)
		}
		tuple = append(tuple, owner)
	}
	return tuple
}

// good reports whether a tuple is one of the good ones of section 4.4.
func good(tuple []replica.Owner) bool {
	for i, owner := range tuple {
		if owner != 0 && owner != tuple[0] || i > 0 && tuple[i-1] == 0 && owner != 0 {
			return false
		}
	}
	return true
}

// String says what a step does.
func (s Step) String() string {
	switch s.Action {
	case Packet:
		return fmt.Sprintf("packet of key %d at node %d, which proposes server %d", s.Key, s.Node, s.Owner)
	case Deliver:
		return "delivered: " + describe(&s.Message)
	case Lose:
		return "lost: " + describe(&s.Message)
	case Repeat:
		return "delivered, and will be again: " + describe(&s.Message)
	case Crash:
		return fmt.Sprintf("node %d crashes", s.Node)
	case Restart:
		return fmt.Sprintf("node %d starts again, empty", s.Node)
	case Change:
		return "controller: " + describeChange(&s.Change)
	case RetryNode:
		return fmt.Sprintf("node %d sends again what was not acknowledged", s.Node)
	case RetryController:
		return "controller sends again what was not acknowledged"
	case RestartController:
		return "controller starts again from what it has saved"
	case Tick:
		return "a part of a period passes"
	}
	return "all is started, delivered and sent again until all is synced; then a packet of each key arrives at each node"
}

var kinds = [...]string{"?", "WhoOwns", "Write", "Owns", "Copy", "CopyAck", "NewView", "ViewAck", "StartSync", "SyncDone"}

func describe(m *replica.Message) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s -> %s (view %d", kinds[min(int(m.Kind), len(kinds)-1)], name(m.From), name(m.To), m.View)
	switch m.Kind {
	case replica.WhoOwns, replica.Write, replica.Owns:
		fmt.Fprintf(&text, ", key %016x, server %d, for node %d", uint64(m.Key), m.Owner, m.Forwarder)
		if m.Kind == replica.Write && m.Last != replica.None {
			fmt.Fprintf(&text, ", last %d", m.Last)
		}
	case replica.Copy, replica.CopyAck:
		fmt.Fprintf(&text, ", sync %d, number %d", m.Transfer.Sync, m.Transfer.Number)
		for _, entry := range m.Transfer.Entries {
			fmt.Fprintf(&text, ", %016x: server %d", uint64(entry.Key), entry.Owner)
		}
	case replica.NewView:
		fmt.Fprintf(&text, ", synced %d, nodes%s", m.Peers.Synced, describeList(m.Peers.List))
	case replica.ViewAck:
		fmt.Fprintf(&text, ", synced %d", m.Synced)
	case replica.StartSync, replica.SyncDone:
		fmt.Fprintf(&text, ", sync %d", m.Sync)
	}
	return text.String() + ")"
}

func describeList(list ring.List) (text string) {
	for _, member := range list {
		text += fmt.Sprintf(" %d@%.3f", member.Node, float64(member.At)/(1<<32))
	}
	return text
}

func describeChange(change *replica.Change) string {
	var text []string
	for _, member := range change.AddAt {
		text = append(text, "adds"+describeList(ring.List{member}))
	}
	for _, part := range []struct {
		what  string
		nodes []uint16
	}{{"adds", change.Add}, {"removes", change.Remove}, {"believes dead", change.Fail}, {"knows as empty", change.Restart}} {
		if len(part.nodes) > 0 {
			text = append(text, fmt.Sprintf("%s %v", part.what, part.nodes))
		}
	}
	return strings.Join(text, ", ")
}

func name(node uint16) string {
	if node == replica.None {
		return "controller"
	}
	return fmt.Sprint(node)
}

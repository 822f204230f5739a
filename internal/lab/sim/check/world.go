package check

import (
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// phases is into how many ticks a period is divided: nodes' periods begin at different ticks.
const phases = 4

// endless is after how many messages in a row a fleet that is left alone should long be quiet.
const endless = 20000

// world is a fleet, the messages between its machines, and what connections were told.
type world struct {
	setup      *Setup
	controller *replica.Controller
	saved      replica.State   // durable
	nodes      []*replica.Node // by number; nil: not running
	crashed    []bool          // by number: since the controller was last told
	messages   []flying
	now        int32 // ticks
	keys       []connection
	owners     replica.Owner // proposed so far: each packet proposes another
	answers    int           // so far
	reviewed   uint32        // version for which void was computed
	uncopied   bool          // a table had no room for a copy
	shared     bool          // machines belong to other worlds, too: copy before use
	violation  *Violation
}

// flying is a message on its way.
type flying struct {
	*replica.Message
	sent int32 // tick
}

// connection is a key and what was said of it.
type connection struct {
	key       ring.Key
	owner     replica.Owner   // 0: nothing was said
	last      int32           // tick of the last answer
	forgotten []replica.Owner // earlier owners, before silences
	void      bool            // no common node was left: anything may be said
}

// newWorld returns a fleet that is synced and knows no connection.
func newWorld(setup *Setup) *world {
	w := &world{setup: setup, controller: replica.NewController(&setup.Config, replica.State{})}
	w.nodes = make([]*replica.Node, setup.Nodes+1, setup.Nodes+9)
	w.crashed = make([]bool, setup.Nodes+1, setup.Nodes+9)
	var all []uint16
	for id := 1; id <= setup.Nodes; id++ {
		w.nodes[id] = replica.NewNode(uint16(id), &setup.Config)
		all = append(all, uint16(id))
	}
	for _, key := range setup.Keys {
		w.keys = append(w.keys, connection{key: key})
	}
	if !w.change(replica.Change{Add: all}) {
		panic("check: as few nodes as a chain has, and the rule MoreNodesThanChain is on")
	}
	w.deliverAll()
	return w
}

// node returns a running node, ready to be changed, or nil.
func (w *world) node(id uint16) *replica.Node {
	if int(id) >= len(w.nodes) || w.nodes[id] == nil {
		return nil
	}
	if w.shared {
		w.nodes[id] = w.nodes[id].Clone()
	}
	return w.nodes[id]
}

// take does what a machine wants done.
func (w *world) take(id uint16, actions []replica.Action) {
	for i := range actions {
		switch m := &actions[i].Message; actions[i].Kind {
		case replica.Send:
			if m.To == replica.None || int(m.To) < len(w.nodes) && w.nodes[m.To] != nil {
				sent := *m
				w.messages = append(w.messages, flying{&sent, w.now})
			}
		case replica.Forward:
			w.answered(id, m.Key, m.Owner)
		case replica.Save:
			w.saved = w.controller.State // the controller changes what its state points to only by replacing it
		}
	}
}

// answered checks PROPERTY 1.
func (w *world) answered(id uint16, key ring.Key, owner replica.Owner) {
	at := slices.IndexFunc(w.keys, func(c connection) bool { return c.key == key })
	c := &w.keys[at]
	w.answers++
	switch {
	case c.void:
	case slices.Contains(c.forgotten, owner):
		w.fail(Affinity, "key %d was server %d's, then %d's; node %d still says %d", at, owner, c.owner, id, owner)
	case c.owner != 0 && c.owner != owner && (w.setup.KeepAlive == 0 || w.now-c.last < int32(w.setup.KeepAlive)*phases):
		w.fail(Affinity, "key %d is server %d's; node %d says %d", at, c.owner, id, owner)
	case c.owner != 0 && c.owner != owner:
		c.forgotten = append(slices.Clip(c.forgotten), c.owner)
	}
	c.owner, c.last = owner, w.now
}

// fail notes that a promise was broken. Which connections have lost a copy for want of room, nobody promises anything of; that a sync ends, holds for all.
func (w *world) fail(kind Kind, format string, values ...any) {
	if w.violation == nil && (kind == Unsynced || !w.uncopied) {
		w.violation = &Violation{Kind: kind, Text: fmt.Sprintf(format, values...)}
	}
}

// packet gives a packet of a connection to a node.
func (w *world) packet(id uint16, key int, proposed replica.Owner) {
	if node := w.node(id); node != nil {
		w.owners = max(w.owners, proposed)
		w.take(id, node.Packet(w.keys[key].key, proposed, proposed%3 != 0))
	}
}

// remove takes a message from those on their way.
func (w *world) remove(at int) *replica.Message {
	m := w.messages[at].Message
	if at == 0 {
		w.messages = w.messages[1:] // nothing has to move
		return m
	}
	w.messages = slices.Delete(w.messages, at, at+1)
	return m
}

func (w *world) give(m *replica.Message) {
	if m.To != replica.None {
		if node := w.node(m.To); node != nil {
			actions := node.Receive(*m)
			w.uncopied = w.uncopied || node.Counters.Uncopied > 0
			w.take(m.To, actions)
		}
		return
	}
	w.take(replica.None, w.ownController().Receive(*m))
	w.review(true)
}

func (w *world) ownController() *replica.Controller {
	if w.shared {
		w.controller = w.controller.Clone()
	}
	return w.controller
}

// change changes the list, unless the controller refuses.
func (w *world) change(change replica.Change) bool {
	planned := len(change.Fail)+len(change.Restart) == 0
	for _, id := range slices.Concat(change.Fail, change.Restart) {
		if !planned && !w.mayLose(id) && !w.crashed[id] {
			return false
		}
	}
	added := slices.Clone(change.Add)
	for _, member := range change.AddAt {
		added = append(added, member.Node)
	}
	for _, id := range added {
		for int(id) >= len(w.nodes) {
			w.nodes, w.crashed = append(w.nodes, nil), append(w.crashed, false)
		}
		if w.nodes[id] == nil {
			w.start(id)
		}
	}
	actions, err := w.ownController().Change(change)
	if err != nil {
		return false
	}
	for _, id := range slices.Concat(change.Fail, change.Restart, added) {
		w.crashed[id] = false
	}
	w.take(replica.None, actions)
	w.review(planned)
	return true
}

// crash ends a node. What the controller has sent to it does not reach the one that may be started in its place: it is said in another
// session.
func (w *world) crash(id uint16) bool {
	if int(id) >= len(w.nodes) || w.nodes[id] == nil {
		return false
	}
	if _, listed := w.controller.List().Find(id); listed && !w.mayLose(id) {
		return false
	}
	w.nodes[id], w.crashed[id] = nil, true
	for at := len(w.messages) - 1; at >= 0; at-- {
		if m := w.messages[at]; m.To == id && m.From == replica.None {
			w.remove(at)
		}
	}
	return true
}

// start starts a node, which is empty and asks the controller for a life.
func (w *world) start(id uint16) { w.nodes[id] = replica.NewNode(id, &w.setup.Config) }

// restart starts a node that has crashed.
func (w *world) restart(id uint16) bool {
	if int(id) >= len(w.nodes) || w.nodes[id] != nil {
		return false
	}
	w.start(id)
	if _, listed := w.controller.List().Find(id); listed {
		return w.change(replica.Change{Restart: []uint16{id}})
	}
	return true
}

func (w *world) restartController() {
	w.controller = replica.NewController(&w.setup.Config, w.saved)
	w.take(replica.None, w.controller.Retry())
}

func (w *world) retryController() {
	w.take(replica.None, w.ownController().Retry())
	w.review(true)
}

func (w *world) retryNode(id uint16) {
	if node := w.node(id); node != nil {
		w.take(id, node.Retry())
	}
}

// prompt reports whether a message arrives within a period: a node that does not get its view would have been given up by then.
func prompt(m *replica.Message) bool { return m.Kind == replica.NewView || m.Kind == replica.ViewAck }

// tick lets a part of a period pass. Other messages of an earlier period are lost.
func (w *world) tick() {
	w.now++
	for at := 0; at < len(w.messages); {
		if w.now-w.messages[at].sent < phases-1 {
			at++
			continue
		}
		m := w.remove(at)
		if prompt(m) {
			w.give(m)
		}
	}
	for id := range w.nodes {
		if id > 0 && id%phases == int(w.now)%phases {
			if node := w.node(uint16(id)); node != nil {
				node.NextPeriod()
			}
		}
	}
}

// deliverAll delivers messages in order until none is left.
func (w *world) deliverAll() {
	for range endless {
		if len(w.messages) == 0 || w.violation != nil {
			return
		}
		w.give(w.remove(0))
	}
	w.fail(Endless, "messages without end: %s", describe(w.messages[0].Message))
}

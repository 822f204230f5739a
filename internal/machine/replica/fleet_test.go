package replica

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// fleet is a controller, nodes, and messages on their way between them.
type fleet struct {
	t          testing.TB
	config     *Config
	controller *Controller
	saved      State
	nodes      map[uint16]*Node
	messages   []Message
	answers    map[ring.Key]Owner // the first answer of each connection: PROPERTY 1 says that there is no other
	sent       int
}

func newFleet(t testing.TB, config Config, nodes int) *fleet {
	f := &fleet{t: t, config: &config, nodes: map[uint16]*Node{}, answers: map[ring.Key]Owner{}}
	f.controller = NewController(f.config, State{})
	var ids []uint16
	for id := uint16(1); id <= uint16(nodes); id++ {
		f.nodes[id] = NewNode(id, f.config)
		ids = append(ids, id)
	}
	f.change(Change{Add: ids})
	f.deliverAll()
	return f
}

func (f *fleet) change(change Change) {
	f.t.Helper()
	actions, err := f.controller.Change(change)
	if err != nil {
		f.t.Fatal(err)
	}
	f.take(actions)
}

// restart makes a node forget all. What the controller told it before does not outlive its session.
func (f *fleet) restart(node uint16) {
	f.t.Helper()
	f.messages = slices.DeleteFunc(f.messages, func(m Message) bool { return m.From == None && m.To == node })
	f.nodes[node] = NewNode(node, f.config)
	f.change(Change{Restart: []uint16{node}})
}

func (f *fleet) packet(node uint16, key ring.Key, proposed Owner) {
	f.t.Helper()
	f.take(f.nodes[node].Packet(key, proposed, true))
}

func (f *fleet) take(actions []Action) {
	f.t.Helper()
	for _, action := range actions {
		switch action.Kind {
		case Send:
			f.messages = append(f.messages, action.Message)
			f.sent++
		case Forward:
			if first, ok := f.answers[action.Message.Key]; ok && first != action.Message.Owner {
				f.t.Fatalf("connection %#x was %d's, now it is %d's", action.Message.Key, first, action.Message.Owner)
			}
			f.answers[action.Message.Key] = action.Message.Owner
		case Save:
			f.saved = f.controller.State.clone()
		}
	}
}

// deliver delivers one of the messages on their way.
func (f *fleet) deliver(i int) {
	f.t.Helper()
	m := f.messages[i]
	f.messages = slices.Delete(f.messages, i, i+1)
	f.give(m)
}

func (f *fleet) give(m Message) {
	f.t.Helper()
	if m.To == None {
		f.take(f.controller.Receive(m))
	} else if node := f.nodes[m.To]; node != nil {
		f.take(node.Receive(m))
	}
}

// deliverAll delivers messages in order until none is left.
func (f *fleet) deliverAll() {
	f.t.Helper()
	for len(f.messages) > 0 {
		f.deliver(0)
	}
}

// settle delivers and retries until all is synced.
func (f *fleet) settle() {
	f.t.Helper()
	for range 50 {
		f.deliverAll()
		if f.controller.Phase() == Synced {
			return
		}
		f.retry()
	}
	f.t.Fatalf("never synced: %+v", f.controller.State)
}

func (f *fleet) retry() {
	f.t.Helper()
	f.take(f.controller.Retry())
	for _, id := range f.ids() {
		f.take(f.nodes[id].Retry())
	}
}

func (f *fleet) ids() (ids []uint16) {
	for id := range f.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// tuple returns what the chain of a key has, head first.
func (f *fleet) tuple(key ring.Key) (tuple []Owner) {
	for _, member := range f.config.chains().At(f.controller.List(), key.Position()) {
		owner, _ := f.nodes[member.Node].Lookup(key)
		tuple = append(tuple, owner)
	}
	return tuple
}

// isPrefix reports whether a tuple is good (4.4): some nodes from the head on say the same, the others nothing.
func isPrefix(tuple []Owner) bool {
	for i, owner := range tuple {
		if owner != tuple[0] && owner != 0 || i > 0 && tuple[i-1] == 0 && owner != 0 {
			return false
		}
	}
	return true
}

// at returns a key at an n-th of the circle, in the middle between two nodes of an even list of twice as many.
func at(i, n int) ring.Key { return ring.Key(uint64(i) * (1 << 32 / uint64(n)) << 32) }

// chaos is a random schedule: packets, lost, repeated and overtaken messages, nodes that fail, start again and come, one change at a time
// so that a common node is left.
type chaos struct {
	*fleet
	random *rand.Rand
	keys   []ring.Key
	next   uint16
}

func (c *chaos) step() {
	c.t.Helper()
	switch dice := c.random.IntN(100); {
	case dice < 30:
		node := c.ids()[c.random.IntN(len(c.nodes))]
		c.packet(node, c.keys[c.random.IntN(len(c.keys))], Owner(1+c.random.IntN(1000)))
	case dice < 90 && len(c.messages) > 0:
		i := c.random.IntN(len(c.messages))
		switch m := c.messages[i]; c.random.IntN(10) {
		case 0:
			c.messages = slices.Delete(c.messages, i, i+1)
		case 1:
			c.give(m)
		default:
			c.deliver(i)
		}
	case dice < 95:
		c.retry()
	case dice == 95:
		c.controller = NewController(c.config, c.saved)
	case dice == 96:
		c.nodes[c.ids()[c.random.IntN(len(c.nodes))]].NextPeriod()
	case dice == 97 && c.controller.Phase() == Synced:
		c.reconfigure()
	}
}

func (c *chaos) reconfigure() {
	c.t.Helper()
	list := c.controller.List()
	node := list[c.random.IntN(len(list))].Node
	switch {
	case c.random.IntN(2) == 0 && len(list) < 8 || len(list) <= c.config.Chain+1:
		c.next++
		c.nodes[c.next] = NewNode(c.next, c.config)
		c.change(Change{Add: []uint16{c.next}})
	case c.random.IntN(2) == 0:
		c.restart(node)
	default:
		c.change(Change{Fail: []uint16{node}}) // perhaps it is not dead: it goes on as a node that nobody tells anything
		if c.random.IntN(2) == 0 {
			delete(c.nodes, node)
		}
	}
}

func (f *fleet) String() string {
	return fmt.Sprintf("version %d, synced %d, %d nodes", f.controller.State.Version, f.controller.State.Synced, len(f.controller.List()))
}

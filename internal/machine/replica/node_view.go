package replica

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// newView takes a list from the controller, if it is newer, and says which the node has.
func (n *Node) newView(m *Message) {
	if m.View > n.view {
		n.adopt(m)
	}
	if m.Peers.Synced > n.synced {
		n.synced = m.Peers.Synced
		if n.config.Rules.HoldExpiry && !n.unsynced() {
			n.held = n.period
		}
	}
	if !n.unsynced() {
		n.done = nil
	}
	n.send(Message{Kind: ViewAck, To: None, View: n.view, Synced: n.synced})
}

// unsynced reports whether chains may disagree.
func (n *Node) unsynced() bool { return n.synced < n.view }

func (n *Node) adopt(m *Message) {
	me, listed := m.Peers.List.Find(n.id)
	another := me.Life != n.life && n.config.Rules.ForgetOnLeaving
	if another && listed {
		n.path.Publish(View{}) // until nothing of the former life is left
	}
	n.take(m.View, m.Peers)
	if !another || !listed { // who is in no chain only answers its own packets from what it has
		n.path.Publish(View{n.view, n.list, n.chains, n.since})
	}
	if n.config.Rules.ForgetOnLeaving {
		n.forget(another)
	}
	if another && listed {
		n.path.Publish(View{n.view, n.list, n.chains, n.since})
	}
	n.life = me.Life
	if n.config.Rules.StopCancelled {
		n.syncs = slices.DeleteFunc(n.syncs, func(s *transfer) bool { return slices.Contains(m.Peers.Cancelled, s.id) })
	}
}

// take makes a list that of the node.
func (n *Node) take(view uint32, peers *Peers) {
	n.view, n.list, n.since = view, peers.List, peers.Since
	chains := n.config.chains()
	n.chains = make([][]uint16, len(n.list))
	for arc := range n.list {
		n.chains[arc] = ring.Nodes(chains.OfArc(n.list, arc))
	}
}

// forget gives up the entries of chains that this node is not in, or all. What may be answered from is an answer like any other: it
// becomes one that is cached.
func (n *Node) forget(all bool) {
	if len(n.list) == 0 {
		return
	}
	n.table.Keep(func(r Record) bool {
		if !all && slices.Contains(n.chain(r.Key), n.id) {
			return true
		}
		if _, cached := n.cache.Find(r.Key); r.Cacheable && !cached && n.roomInCache() {
			n.cache.Insert(r)
		}
		return false
	})
}

// bounds returns the first and the last key of a range.
func bounds(r ring.Range) (low, high ring.Key) {
	return ring.Key(r.Low) << 32, ring.Key(r.High)<<32 - 1
}

// NextPeriod begins the next period of this node: deletion intervals need not be in step with other nodes'. Entries that were not used for
// long enough are gone.
func (n *Node) NextPeriod() {
	n.period++
	n.path.Period(n.period)
	n.cache.Keep(func(r Record) bool { return n.keepOrCount(n.period-r.Period < n.config.Timeout) })
	if len(n.list) == 0 || n.config.Rules.HoldExpiry && n.unsynced() {
		return
	}
	timeouts := make([]uint32, len(n.chains))
	for arc, chain := range n.chains {
		timeouts[arc] = n.timeout(chain)
	}
	n.table.Keep(func(r Record) bool { return n.keepOrCount(n.age(r) < timeouts[n.list.Arc(r.Key.Position())]) })
}

func (n *Node) keepOrCount(fresh bool) bool {
	if !fresh {
		n.Counters.Expired++
	}
	return fresh
}

// age returns for how many periods an entry of the table was not used, as far as that counts.
func (n *Node) age(r Record) uint32 { return n.period - max(r.Period, n.held) }

// timeout returns after how many periods an entry of a chain expires at this node. An answer may be cached one period after the tail has
// seen the entry used, and two nodes' periods may be apart by almost one: so two periods for each step are enough while messages
// take less than what is left.
func (n *Node) timeout(chain []uint16) uint32 {
	if !n.config.Rules.ExpireInOrder {
		return n.config.Timeout
	}
	steps := len(chain) - slices.Index(chain, n.id) // tail 1, head L
	return n.config.Timeout + n.config.Stagger*uint32(steps)
}

// Chain returns the nodes of a key's chain as the node knows it, head first; nil: it has no list.
func (n *Node) Chain(key ring.Key) []uint16 {
	if len(n.list) == 0 {
		return nil
	}
	return n.chain(key)
}

// Lookup returns what the node has of a connection: its entry in the table, and whether that may be answered from. Owner 0: none.
func (n *Node) Lookup(key ring.Key) (owner Owner, cacheable bool) {
	entry, _ := n.table.Find(key)
	return entry.Owner, entry.Cacheable
}

// Cached returns what the node has in its cache of a connection. Owner 0: nothing.
func (n *Node) Cached(key ring.Key) Owner {
	cached, _ := n.cache.Find(key)
	return cached.Owner
}

// Entries returns how many entries the table and the cache have.
func (n *Node) Entries() (table, cached int) { return n.table.Len(), n.cache.Len() }

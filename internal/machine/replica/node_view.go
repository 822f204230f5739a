package replica

import (
	"math"
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
			n.table.keep(0, math.MaxUint64, func(r *record) bool { r.period = n.period; return true })
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
	n.view, n.list = m.View, m.Peers.List
	chains := n.config.chains()
	n.chains = make([][]uint16, len(n.list))
	for arc := range n.list {
		for _, member := range chains.OfArc(n.list, arc) {
			n.chains[arc] = append(n.chains[arc], member.Node)
		}
	}
	me, _ := n.list.Find(n.id)
	if n.config.Rules.ForgetOnLeaving {
		n.forget(me.Life != n.life)
	}
	n.life = me.Life
	if n.config.Rules.StopCancelled {
		n.syncs = slices.DeleteFunc(n.syncs, func(s *transfer) bool { return slices.Contains(m.Peers.Cancelled, s.id) })
	}
}

// forget gives up the entries of chains that this node is not in, or all. What may be answered from is an answer like any other: it
// becomes one that is cached.
func (n *Node) forget(all bool) {
	n.eachArc(func(low, high ring.Key, chain []uint16) {
		if !all && slices.Contains(chain, n.id) {
			return
		}
		n.table.keep(low, high, func(r *record) bool {
			if r.cacheable && n.cache.find(r.key) == nil && (n.config.Cached == 0 || n.cache.count < n.config.Cached) {
				n.cache.insert(*r)
			}
			return false
		})
	})
}

// eachArc calls do with the first and the last key of each arc, and its chain.
func (n *Node) eachArc(do func(low, high ring.Key, chain []uint16)) {
	for arc, member := range n.list {
		next := n.list[(arc+1)%len(n.list)]
		low, high := bounds(ring.Range{Low: member.At, High: next.At})
		do(low, high, n.chains[arc])
	}
}

// bounds returns the first and the last key of a range.
func bounds(r ring.Range) (low, high ring.Key) {
	return ring.Key(r.Low) << 32, ring.Key(r.High)<<32 - 1
}

// NextPeriod begins the next period of this node: deletion intervals need not be in step with other nodes'. Entries that were not used for
// long enough are gone.
func (n *Node) NextPeriod() {
	n.period++
	fresh := func(timeout uint32) func(*record) bool {
		return func(r *record) bool { return n.period-r.period < timeout }
	}
	before := n.table.count + n.cache.count
	n.cache.keep(0, math.MaxUint64, fresh(n.config.Timeout))
	if !n.config.Rules.HoldExpiry || !n.unsynced() {
		n.eachArc(func(low, high ring.Key, chain []uint16) {
			n.table.keep(low, high, fresh(n.timeout(chain)))
		})
	}
	n.Counters.Expired += uint64(before - n.table.count - n.cache.count)
}

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

// Lookup returns what the node has of a connection: its entry in the table, and whether that may be answered from. Owner 0: none.
func (n *Node) Lookup(key ring.Key) (owner Owner, cacheable bool) {
	if entry := n.table.find(key); entry != nil {
		return entry.owner, entry.cacheable
	}
	return 0, false
}

// Cached returns what the node has in its cache of a connection. Owner 0: nothing.
func (n *Node) Cached(key ring.Key) Owner {
	if cached := n.cache.find(key); cached != nil {
		return cached.owner
	}
	return 0
}

// Entries returns how many entries the table and the cache have.
func (n *Node) Entries() (table, cached int) { return n.table.count, n.cache.count }

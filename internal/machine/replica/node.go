package replica

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// Counters are what a node has done with packets and messages, since its start.
type Counters struct {
	Forwarded  uint64 // packets to servers
	FromLocal  uint64 // of those, without asking anybody
	NoView     uint64 // packets dropped: the node knows no other nodes
	OtherView  uint64 // messages dropped
	TooManyHop uint64
	NotHead    uint64
	NotMember  uint64
	Full       uint64 // entries refused
	Conflicts  uint64 // answers unlike what was known: never, as long as a first common node exists
	Expired    uint64
}

// Node is one load balancer. Make one by NewNode. Not safe for concurrent use.
type Node struct {
	Counters Counters

	id     uint16
	config *Config
	view   uint32 // version of list
	synced uint32 // newest version that is known to be synced
	life   uint32
	list   ring.List
	chains [][]uint16 // by arc of list, head first

	period uint32 // since the start
	table  table  // entries of the chains that the node is in
	cache  table  // other answers

	syncs []*transfer // which this node leads
	done  []uint32    // of those, which are over
	out   []Action
}

// NewNode returns a node that knows nothing. config is shared, and not changed. A node that has started again must not receive what the
// controller sent before Change.Restart: an older view says that it still has its entries. A session ends with its process and sees to it.
func NewNode(id uint16, config *Config) *Node { return &Node{id: id, config: config} }

// View returns the version of the list that the node has, and the newest that it knows to be synced.
func (n *Node) View() (view, synced uint32) { return n.view, n.synced }

// Packet takes a packet from outside. If its connection is new, proposed becomes its owner; it must not be 0. What is returned is valid
// until the next call.
func (n *Node) Packet(key ring.Key, proposed Owner) []Action {
	n.out = n.out[:0]
	if len(n.list) == 0 {
		n.Counters.NoView++
		return nil
	}
	if known := n.usable(key); known != nil {
		if known.period == n.period {
			n.Counters.FromLocal++
			n.forward(key, known.owner)
			return n.out
		}
		if n.config.Rules.RefreshKeepsOwner {
			proposed = known.owner
		}
		if !n.config.Rules.RenewByOwns {
			known.period = n.period
		}
	}
	chain := n.chain(key)
	question := Message{Kind: WhoOwns, To: chain[len(chain)-1], Forwarder: n.id, Owner: proposed, View: n.view, Key: key}
	if n.config.DirectToHead {
		question.Kind, question.To = Write, chain[0]
	}
	n.send(question)
	return n.out
}

// Receive takes a message. What is returned is valid until the next call.
func (n *Node) Receive(m Message) []Action {
	n.out = n.out[:0]
	n.receive(&m)
	return n.out
}

func (n *Node) receive(m *Message) {
	switch m.Kind {
	case WhoOwns, Write:
		if n.config.Rules.CheckView && m.View != n.view || len(n.list) == 0 {
			n.Counters.OtherView++
		} else if n.config.Rules.LimitHops && m.Hops > n.config.HopLimit {
			n.Counters.TooManyHop++
		} else if m.Kind == WhoOwns {
			n.whoOwns(m)
		} else {
			n.write(m)
		}
	case Owns:
		n.owns(m)
	case Copy:
		n.copied(m)
	case CopyAck:
		n.copyAcked(m)
	case NewView:
		n.newView(m)
	case StartSync:
		n.startSync(m)
	}
}

// usable returns what the node may answer from, or nil.
func (n *Node) usable(key ring.Key) *record {
	cached := n.cache.find(key)
	if cached != nil && cached.period == n.period {
		return cached
	}
	if entry := n.table.find(key); entry != nil && entry.cacheable {
		return entry
	}
	return cached
}

// whoOwns answers, starts to write an entry, or passes the question on.
func (n *Node) whoOwns(m *Message) {
	chain := n.chain(m.Key)
	tail := chain[len(chain)-1]
	if tail != n.id {
		known := n.usable(m.Key)
		if known == nil && !n.config.Rules.AnswerCacheable {
			known = n.table.find(m.Key)
		}
		if known != nil {
			n.answer(m, known.owner)
			return
		}
		n.pass(m, WhoOwns, tail)
		return
	}
	if entry := n.table.find(m.Key); entry != nil {
		// An entry that is not of this period is written again, so that all of the chain know that it is in use.
		if (entry.cacheable || !n.config.Rules.TailAnswersCacheable) && entry.period == n.period {
			n.answer(m, entry.owner)
			return
		}
		if n.config.Rules.RefreshKeepsOwner {
			m.Owner = entry.owner
		}
	}
	m.Last = 0
	n.pass(m, Write, chain[0])
}

// write is WriteIfNotExists (figure 6).
func (n *Node) write(m *Message) {
	chain := n.chain(m.Key)
	place := slices.Index(chain, n.id)
	if n.config.Rules.CheckHead && m.Last == 0 && place != 0 {
		n.Counters.NotHead++
		return
	}
	if n.config.Rules.CheckMembers && (place < 0 || m.Last != 0 && !slices.Contains(chain, m.Last)) {
		n.Counters.NotMember++
		return
	}
	isTail := place == len(chain)-1
	owner, ok := n.keep(m.Key, m.Owner, isTail || !n.config.Rules.CacheableAtTail)
	if !ok {
		return
	}
	m.Owner, m.Last = owner, n.id
	if isTail || place < 0 {
		n.answer(m, owner)
		return
	}
	n.pass(m, Write, chain[place+1])
}

// keep makes an entry, or renews the one that there is, and returns whose the connection is. ok is false when the table is full.
func (n *Node) keep(key ring.Key, owner Owner, cacheable bool) (Owner, bool) {
	entry := n.table.find(key)
	if entry == nil {
		if !n.makeRoom() {
			return 0, false
		}
		n.table.insert(record{key, owner, n.period, cacheable})
		return owner, true
	}
	if !n.config.Rules.KeepFirst {
		entry.owner = owner
	}
	entry.period = n.period
	entry.cacheable = entry.cacheable || cacheable
	return entry.owner, true
}

// makeRoom reports whether the table takes one more entry.
func (n *Node) makeRoom() bool {
	if n.config.Entries == 0 || n.table.count < n.config.Entries {
		return true
	}
	n.Counters.Full++
	if n.config.Rules.NeverEvict {
		return false
	}
	var first ring.Key
	n.table.each(0, ^ring.Key(0), func(r *record) bool { first = r.key; return false })
	n.table.keep(first, first, func(*record) bool { return false })
	return true
}

// owns takes the answer for a packet that came to this node.
func (n *Node) owns(m *Message) {
	entry, cached := n.table.find(m.Key), n.cache.find(m.Key)
	usable := entry != nil && entry.cacheable
	if usable && entry.owner != m.Owner || !usable && cached != nil && cached.owner != m.Owner {
		n.Counters.Conflicts++
	}
	switch {
	case usable && entry.owner == m.Owner:
		entry.period = n.period
	case cached != nil:
		cached.owner, cached.period = m.Owner, n.period
	case n.config.Cached == 0 || n.cache.count < n.config.Cached:
		n.cache.insert(record{m.Key, m.Owner, n.period, true})
	}
	n.forward(m.Key, m.Owner)
}

// chain returns the nodes of a key's chain, head first. The list must not be empty.
func (n *Node) chain(key ring.Key) []uint16 { return n.chains[n.list.Arc(key.Position())] }

func (n *Node) forward(key ring.Key, owner Owner) {
	n.Counters.Forwarded++
	n.out = append(n.out, Action{Kind: Forward, Message: Message{Key: key, Owner: owner}})
}

// answer tells the forwarder of m whose the connection is.
func (n *Node) answer(m *Message, owner Owner) {
	m.Owner = owner
	n.pass(m, Owns, m.Forwarder)
}

// pass sends what m has become.
func (n *Node) pass(m *Message, kind Kind, to uint16) {
	passed := *m
	passed.Kind, passed.To, passed.View = kind, to, n.view
	passed.Hops++
	n.send(passed)
}

// send sends a message. What goes to this node itself is there at once.
func (n *Node) send(m Message) {
	m.From = n.id
	if m.To == n.id {
		n.receive(&m)
		return
	}
	n.out = append(n.out, Action{Kind: Send, Message: m})
}

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
	Uncopied   uint64 // of those, in a sync: this chain has one copy less of them
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
	since  []uint32   // by arc: the version since which its chain is what it is

	period uint32 // since the start
	held   uint32 // period in which the last sync ended: no entry of table is older
	table  Table  // entries of the chains that the node is in
	cache  Table  // other answers

	syncs []*transfer // which this node leads
	done  []uint32    // of those, which are over
	out   []Action

	gone func(key ring.Key, owner Owner) bool
	path Path
}

// Path is what others handle packets by, on the same tables.
type Path interface {
	// Publish makes packets go by a view; the zero View: by none.
	Publish(View)
	// Period makes packets note another deletion interval.
	Period(period uint32)
}

// View is what packets need to know of a list. Version 0: there is none.
type View struct {
	Version uint32
	List    ring.List
	Chains  [][]uint16 // by arc of List, head first
	Since   []uint32   // by arc: what messages carry in Message.Chain
}

// NewNode returns a node that knows nothing. config is shared, and not changed. A node that has started again must not receive what the
// controller sent before Change.Restart: an older view says that it still has its entries. A session ends with its process and sees to it.
func NewNode(id uint16, config *Config) *Node {
	return OpenNode(id, config, NewMemory(), NewMemory(), noPath{}, 0)
}

// OpenNode returns a node with tables of its caller's. What they hold is believed as soon as there is a view.
//
// A view is published before anything is forgotten that it makes needless, and none at all before all is forgotten, unless the node is in no chain. period is the deletion
// interval that packets note now.
func OpenNode(id uint16, config *Config, table, cache Table, path Path, period uint32) *Node {
	return &Node{id: id, config: config, table: table, cache: cache, path: path, period: period, held: period}
}

// Resume says which life the entries of a node's tables are of: that which its view gave it when an earlier process took it. The view is to be
// received then as any other.
func (n *Node) Resume(life uint32) { n.life = life }

// noPath is that of nodes that handle all packets themselves.
type noPath struct{}

func (noPath) Publish(View)  {}
func (noPath) Period(uint32) {}

// SetGone sets what tells that an owner is no server any more: a record of such a one is as good as none, and a Write puts another owner
// in its place. nil: owners stay.
func (n *Node) SetGone(gone func(key ring.Key, owner Owner) bool) { n.gone = gone }

func (n *Node) isGone(r Record) bool { return n.gone != nil && n.gone(r.Key, r.Owner) }

// View returns the version of the list that the node has, and the newest that it knows to be synced.
func (n *Node) View() (view, synced uint32) { return n.view, n.synced }

// Packet takes a packet from outside. If its connection is new, proposed becomes its owner; it must not be 0. begins says that it most
// probably is. What is returned is valid until the next call.
func (n *Node) Packet(key ring.Key, proposed Owner, begins bool) []Action {
	n.out = n.out[:0]
	known, in := n.usable(key)
	if len(n.list) == 0 {
		if n.Counters.NoView++; in != nil && n.config.Rules.SendBack {
			n.forward(key, known.Owner)
		}
		return n.out
	}
	if in != nil {
		if known.Period == n.period {
			n.Counters.FromLocal++
			n.forward(key, known.Owner)
			return n.out
		}
		if n.config.Rules.RefreshKeepsOwner {
			proposed = known.Owner
		}
		if !n.config.Rules.RenewByOwns {
			n.change(in, known, func(r *Record) { r.Period = n.period })
		}
	}
	chain := n.chain(key)
	question := Message{Kind: WhoOwns, To: chain[len(chain)-1], Forwarder: n.id, Owner: proposed, Record: known.Owner, View: n.view, Chain: n.chainSince(key), Key: key}
	if n.config.DirectToHead && (begins || in != nil) {
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
		n.asked(m)
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

// asked takes WhoOwns and Write.
func (n *Node) asked(m *Message) {
	rules := &n.config.Rules
	another := len(n.list) > 0 && rules.CheckView && m.Chain != n.chainSince(m.Key)
	switch {
	case another && !rules.AskAgain:
		n.Counters.OtherView++
	case len(n.list) == 0 || another && m.Chain > n.chainSince(m.Key):
		n.sendBack(m)
	case rules.LimitHops && m.Hops > n.config.HopLimit:
		n.Counters.TooManyHop++
	case another:
		n.askAgain(m)
	case m.Kind == WhoOwns:
		n.whoOwns(m)
	default:
		n.write(m)
	}
}

// usable returns what the node may answer from, and where it is; nil: there is nothing.
func (n *Node) usable(key ring.Key) (Record, Table) {
	cached, ok := n.cache.Find(key)
	ok = ok && !n.isGone(cached)
	if ok && cached.Period == n.period {
		return cached, n.cache
	}
	if entry, ok := n.table.Find(key); ok && entry.Cacheable && !n.isGone(entry) {
		return entry, n.table
	}
	if ok {
		return cached, n.cache
	}
	return Record{}, nil
}

// change changes a record, and returns it as it is then, unless it has gone.
func (n *Node) change(in Table, r Record, how func(r *Record)) (Record, bool) {
	for {
		after := r
		how(&after)
		if after == r || in.Swap(r, after) {
			return after, true
		}
		var ok bool
		if r, ok = in.Find(r.Key); !ok {
			return r, false
		}
	}
}

// whoOwns answers, starts to write an entry, or passes the question on.
func (n *Node) whoOwns(m *Message) {
	chain := n.chain(m.Key)
	tail := chain[len(chain)-1]
	if tail != n.id {
		known, in := n.usable(m.Key)
		if in == nil && !n.config.Rules.AnswerCacheable {
			if entry, ok := n.table.Find(m.Key); ok {
				known, in = entry, n.table
			}
		}
		if in != nil {
			n.answer(m, known.Owner)
			return
		}
		n.pass(m, WhoOwns, tail)
		return
	}
	if entry, ok := n.table.Find(m.Key); ok && !n.isGone(entry) {
		// An entry that is not of this period is written again, so that all of the chain know that it is in use.
		if (entry.Cacheable || !n.config.Rules.TailAnswersCacheable) && entry.Period == n.period {
			n.answer(m, entry.Owner)
			return
		}
		if n.config.Rules.RefreshKeepsOwner {
			m.Owner = entry.Owner
		}
	}
	m.Last = 0
	n.pass(m, Write, chain[0])
}

// sendBack answers a question of a newer chain than the node knows, which it cannot ask, with what the forwarder knew. That stays as old as it was, as the chain
// has not heard that the connection lives.
func (n *Node) sendBack(m *Message) {
	if m.Record == 0 || !n.config.Rules.SendBack {
		n.Counters.OtherView++
		return
	}
	m.Unheard = true
	n.answer(m, m.Record)
}

// askAgain asks the chain that this node knows what somebody has asked an older one. To the chain it is a packet that has come to this node; only the answer
// goes to the one that it has really come to, which may have been taken off the list without knowing it.
func (n *Node) askAgain(m *Message) {
	chain := n.chain(m.Key)
	m.Last = None
	if m.Kind == Write {
		n.pass(m, Write, chain[0])
		return
	}
	n.pass(m, WhoOwns, chain[len(chain)-1])
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
	entry, ok := n.table.Find(key)
	if !ok {
		if entry, ok = n.insert(Record{key, owner, n.period, cacheable}); !ok {
			return 0, false
		}
	}
	entry, ok = n.change(n.table, entry, func(r *Record) {
		if !n.config.Rules.KeepFirst || n.isGone(*r) {
			r.Owner = owner
		}
		r.Period = n.period
		r.Cacheable = r.Cacheable || cacheable
	})
	return entry.Owner, ok
}

// insert puts an entry into the table, and returns what that has of the connection then. ok is false when it is full.
func (n *Node) insert(entry Record) (there Record, ok bool) {
	if !n.makeRoom() {
		return there, false
	}
	there, ok = n.table.Insert(entry)
	if !ok {
		n.Counters.Full++
	}
	return there, ok
}

// makeRoom reports whether the table takes one more entry.
func (n *Node) makeRoom() bool {
	if n.config.Entries == 0 || n.table.Len() < n.config.Entries {
		return true
	}
	n.Counters.Full++
	if n.config.Rules.NeverEvict {
		return false
	}
	var first ring.Key
	n.table.Each(0, ^ring.Key(0), func(r Record) bool { first = r.Key; return false })
	n.table.Keep(func(r Record) bool { return r.Key != first })
	return true
}

// owns takes the answer for a packet that came to this node.
func (n *Node) owns(m *Message) {
	if m.Unheard {
		n.forward(m.Key, m.Owner)
		return
	}
	entry, _ := n.table.Find(m.Key)
	cached, isCached := n.cache.Find(m.Key)
	if entry.Cacheable && entry.Owner != m.Owner || !entry.Cacheable && isCached && cached.Owner != m.Owner {
		n.Counters.Conflicts++
	}
	switch {
	case n.contradicts(entry, m.Owner) || n.contradicts(cached, m.Owner): // the message may be an old one, sent again by somebody
	case entry.Cacheable && entry.Owner == m.Owner:
		n.change(n.table, entry, func(r *Record) { r.Period = n.period })
	case isCached:
		n.change(n.cache, cached, func(r *Record) { r.Owner, r.Period = m.Owner, n.period })
	case n.roomInCache():
		n.cache.Insert(Record{m.Key, m.Owner, n.period, true})
	}
	n.forward(m.Key, m.Owner)
}

// contradicts reports whether a record may be answered from without asking anybody, and has another owner.
func (n *Node) contradicts(r Record, owner Owner) bool {
	return r.Cacheable && r.Owner != owner && r.Period == n.period && !n.isGone(r)
}

func (n *Node) roomInCache() bool { return n.config.Cached == 0 || n.cache.Len() < n.config.Cached }

// chain returns the nodes of a key's chain, head first. The list must not be empty.
func (n *Node) chain(key ring.Key) []uint16 { return n.chains[n.list.Arc(key.Position())] }

// chainSince is the version since which a key's chain is what it is. Two nodes that have the same agree about all that matters to the key,
// whatever else has changed between their views. Who knows the same chain, but not since the same version, may have left it in between.
func (n *Node) chainSince(key ring.Key) uint32 { return n.since[n.list.Arc(key.Position())] }

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
	if passed.Chain = 0; kind != Owns {
		passed.Chain = n.chainSince(m.Key)
	}
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

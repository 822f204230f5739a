package replica

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// transfer is a sync in which this node, a common node, sends its entries to others (4.3.2).
type transfer struct {
	id        uint32
	low, high ring.Key // of the range
	to        []uint16 // receivers, in the order of the chain
	before    int      // of those, that come before this node
	second    bool     // round, in which this node decides: it is the first common node, and there are nodes before it
	next      ring.Key // all before was sent
	sentAll   bool
	number    uint32    // of the last message
	waiting   []Message // for their acks
	unacked   int       // counted without looking which, when the rule CountAcks is off
}

// startSync begins a sync, unless it has begun, or tells that it is over.
func (n *Node) startSync(m *Message) {
	if m.View != n.view {
		return
	}
	if slices.Contains(n.done, m.Sync) {
		n.send(Message{Kind: SyncDone, To: None, View: n.view, Sync: m.Sync})
		return
	}
	if slices.ContainsFunc(n.syncs, func(s *transfer) bool { return s.id == m.Sync }) {
		return
	}
	low, high := bounds(m.Range)
	s := &transfer{id: m.Sync, low: low, high: high, next: low, second: m.Places.First == 0}
	chain := n.chain(low)
	place := slices.Index(chain, n.id)
	for _, to := range m.Places.Of(chain) {
		switch at := slices.Index(chain, to); {
		case at < place:
			s.before++
			fallthrough
		case at > place:
			s.to = append(s.to, to)
		}
	}
	n.syncs = append(n.syncs, s)
	n.advance(s)
}

// Progress is how far a sync is that a node leads.
type Progress struct {
	ID       uint32
	Permille uint32 // of the range that was sent and taken
}

// Syncs returns how far the syncs are that the node leads.
func (n *Node) Syncs() (list []Progress) {
	for _, s := range n.syncs {
		taken, whole := s.next, uint64(s.high-s.low)
		for i := range s.waiting {
			if low := s.waiting[i].Transfer.Low; low-s.low < taken-s.low {
				taken = low
			}
		}
		permille := uint32(1000)
		if !s.sentAll || len(s.waiting) > 0 {
			permille = uint32(min(999, float64(taken-s.low)/float64(max(1, whole))*1000))
		}
		list = append(list, Progress{s.id, permille})
	}
	return list
}

// advance sends further parts of a range (step 1), and finishes when nothing is left to wait for.
//
// Departs from Anolis, which sends to all nodes at once: if a later node had an entry that an earlier one lacks, and this node failed, the
// earlier one would become the first common node and take another value. So nodes behind this one get a part one after the other.
func (n *Node) advance(s *transfer) {
	atOnce := len(s.to)
	if n.config.Rules.SyncInOrder {
		atOnce = min(atOnce, s.before+1)
	}
	for !s.sentAll && len(s.waiting) <= n.config.CopyWindow*len(s.to) {
		part := n.part(s)
		for _, to := range s.to[:atOnce] {
			n.ship(s, to, part)
		}
	}
	if n.finished(s) {
		n.done = append(n.done, s.id)
		n.syncs = slices.DeleteFunc(n.syncs, func(other *transfer) bool { return other == s })
		n.send(Message{Kind: SyncDone, To: None, View: n.view, Sync: s.id})
	}
}

func (n *Node) finished(s *transfer) bool {
	if !n.config.Rules.CountAcks {
		return s.sentAll && s.unacked <= 0
	}
	return s.sentAll && len(s.waiting) == 0
}

// part takes the next part of the range.
func (n *Node) part(s *transfer) Transfer {
	part := Transfer{Sync: s.id, Low: s.next, High: s.high}
	n.table.Each(s.next, s.high, func(r Record) bool {
		if len(part.Entries) == n.config.CopyEntries {
			part.High = r.Key - 1
			return false
		}
		part.Entries = append(part.Entries, Entry{r.Key, r.Owner})
		return true
	})
	s.next = part.High + 1
	s.sentAll = part.High == s.high
	return part
}

// ship sends a transfer, and again until it is acknowledged.
func (n *Node) ship(s *transfer, to uint16, content Transfer) {
	s.number++
	s.unacked++
	content.Number = s.number
	s.waiting = append(s.waiting, Message{Kind: Copy, To: to, View: n.view, Transfer: &content})
	n.send(s.waiting[len(s.waiting)-1])
}

// Retry sends again what has not been answered. Call it every now and then.
func (n *Node) Retry() []Action {
	n.out = n.out[:0]
	for _, s := range n.syncs {
		for i := range s.waiting {
			s.waiting[i].View = n.view // the chain of the range is as it was, or the sync would have been cancelled
			n.send(s.waiting[i])
		}
	}
	return n.out
}

// copied takes what a common node says (step 2), and tells what it has left out (step 3).
func (n *Node) copied(m *Message) {
	if n.config.Rules.CheckView && m.View != n.view || len(n.list) == 0 {
		n.Counters.OtherView++
		return
	}
	t := m.Transfer
	chain := n.chain(t.Low)
	if len(t.Entries) > 0 {
		chain = n.chain(t.Entries[0].Key)
	}
	place := slices.Index(chain, n.id)
	if place < 0 {
		n.Counters.NotMember++
		return
	}
	n.accept(t.Entries, place == len(chain)-1)
	ack := Transfer{Sync: t.Sync, Number: t.Number}
	if !t.Second && place < slices.Index(chain, m.From) {
		ack.Entries = n.unsaid(t)
	}
	n.send(Message{Kind: CopyAck, To: m.From, View: n.view, Transfer: &ack})
}

// accept makes entries what the first common node says. What there is no room for has one copy less: if the sync waited for room, no entry would expire until
// it is over, and so there would never be any.
func (n *Node) accept(entries []Entry, isTail bool) {
	cacheable := isTail || !n.config.Rules.SyncCacheableAtTail
	records := make([]Record, len(entries))
	for i, entry := range entries {
		records[i] = Record{entry.Key, entry.Owner, n.period, cacheable}
	}
	n.insertAll(records)
	for i, own := range records {
		if own.Owner == 0 {
			n.Counters.Uncopied++
			continue
		}
		n.change(n.table, own, func(r *Record) {
			if r.Owner == entries[i].Owner {
				r.Cacheable = r.Cacheable || cacheable
			} else if n.config.Rules.SyncOverrides {
				r.Owner, r.Cacheable = entries[i].Owner, cacheable
			}
		})
	}
}

// insertAll puts in those records that the node has nothing of, and makes of each the one that there is then; owner 0: there is no room.
func (n *Node) insertAll(records []Record) {
	if n.config.Entries == 0 {
		n.table.InsertAll(records)
		return
	}
	for i, r := range records {
		own, ok := n.table.Find(r.Key)
		if !ok {
			own, _ = n.insert(r)
		}
		records[i] = own
	}
}

// unsaid returns the entries of this node that a transfer should have had. It may leave out what
// has come in since this view began: by its chain, whose earlier nodes have that too.
func (n *Node) unsaid(t *Transfer) (entries []Entry) {
	said := t.Entries
	n.table.EachOf(n.view, t.Low, t.High, func(r Record) bool {
		for len(said) > 0 && said[0].Key-t.Low < r.Key-t.Low {
			said = said[1:]
		}
		if len(said) == 0 || said[0].Key != r.Key {
			entries = append(entries, Entry{r.Key, r.Owner})
		}
		return true
	})
	return entries
}

// copyAcked takes an acknowledgement, and makes what it says the same in all nodes before this one (step 4).
func (n *Node) copyAcked(m *Message) {
	at := slices.IndexFunc(n.syncs, func(s *transfer) bool { return s.id == m.Transfer.Sync })
	if at < 0 {
		return
	}
	s := n.syncs[at]
	waiting := slices.IndexFunc(s.waiting, func(w Message) bool {
		return w.Transfer.Number == m.Transfer.Number && w.To == m.From
	})
	if waiting < 0 && n.config.Rules.CountAcks {
		return
	}
	if n.config.Rules.SyncSecondRound && s.second && len(m.Transfer.Entries) > 0 {
		second := n.decide(s, m.Transfer.Entries)
		for _, to := range s.to[:s.before] {
			n.ship(s, to, second)
		}
	}
	s.unacked--
	if waiting >= 0 {
		n.hand(s, m.From, *s.waiting[waiting].Transfer)
		s.waiting = slices.Delete(s.waiting, waiting, waiting+1)
	}
	n.advance(s)
}

// hand sends what a node behind this one has taken to the next one.
func (n *Node) hand(s *transfer, from uint16, part Transfer) {
	place := slices.Index(s.to, from)
	if n.config.Rules.SyncInOrder && place >= s.before && place+1 < len(s.to) {
		n.ship(s, s.to[place+1], part)
	}
}

// decide returns whose the entries are that a node before this one has: what this node has heard of them first. It says nothing of those that it has no
// room for.
func (n *Node) decide(s *transfer, entries []Entry) Transfer {
	second := Transfer{Sync: s.id, Second: true, Low: s.low, High: s.high}
	for _, entry := range entries {
		own, ok := n.table.Find(entry.Key)
		if !ok {
			if own, ok = n.insert(Record{entry.Key, entry.Owner, n.period, false}); !ok {
				n.Counters.Uncopied++
				continue
			}
		}
		entry.Owner = own.Owner
		second.Entries = append(second.Entries, entry)
	}
	return second
}

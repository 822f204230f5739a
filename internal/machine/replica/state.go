package replica

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
)

// Clone returns a copy that shares nothing that changes, of a node made by NewNode.
func (n *Node) Clone() *Node {
	copied := *n
	copied.table, copied.cache = n.table.(*memory).clone(), n.cache.(*memory).clone()
	copied.done, copied.out = slices.Clone(n.done), nil
	copied.syncs = make([]*transfer, len(n.syncs))
	for i, s := range n.syncs {
		same := *s
		same.waiting = slices.Clone(s.waiting)
		copied.syncs[i] = &same
	}
	return &copied
}

// Append appends what decides the node's future to text: nodes with the same text behave the same. Counters are left out, and periods are
// counted back from now.
func (n *Node) Append(text []byte) []byte {
	text = binary.BigEndian.AppendUint16(text, n.id)
	for _, number := range [...]uint32{n.view, n.synced, n.life} {
		text = binary.BigEndian.AppendUint32(text, number)
	}
	text = appendList(text, n.list)
	text = n.appendRecords(text, n.table)
	text = n.appendRecords(text, n.cache)
	for _, s := range n.syncs {
		text = binary.BigEndian.AppendUint32(text, s.id)
		text = binary.BigEndian.AppendUint64(text, uint64(s.next))
		text = append(text, flag(s.sentAll))
		text = binary.BigEndian.AppendUint32(text, s.number)
		text = binary.BigEndian.AppendUint32(text, uint32(s.unacked))
		text = append(text, byte(len(s.waiting)))
		for i := range s.waiting {
			text = s.waiting[i].Append(text)
		}
	}
	text = append(text, byte(len(n.syncs)))
	for _, sync := range n.done {
		text = binary.BigEndian.AppendUint32(text, sync)
	}
	return text
}

func (n *Node) appendRecords(text []byte, t Table) []byte {
	t.Each(0, math.MaxUint64, func(r Record) bool {
		text = binary.BigEndian.AppendUint64(text, uint64(r.Key))
		text = binary.BigEndian.AppendUint32(text, uint32(r.Owner))
		text = binary.BigEndian.AppendUint32(text, n.period-r.Period)
		text = binary.BigEndian.AppendUint32(text, n.age(r))
		text = append(text, flag(r.Cacheable))
		return true
	})
	return append(text, 0xff)
}

// Clone returns a copy that shares nothing that changes.
func (c *Controller) Clone() *Controller {
	copied := *c
	copied.State = c.State.clone()
	copied.acked = maps.Clone(c.acked)
	copied.out = nil
	return &copied
}

func (s State) clone() State {
	s.Lists = slices.Clone(s.Lists)
	s.Ongoing, s.Cancelled = slices.Clone(s.Ongoing), slices.Clone(s.Cancelled)
	return s
}

// Append appends what decides the controller's future to text.
func (c *Controller) Append(text []byte) []byte {
	for _, number := range [...]uint32{c.State.Version, c.State.Synced, c.State.NextSync} {
		text = binary.BigEndian.AppendUint32(text, number)
	}
	for _, list := range c.State.Lists {
		text = appendList(text, list)
	}
	for _, sync := range c.State.Ongoing {
		text = binary.BigEndian.AppendUint32(text, sync.ID)
	}
	text = append(text, byte(len(c.State.Ongoing)))
	for _, sync := range c.State.Cancelled {
		text = binary.BigEndian.AppendUint32(text, sync)
	}
	for _, member := range c.State.list() {
		acknowledged := c.acked[member.Node]
		text = binary.BigEndian.AppendUint32(text, acknowledged.view)
		text = binary.BigEndian.AppendUint32(text, acknowledged.synced)
	}
	return text
}

package beyond

import (
	"math/bits"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/model"
)

const idleTimeout = int64(model.DefaultIdleTimeout)

// tableLayout is that of cookies of the default width: 127 servers.
var tableLayout = conntable.Layout{IndexBits: model.DefaultIndexBits, IDBits: talkCookieBits - 1 - model.DefaultIndexBits}

// entry is one place of a connection table.
type entry struct {
	flow  uint64 // hash: no two flows of a service have one
	last  int64  // packet
	state conntable.State
}

// entries is a connection table under the rules of bpf/lb/affinity/table.h and assign.h and of its sweeper, with the words, the limits and the arithmetic
// of internal/algo/conntable. Every tag is told at once: packets of a connection do not overtake one another here.
type entries struct {
	blocks, partitions uint32
	words              []conntable.Block
	all                []entry
	swept              int64  // when the next block is due
	block              uint32 // which one
}

func newEntries(count uint32) *entries {
	e := &entries{blocks: conntable.Blocks(count)}
	e.partitions = conntable.Partitions(e.blocks, tableLayout.IndexBits)
	for range e.blocks {
		e.words = append(e.words, conntable.Block{Free: conntable.FreeMask(tableLayout.IndexBits)})
	}
	e.all = make([]entry, e.blocks*conntable.BlockEntries)
	return e
}

// find returns the entry that an index of a flow's cookie names, if it is the flow's.
func (e *entries) find(flow uint64, index uint16) *entry {
	at := &e.all[conntable.Entry(conntable.PartitionOf(flow, e.partitions), index, tableLayout.IndexBits)]
	if index == 0 || at.flow != flow || at.state == conntable.StateNone {
		return nil
	}
	return at
}

// packet is what a packet of a flow means for the table. It returns the index that the flow's cookie has from then on; 0: no other one.
func (e *entries) packet(flow uint64, index uint16, now int64, last bool) uint16 {
	at := e.find(flow, index)
	switch {
	case at != nil && at.state == conntable.StateNew:
		at.state = conntable.StateOpen
	case at == nil && !last:
		index, at = e.add(flow)
	}
	if at == nil {
		return 0
	}
	at.last = now
	if last && !at.state.Ended() {
		at.state = conntable.StateFinished
		block, bit := conntable.Bit(conntable.Entry(conntable.PartitionOf(flow, e.partitions), index, tableLayout.IndexBits))
		e.words[block].End(bit)
	}
	return index
}

// add gives a flow the lowest free index of its partition, or the lowest whose connection has ended.
func (e *entries) add(flow uint64) (uint16, *entry) {
	partition := conntable.PartitionOf(flow, e.partitions)
	block, _ := conntable.Bit(conntable.Entry(partition, 0, tableLayout.IndexBits))
	bit := e.words[block].Take(conntable.PartitionMask(partition, tableLayout.IndexBits))
	if bit == 0 {
		return 0, nil
	}
	number := block<<conntable.BlockBits + uint32(bits.TrailingZeros64(bit))
	e.all[number] = entry{flow: flow, state: conntable.StateNew}
	_, index := conntable.Index(number, tableLayout.IndexBits)
	return index, &e.all[number]
}

// sweep frees what has been silent for too long in the next block.
func (e *entries) sweep() {
	limits, words := conntable.LimitsOf(time.Duration(idleTimeout)), &e.words[e.block]
	used := words.Used(conntable.FreeMask(tableLayout.IndexBits))
	for ; used != 0; used &= used - 1 {
		bit := used & -used
		at := &e.all[e.block<<conntable.BlockBits+uint32(bits.TrailingZeros64(used))]
		if e.swept-at.last >= int64(limits.Of(at.state)) {
			*at = entry{}
			words.TakeEnded(bit)
			words.Release(bit)
		}
	}
	e.block = (e.block + 1) % e.blocks
	e.swept += int64(conntable.SweepRound) / int64(e.blocks)
}

// carried is a load balancer of ours with `affinity: table`: the cookie of a packet names the server, and beside it the entry.
type carried struct {
	talks   *talks
	turns   dispatch.Turns // over ids
	entries *entries
	attack  attack
	atSYN   bool     // an entry for every SYN, as Cheetah III-B has it: ours are made after the handshake
	servers []uint16 // by connection: who got its SYN
	echoes  []uint16 // by connection: the cookie that its client has last seen
	fates   []fate
}

// attack is what outsiders do to a table.
type attack interface {
	next() int64 // when they do it again
	strike(c *carried)
}

// newCarried returns a load balancer with a table of so many entries.
func newCarried(t *talks, count uint32, a attack) *carried {
	c := &carried{talks: t, entries: newEntries(count), attack: a}
	c.choose(nil)
	return c
}

// choose sets who gets new connections.
func (c *carried) choose(isAway func(id uint16) bool) {
	c.turns.Round = c.turns.Round[:0]
	for _, share := range everyServer(talkServers, isAway) {
		c.turns.Round = append(c.turns.Round, uint32(share.ID))
	}
}

func (c *carried) until(now int64) {
	for {
		strike := c.attack.next()
		switch {
		case c.entries.swept <= min(strike, now):
			c.entries.sweep()
		case strike <= now:
			c.attack.strike(c)
		default:
			return
		}
	}
}

// open is what any SYN does. It returns the server, and the index that its SYN-ACK will tell, if there is one.
func (c *carried) open(flow uint64, now int64) (server, index uint16) {
	server = uint16(c.turns.Choose(0, nil))
	if c.atSYN {
		var at *entry
		if index, at = c.entries.add(flow); at != nil {
			at.last = now
		}
	}
	return server, index
}

func (c *carried) syn(n uint32, now int64) {
	t := &c.talks.list[n]
	server, index := c.open(t.placed, now)
	c.servers, c.echoes, c.fates = put(c.servers, n, server), put(c.echoes, n, c.cookie(t, index, server)), put(c.fates, n, 0)
}

// cookie is what a server writes.
func (c *carried) cookie(t *talk, index, server uint16) uint16 {
	return cookie.Encode(talkCookieBits, talkEpoch, tableLayout.Join(0, index, server), t.marked)
}

func (c *carried) packet(n uint32, now int64, last bool) {
	t := &c.talks.list[n]
	_, index, id := tableLayout.Split(cookie.Decode(talkCookieBits, uint32(c.echoes[n]), t.marked))
	if id != c.servers[n] {
		c.fates[n] |= wentWrong
	}
	if reported := c.entries.packet(t.placed, index, now, last); reported != 0 {
		c.echoes[n] = c.cookie(t, reported, id)
	}
}

func (c *carried) fate(n uint32) fate { return c.fates[n] }

// unseen is the part of the connections that have no entry now, of those that have come to their first packet.
func (c *carried) unseen(now int64) float64 {
	all, without := 0, 0
	for n := range c.talks.list {
		t := &c.talks.list[n]
		if t.owner == 0 || now <= t.begun+talkRTT {
			continue
		}
		all++
		_, index, _ := tableLayout.Split(cookie.Decode(talkCookieBits, uint32(c.echoes[n]), t.marked))
		if c.entries.find(t.placed, index) == nil {
			without++
		}
	}
	return float64(without) / float64(all)
}

// Package tabletest is a connection table in memory that no packet sees, and the audit of any.
package tabletest

import (
	"math/bits"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Fake is a table in memory that no packet sees; it begins at block 1.
type Fake struct {
	*connections.Memory
	connections.Table
}

func NewFake(blocks uint32, indexBits uint8) Fake {
	f := Fake{&connections.Memory{
		Entries:   make([]connections.Entry, (blocks+2)*conntable.BlockEntries),
		Blocks:    make([]conntable.Block, blocks+2),
		Addresses: make([]connections.Address, (blocks+2)*conntable.BlockEntries),
	}, connections.Table{TablePlace: plan.TablePlace{Base: 1, Blocks: blocks, IndexBits: indexBits}}}
	for i := range blocks {
		f.Blocks[f.Base+i].Free = conntable.FreeMask(indexBits)
	}
	return f
}

// Take is what table_add does: an index of a block, for a connection. It returns the entry, 0: there is none.
func (f Fake) Take(block uint32, client netip.AddrPort, id uint16, state conntable.State) uint32 {
	at := f.Base + block
	bit := f.Blocks[at].Take(^uint64(0))
	if bit == 0 {
		return 0
	}
	entry := at<<conntable.BlockBits + uint32(bits.TrailingZeros64(bit))
	f.Own(entry, client, id, state)
	return entry
}

func (f Fake) Own(entry uint32, client netip.AddrPort, id uint16, state conntable.State) {
	c := &f.Entries[entry]
	generation := connections.LoadOwner(c).Nobody() + 1<<56
	atomic.StoreUint64((*uint64)(&c.Owner), uint64(connections.LoadOwner(c).Nobody()))
	words := plan.WireAddress(client.Addr())
	if f.IPv6 {
		f.Addresses[entry].Client = wordsOf(words)
	} else {
		atomic.StoreUint32(&c.Client, wordsOf(words)[0])
	}
	now := connections.Clock()
	atomic.StoreUint32(&c.Last, now)
	atomic.StoreUint32(&c.First, now>>connections.FirstShift)
	atomic.StoreUint32(&c.Packets, 0)
	atomic.StoreUint64(&c.Bytes, 0)
	atomic.StoreUint64((*uint64)(&c.Owner), uint64(generation|conntable.Owner(state)<<48|conntable.Owner(id)<<32|conntable.Owner(wire.Port(client.Port()))))
}

// End is what table_end does.
func (f Fake) End(entry uint32, state conntable.State) {
	before := connections.LoadOwner(&f.Entries[entry])
	if before.State().Lives() && connections.SwapOwner(&f.Entries[entry], before, before.With(state)) {
		block, bit := conntable.Bit(entry)
		f.Blocks[block].End(bit)
	}
}

func wordsOf(raw [16]byte) (words [4]uint32) {
	for i := range words {
		words[i] = uint32(raw[4*i]) | uint32(raw[4*i+1])<<8 | uint32(raw[4*i+2])<<16 | uint32(raw[4*i+3])<<24
	}
	return words
}

func FlowFrom(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), uint16(1024+i))
}

// Ago moves the last packet of an entry, and its beginning, into the past.
func (f Fake) Ago(entry uint32, d time.Duration) {
	f.Entries[entry].Last -= uint32(d / connections.LastUnit)
	f.Entries[entry].First = f.Entries[entry].Last >> connections.FirstShift
}

func (f Fake) All() (found []connections.Connection) {
	f.Each(f.Table, 0, f.Table.Blocks, func(c *connections.Connection) { found = append(found, *c) })
	return found
}

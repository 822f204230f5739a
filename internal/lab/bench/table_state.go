// The states of connection tables that are measured.
package bench

import (
	"math/bits"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/plan"
)

// tableState is the connection table of a service whose partitions have 2^6 entries, while no packets come.
type tableState struct {
	all    *connections.Memory
	table  connections.Table
	blocks []conntable.Block
	rest   conntable.Block // of every block, as it was prepared
}

func newTableState(of *lb.LB, place plan.TablePlace) *tableState {
	all := of.Connections()
	return &tableState{all: all, table: connections.Table{TablePlace: place}, blocks: all.Blocks[place.Base:][:place.Blocks]}
}

// Connection returns what an entry says; ok: it is one connection's.
func (t *tableState) Connection(partition uint32, index uint8) (c connections.Connection, ok bool) {
	ok = t.all.Read(t.at(partition, int(index)), &t.table, connections.Clock(), &c)
	return c, ok
}

func (t *tableState) at(partition uint32, index int) uint32 {
	return conntable.Entry(t.table.Base+partition, uint16(index), conntable.BlockBits)
}

// Prepare makes every partition one with so many free indices and so many of connections that have ended. The others are held. Packets
// may have changed only what was restored.
func (t *tableState) Prepare(free, ended int) {
	before := t.rest.Ended
	t.rest = conntable.Block{Free: 1<<(1+free) - 2, Ended: (1<<ended - 1) << (1 + free)}
	for i := range t.blocks {
		t.blocks[i] = t.rest
		t.reset(uint32(i), before|t.rest.Ended)
	}
}

// Restore puts a partition back into the state that Prepare gave to all.
func (t *tableState) Restore(partition uint32) {
	b := &t.blocks[partition]
	t.reset(partition, (b.Free^t.rest.Free)|(b.Ended^t.rest.Ended))
	*b = t.rest
}

// reset writes the entries of some bits of a partition as they are at rest.
func (t *tableState) reset(partition uint32, changed uint64) {
	for ; changed != 0; changed &= changed - 1 {
		bit := bits.TrailingZeros64(changed)
		var c connections.Entry
		if t.rest.Ended>>bit&1 != 0 {
			c.Owner = conntable.Owner(0).With(conntable.StateFinished)
		}
		t.all.Entries[t.at(partition, bit)] = c
	}
}

// Reopen makes the connections of a partition that have ended open again.
func (t *tableState) Reopen(partition uint32) {
	b := &t.blocks[partition]
	for ; b.Ended != 0; b.Ended &= b.Ended - 1 {
		word := &t.all.Entries[t.at(partition, bits.TrailingZeros64(b.Ended))].Owner
		*word = word.With(conntable.StateOpen)
	}
}

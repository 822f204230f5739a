package lb

import (
	"math"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestAnEmptyTableHasItsIndicesFreeAndLeavesOthersAlone(t *testing.T) {
	const blocks = 8
	tables := lbTables{connections: make([]lbConnection, blocks*conntable.BlockEntries), connectionBlocks: make([]lbConnectionBlock, blocks)}
	used := lbConnection{Client: 1, Packets: 2, Bytes: 3, First: 4, Last: 5}
	used.Owner.Word = math.MaxUint64
	for i := range tables.connections {
		tables.connections[i] = used
	}
	full := lbConnectionBlock{Ended: 6}
	for i := range tables.connectionBlocks {
		tables.connectionBlocks[i] = full
	}
	tables.clearTable(plan.ClearTable{Base: 2, Blocks: 3, IndexBits: 5})
	for i, block := range tables.connectionBlocks {
		want, entry := full, used
		if i >= 2 && i < 5 {
			want, entry = lbConnectionBlock{Free: conntable.FreeMask(5)}, lbConnection{}
		}
		if block != want {
			t.Errorf("block %d: %+v, want %+v", i, block, want)
		}
		for j, have := range tables.connections[i*conntable.BlockEntries:][:conntable.BlockEntries] {
			if have != entry {
				t.Fatalf("block %d, entry %d: %+v, want %+v", i, j, have, entry)
			}
		}
	}
}

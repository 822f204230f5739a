package connections

import (
	"math"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestAnEmptyTableHasItsIndicesFreeAndLeavesOthersAlone(t *testing.T) {
	const blocks = 8
	tables := Memory{Entries: make([]Entry, blocks*conntable.BlockEntries), Blocks: make([]conntable.Block, blocks)}
	used := Entry{Client: 1, Packets: 2, Bytes: 3, First: 4, Last: 5}
	used.Owner = math.MaxUint64
	for i := range tables.Entries {
		tables.Entries[i] = used
	}
	full := conntable.Block{Ended: 6}
	for i := range tables.Blocks {
		tables.Blocks[i] = full
	}
	tables.Clear(plan.ClearTable{Base: 2, Blocks: 3, IndexBits: 5})
	for i, block := range tables.Blocks {
		want, entry := full, used
		if i >= 2 && i < 5 {
			want, entry = conntable.Block{Free: conntable.FreeMask(5)}, Entry{}
		}
		if block != want {
			t.Errorf("block %d: %+v, want %+v", i, block, want)
		}
		for j, have := range tables.Entries[i*conntable.BlockEntries:][:conntable.BlockEntries] {
			if have != entry {
				t.Fatalf("block %d, entry %d: %+v, want %+v", i, j, have, entry)
			}
		}
	}
}

func TestAnEntryThatCameAfterTheClockWasReadIsNotOld(t *testing.T) {
	for _, c := range []struct{ now, was, want uint32 }{{5, 3, 2}, {3, 5, 0}, {2, ^uint32(0), 3}, {^uint32(0), 2, 0}, {1 << 31, 0, 1 << 31}, {0, 1 << 20, -(1 << 20) & (1<<32 - 1)}} {
		if got := since(c.now, c.was, lastBits); got != c.want {
			t.Errorf("since %d at %d: %d, not %d", c.was, c.now, got, c.want)
		}
	}
	if got := since(1, 2, lastBits-FirstShift); got != 0 {
		t.Errorf("a beginning in the future was %d ago", got)
	}
	if got := since(1, 1<<21, lastBits-FirstShift); got != 1<<21+1 {
		t.Errorf("a beginning before the clock turned over was %d ago", got)
	}
}

package conntable

import (
	"math"
	"math/bits"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

func anyLayout(t *rapid.T) Layout {
	l := Layout{IndexBits: rapid.Uint8Range(1, BlockBits).Draw(t, "index bits"), NodeBits: rapid.Uint8Range(0, 8).Draw(t, "node bits")}
	l.IDBits = rapid.Uint8Range(1, model.MaxCookieBits-1-l.IndexBits-l.NodeBits).Draw(t, "id bits")
	return l
}

func TestWhatIsJoinedIsSplitAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := anyLayout(t)
		plain := rapid.Uint16Range(0, 1<<(l.NodeBits+l.IndexBits+l.IDBits)-1).Draw(t, "plain")
		node, index, id := l.Split(plain)
		if got := l.Join(node, index, id); got != plain {
			t.Errorf("%+v: %#x became %d %d %d and %#x", l, plain, node, index, id, got)
		}
		if node>>l.NodeBits != 0 || index>>l.IndexBits != 0 || id>>l.IDBits != 0 {
			t.Errorf("%+v: %d, %d or %d is too wide", l, node, index, id)
		}
	})
}

func TestNothingButWhereItBelongsIsJoined(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := anyLayout(t)
		all := rapid.SliceOfN(rapid.Uint16(), 3, 3).Draw(t, "all")
		node, index, id := l.Split(l.Join(all[0], all[1], all[2]))
		if node != all[0]&mask(l.NodeBits) || index != all[1]&mask(l.IndexBits) || id != all[2]&mask(l.IDBits) {
			t.Errorf("%+v: %v became %d %d %d", l, all, node, index, id)
		}
	})
}

func TestLayoutIsThatOfTheModel(t *testing.T) {
	for _, nodes := range []uint8{0, model.DefaultNodeBits} {
		s := model.Service{Affinity: model.AffinityTable, Table: model.Table{IndexBits: model.DefaultIndexBits, NodeBits: nodes}, CookieBits: model.MaxCookieBits}
		l := Layout{NodeBits: s.Table.NodeBits, IndexBits: s.Table.IndexBits, IDBits: s.IDBits()}
		cookieBits := 1 + l.NodeBits + l.IndexBits + l.IDBits // one of the epoch
		if _, _, id := l.Split(math.MaxUint16); cookieBits != s.CookieBits || id != s.MaxID() {
			t.Errorf("%+v: cookies of %d bits, ids up to %d; the model has %d and %d", l, cookieBits, id, s.CookieBits, s.MaxID())
		}
	}
}

// A cookie without an entry is exactly a stateless one: the tag is 0 and the rest is the id.
func TestAnIDAloneIsAStatelessCookie(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := anyLayout(t)
		id := rapid.Uint16Range(0, mask(l.IDBits)).Draw(t, "id")
		if l.Join(0, 0, id) != id {
			t.Errorf("%+v: id %d became %d", l, id, l.Join(0, 0, id))
		}
	})
}

func TestBlocksHoldAllEntriesAndNoBlockIsForNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.Uint32().Draw(t, "entries")
		if got, want := uint64(Blocks(entries)), (uint64(entries)+BlockEntries-1)/BlockEntries; got != want {
			t.Errorf("%d blocks for %d entries, want %d", got, entries, want)
		}
	})
}

func TestEveryIndexOfEveryPartitionHasABitOfItsOwn(t *testing.T) {
	for indexBits := uint8(1); indexBits <= BlockBits; indexBits++ {
		const blocks = 3
		type place struct {
			block uint32
			bit   uint64
		}
		seen := map[place]bool{}
		for partition := range Partitions(blocks, indexBits) {
			for index := range uint16(1) << indexBits {
				entry := Entry(partition, index, indexBits)
				if p, i := Index(entry, indexBits); p != partition || i != index {
					t.Fatalf("entry %d is of partition %d, index %d; want %d, %d", entry, p, i, partition, index)
				}
				block, bit := Bit(entry)
				if seen[place{block, bit}] || block >= blocks || bits.OnesCount64(bit) != 1 {
					t.Fatalf("r %d, partition %d, index %d: block %d, bit %#x", indexBits, partition, index, block, bit)
				}
				seen[place{block, bit}] = true
				if PartitionMask(partition, indexBits)&bit == 0 {
					t.Fatalf("r %d: bit %#x is not one of partition %d", indexBits, bit, partition)
				}
				if free := FreeMask(indexBits)&bit != 0; free != (index != 0) {
					t.Fatalf("r %d, partition %d: index %d is free: %v", indexBits, partition, index, free)
				}
			}
			if got := bits.OnesCount64(PartitionMask(partition, indexBits)); got != 1<<indexBits {
				t.Fatalf("r %d: %d bits", indexBits, got)
			}
		}
		if len(seen) != blocks*BlockEntries {
			t.Errorf("r %d: %d entries in %d blocks", indexBits, len(seen), blocks)
		}
	}
}

func TestAFlowsPartitionIsInTheTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.Uint32Range(1, math.MaxUint32).Draw(t, "partitions")
		if got := PartitionOf(rapid.Uint64().Draw(t, "hash"), partitions); got >= partitions {
			t.Errorf("%d of %d", got, partitions)
		}
	})
	if PartitionOf(0, 7) != 0 || PartitionOf(math.MaxUint64, 7) != 6 {
		t.Error("the first or the last partition is never used")
	}
}

// overflow returns the part of new connections that find no free entry, by Erlang's formula B, (a^n/n!) / sum of a^i/i!, i to n: Erlang,
// "Solution of some problems in the theory of probabilities of significance in automatic telephone exchanges" (1917). The entries of a
// partition are its lines, and load the mean number of connections that it would have if it had room for all.
//
// Erlang's callers give up. Connections without an entry try again with their next packet, so they are without one for a shorter time.
func overflow(lines int, load float64) float64 {
	term, sum := 1.0, 1.0
	for i := 1; i <= lines; i++ {
		term *= load / float64(i)
		sum += term
	}
	return term / sum
}

func TestOverflowIsErlangsFormula(t *testing.T) {
	if got := overflow(15, 8.1); math.Abs(got-0.01) > 0.0005 { // published tables: 15 lines carry 8.11 erlang with 1 % lost
		t.Errorf("15 lines, 8.1 erlang: %g", got)
	}
}

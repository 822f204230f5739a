package maglev

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/siphash"
	"github.com/ballast-lb/ballast/internal/model"
)

func equalShares(n int) (shares []model.Share) {
	for id := range n {
		shares = append(shares, model.Share{ID: uint16(id + 1), Weight: 1})
	}
	return shares
}

func count(owners []uint16) map[uint16]int {
	slots := make(map[uint16]int)
	for _, id := range owners {
		slots[id]++
	}
	return slots
}

// anyShares draws distinct ids with weights of 1 to heaviest.
func anyShares(t *rapid.T, most int, heaviest uint16) []model.Share {
	ids := rapid.SliceOfNDistinct(rapid.Uint16Range(1, 32767), 1, most, rapid.ID[uint16]).Draw(t, "ids")
	shares := make([]model.Share, len(ids))
	for i, id := range ids {
		shares[i] = model.Share{ID: id, Weight: rapid.Uint16Range(1, heaviest).Draw(t, "weight")}
	}
	return shares
}

// dumbTable follows the text of section 3.4 literally: whole permutations, entry by entry, for equal weights.
func dumbTable(slots uint64, shares []model.Share) []uint16 {
	var ids []uint16
	for _, share := range shares {
		ids = append(ids, share.ID)
	}
	slices.Sort(ids)
	permutation := make([][]uint64, len(ids))
	for i, id := range ids {
		name := binary.LittleEndian.AppendUint16(nil, id)
		offset, skip := siphash.Sum13(offsetKey, 0, name)%slots, siphash.Sum13(skipKey, 0, name)%(slots-1)+1
		for j := range slots {
			permutation[i] = append(permutation[i], (offset+j*skip)%slots)
		}
	}
	entry := make([]uint16, slots)
	next := make([]int, len(ids))
	for filled := uint64(0); ; {
		for i := range ids {
			for entry[permutation[i][next[i]]] != 0 {
				next[i]++
			}
			entry[permutation[i][next[i]]] = ids[i]
			if filled++; filled == slots {
				return entry
			}
		}
	}
}

func TestTableEqualsTheDumbImplementationForEqualWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.SampledFrom([]uint32{7, 251, 509}).Draw(t, "slots")
		shares := anyShares(t, 40, 1)
		if have, want := Table(slots, shares), dumbTable(uint64(slots), shares); !slices.Equal(have, want) {
			t.Errorf("have %v\nwant %v", have, want)
		}
	})
}

func TestTableDoesNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := anyShares(t, 20, 256)
		shuffled := rapid.Permutation(shares).Draw(t, "shuffled")
		if !slices.Equal(Table(251, shares), Table(251, shuffled)) {
			t.Error("another order gave another table")
		}
	})
}

func TestTableDependsOnTheRatioOfWeightsOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := anyShares(t, 20, 25)
		factor := rapid.Uint16Range(2, 10).Draw(t, "factor")
		scaled := slices.Clone(shares)
		for i := range scaled {
			scaled[i].Weight *= factor
		}
		if !slices.Equal(Table(251, shares), Table(251, scaled)) {
			t.Error("scaling all weights changed the table")
		}
	})
}

func TestSlotsAreInProportionToWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const slots = 4093
		shares := anyShares(t, 50, 256)
		total := 0.0
		for _, share := range shares {
			total += float64(share.Weight)
		}
		owners := count(Table(slots, shares))
		// Everybody takes one slot in the first round, so a share is off by one slot and by what those extra slots cost it.
		for _, share := range shares {
			exact := slots * float64(share.Weight) / total
			if off := math.Abs(float64(owners[share.ID]) - exact); off > 2+exact*float64(len(shares))/slots {
				t.Errorf("server %d of weight %d owns %d slots instead of %.1f", share.ID, share.Weight, owners[share.ID], exact)
			}
		}
		if owners[0] != 0 {
			t.Errorf("%d slots have no owner", owners[0])
		}
	})
}

func TestEqualWeightsDifferByOneSlotAtMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := anyShares(t, 200, 1)
		least, most := math.MaxInt, 0
		for _, slots := range count(Table(4093, shares)) {
			least, most = min(least, slots), max(most, slots)
		}
		if most-least > 1 {
			t.Errorf("between %d and %d slots", least, most)
		}
	})
}

// Maglev trades a little disruption for even shares (section 3.4); it grows with the servers per slot.
func TestRemovingAServerMovesFewOtherSlots(t *testing.T) {
	const slots, servers = 65521, 100
	before := Table(slots, equalShares(servers))
	for _, gone := range []int{0, 17, servers - 1} {
		shares := equalShares(servers)
		after := Table(slots, slices.Delete(shares, gone, gone+1))
		moved := 0
		for i := range before {
			if before[i] != uint16(gone+1) && before[i] != after[i] {
				moved++
			}
		}
		if moved > slots*6/100 {
			t.Errorf("removing server %d moved %d of %d slots of other servers", gone+1, moved, slots)
		}
	}
}

func TestNobodyOwnsSlotsWithoutWeight(t *testing.T) {
	for _, shares := range [][]model.Share{nil, {{ID: 1}}, {{ID: 1}, {ID: 2}}} {
		if owners := count(Table(251, shares)); owners[0] != 251 {
			t.Errorf("%v: %v", shares, owners)
		}
	}
	if owners := count(Table(251, []model.Share{{ID: 1}, {ID: 2, Weight: 1}})); owners[2] != 251 {
		t.Errorf("have %v", owners)
	}
}

func BenchmarkLargestTable(b *testing.B) {
	shares := equalShares(1000)
	for b.Loop() {
		Table(65521, shares)
	}
}

package candidates

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/model"
)

var methods = map[string]func(slots uint32, choices int, shares []model.Share) []uint16{"Table": Table, "Columns": Columns}

func equalShares(n int) (shares []model.Share) {
	for id := range n {
		shares = append(shares, model.Share{ID: uint16(id + 1), Weight: 1})
	}
	return shares
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

// The example of 6LB: servers are numbered from 0 there, and have ids from 1 here.
func TestExampleOfThePaper(t *testing.T) {
	const slots = 7
	permutations := map[uint16][slots]uint32{0: {4, 5, 6, 0, 1, 2, 3}, 1: {1, 3, 5, 0, 2, 4, 6}, 2: {5, 3, 1, 6, 4, 2, 0}, 3: {6, 0, 1, 2, 3, 4, 5}}
	table := func(servers ...uint16) (pairs [slots][2]int) {
		var turns []turn
		for _, server := range servers {
			p := permutations[server]
			turns = append(turns, turn{id: server + 1, weight: 1, next: p[0], start: p[0], skip: (p[1] + slots - p[0]) % slots})
		}
		f := newFilling(slots, 2)
		f.fill(0, 2, turns)
		for i, id := range f.cells {
			pairs[i/2][i%2] = int(id) - 1
		}
		return pairs
	}
	if have, want := table(0, 1, 2, 3), [slots][2]int{{3, 1}, {1, 2}, {3, 0}, {1, 2}, {0, 1}, {2, 0}, {3, 0}}; have != want {
		t.Errorf("have %v, want %v", have, want)
	}
	if have, want := table(1, 2, 3), [slots][2]int{{3, 1}, {1, 2}, {3, 1}, {1, 2}, {3, 2}, {2, 1}, {3, 2}}; have != want {
		t.Errorf("without server 0: have %v, want %v", have, want)
	}
}

// dumbFill is the text: whole permutations, and a look at all that a slot has. It goes on until nobody takes anything any more.
func dumbFill(slots, choices, from, to int, family uint64, shares []model.Share, rows [][]uint16) {
	shares = slices.Clone(shares)
	slices.SortFunc(shares, func(a, b model.Share) int { return int(a.ID) - int(b.ID) })
	permutations := make([][]int, len(shares))
	for i, share := range shares {
		offset, skip := maglev.Permutation(share.ID, family, uint64(slots))
		for j := range uint64(slots) {
			permutations[i] = append(permutations[i], int((offset+j*skip)%uint64(slots)))
		}
	}
	for taken := true; taken; {
		taken = false
		for i, share := range shares {
			for _, slot := range permutations[i] {
				if len(rows[slot]) < to && !slices.Contains(rows[slot], share.ID) {
					rows[slot] = append(rows[slot], share.ID)
					taken = true
					break
				}
			}
		}
	}
}

func flat(rows [][]uint16, choices int) []uint16 {
	cells := make([]uint16, len(rows)*choices)
	for slot, row := range rows {
		copy(cells[slot*choices:], row)
	}
	return cells
}

func TestTablesEqualTheDumbImplementationForEqualWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.SampledFrom([]int{7, 61, 127}).Draw(t, "slots")
		choices := rapid.IntRange(1, 5).Draw(t, "choices")
		shares := anyShares(t, 12, 1)
		atOnce, columns := make([][]uint16, slots), make([][]uint16, slots)
		dumbFill(slots, choices, 0, choices, 0, shares, atOnce)
		if have, want := Table(uint32(slots), choices, shares), flat(atOnce, choices); !slices.Equal(have, want) {
			t.Errorf("Table: have %v\nwant %v", have, want)
		}
		for column := range choices {
			dumbFill(slots, choices, column, column+1, uint64(column), shares, columns)
		}
		if have, want := Columns(uint32(slots), choices, shares), flat(columns, choices); !slices.Equal(have, want) {
			t.Errorf("Columns: have %v\nwant %v", have, want)
		}
	})
}

func TestOneChoiceIsMaglev(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := anyShares(t, 40, 256)
		want := maglev.Table(251, shares)
		for name, table := range methods {
			if !slices.Equal(table(251, 1, shares), want) {
				t.Errorf("%s differs", name)
			}
		}
		columns := Columns(251, 3, shares)
		for slot, id := range want {
			if columns[3*slot] != id {
				t.Fatalf("the first choice of slot %d is %d, not Maglev's %d", slot, columns[3*slot], id)
			}
		}
	})
}

func TestCandidatesOfASlotAreDistinctAndAsManyAsThereCanBe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choices := rapid.IntRange(1, 6).Draw(t, "choices")
		shares := anyShares(t, 8, 256)
		for name, table := range methods {
			for row := range slices.Chunk(table(61, choices, shares), choices) {
				seen := map[uint16]bool{}
				for i, id := range row {
					known := slices.ContainsFunc(shares, func(s model.Share) bool { return s.ID == id })
					if (i < len(shares)) != (id != 0) || id != 0 && (!known || seen[id]) {
						t.Fatalf("%s: candidates %v of %d servers", name, row, len(shares))
					}
					seen[id] = true
				}
			}
		}
	})
}

func TestTablesDoNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := anyShares(t, 20, 256)
		shuffled := rapid.Permutation(shares).Draw(t, "shuffled")
		for name, table := range methods {
			if !slices.Equal(table(251, 2, shares), table(251, 2, shuffled)) {
				t.Errorf("%s: another order gave another table", name)
			}
		}
	})
}

func TestNobodyIsACandidateWithoutWeight(t *testing.T) {
	for name, table := range methods {
		for _, shares := range [][]model.Share{nil, {{ID: 1}}, {{ID: 1}, {ID: 2}}} {
			if slices.Max(table(7, 2, shares)) != 0 {
				t.Errorf("%s of %v: somebody is", name, shares)
			}
		}
		if have := table(7, 2, []model.Share{{ID: 1}, {ID: 2, Weight: 1}}); slices.Contains(have, 1) || have[0] != 2 || have[1] != 0 {
			t.Errorf("%s: have %v", name, have)
		}
	}
}

// spread returns the fewest and the most cells that any server has in a column, or in all of them when column is below 0.
func spread(cells []uint16, choices, column int) (least, most int) {
	count := map[uint16]int{}
	for cell, id := range cells {
		if column < 0 || cell%choices == column {
			count[id]++
		}
	}
	least = math.MaxInt
	for _, n := range count {
		least, most = min(least, n), max(most, n)
	}
	return least, most
}

func TestEqualWeightsGetEqualShares(t *testing.T) {
	const slots, servers = 35591, 500 // SHELL section VI
	for name, table := range methods {
		if least, most := spread(table(slots, 2, equalShares(servers)), 2, -1); least < 2*slots/servers-1 || most > 2*slots/servers+2 {
			t.Errorf("%s: between %d and %d cells", name, least, most)
		}
	}
	for column := range 2 {
		if least, most := spread(Columns(slots, 2, equalShares(servers)), 2, column); most-least > 1 {
			t.Errorf("Columns: between %d and %d cells of column %d", least, most, column)
		}
	}
	if least, most := spread(Table(slots, 2, equalShares(servers)), 2, 0); most-least < 10 {
		t.Errorf("Table: between %d and %d first choices: even, so what are the Columns for?", least, most)
	}
}

func TestSharesFollowWeights(t *testing.T) {
	shares := []model.Share{{ID: 1, Weight: 1}, {ID: 2, Weight: 2}, {ID: 3, Weight: 3}, {ID: 4, Weight: 4}, {ID: 5, Weight: 2}}
	for name, table := range methods {
		count := map[uint16]int{}
		for _, id := range table(4093, 2, shares) {
			count[id]++
		}
		for _, share := range shares {
			if want := 2 * 4093 * int(share.Weight) / 12; count[share.ID] < want-20 || count[share.ID] > want+20 {
				t.Errorf("%s: server of weight %d has %d cells instead of %d", name, share.Weight, count[share.ID], want)
			}
		}
	}
}

func TestRemovingAServerMovesFewOtherCells(t *testing.T) {
	const slots, servers = 65521, 100
	for name, table := range methods {
		before := table(slots, 2, equalShares(servers))
		for _, gone := range []int{0, 17, servers - 1} {
			after := table(slots, 2, slices.Delete(equalShares(servers), gone, gone+1))
			moved := 0
			for i := range before {
				if before[i] != uint16(gone+1) && before[i] != after[i] {
					moved++
				}
			}
			if moved > 2*slots*3/100 {
				t.Errorf("%s: removing server %d moved %d of %d cells of other servers", name, gone+1, moved, len(before))
			}
			t.Logf("%s: %d of %d cells of others moved", name, moved, len(before))
		}
	}
}

func BenchmarkTableOfSHELL(b *testing.B) {
	shares := equalShares(500)
	for _, slots := range []uint32{35591, 284803} {
		for name, table := range methods {
			b.Run(name, func(b *testing.B) {
				for b.Loop() {
					table(slots, 2, shares)
				}
			})
		}
	}
}

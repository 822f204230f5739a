// Package candidates fills tables with several candidate servers for every slot: Desmouceaux et al., "6LB: Scalable and
// Application-Aware Load Balancing with Segment Routing" (ToN 2018), algorithm 3, which makes SHELL's tables too (Pit-Claudel et al.,
// "Stateless Load-Aware Load Balancing in P4", ICNP 2018, section III-B).
package candidates

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/model"
)

// turn is one server's walk through its permutation of the slots.
type turn struct {
	id          uint16
	next, start uint32 // slot that it asks for next; the first one
	skip        uint32 // step of the walk, 1..slots-1, prime to the prime number of slots
	weight      uint64
	required    uint64 // round * weight at which it takes its next slot
	over        bool   // it has been offered all slots
}

// Table returns the candidates of every slot: the id of the i-th one in cell slot*choices+i, 0 where there is none. A slot's candidates are
// distinct, and as many as choices or servers with a weight, whichever is less. slots must be prime (model.TableSizes). The order of
// shares does not matter. Costs about slots * ln(slots) steps.
//
// As in algorithm 3, servers take turns; each takes the next slot of its permutation that has a free cell, and goes on to the one after
// it, so that it never has a slot twice. Departs from it: servers that have been offered every slot drop out, or it would look for
// slots for ever when there are fewer servers than choices; and servers have weights, as in maglev.Table. A server whose weight is above
// 1/choices of all gets every slot and no more than that.
//
// First choices are not as even as all choices together are: see Columns.
func Table(slots uint32, choices int, shares []model.Share) []uint16 {
	f := newFilling(slots, choices)
	f.fill(0, choices, walks(slots, 0, shares))
	return f.cells
}

// Columns returns candidates as Table does, but fills the cells of all first choices before those of the second, and so on, each time with
// other permutations; no server is a slot's candidate twice.
//
// Departs from algorithm 3, in whose table first choices are as uneven as random ones, and a change of servers moves candidates from one
// place in their list to another: SHELL's connections are bound to the place, so that breaks them like a change of the server. Here each
// column is a Maglev table, the first one maglev.Table itself.
func Columns(slots uint32, choices int, shares []model.Share) []uint16 {
	f := newFilling(slots, choices)
	for column := range choices {
		f.fill(column, column+1, walks(slots, uint64(column), shares))
	}
	return f.cells
}

// walks returns the starting points of all servers with a weight, in the order of their ids. Other families have other permutations.
func walks(slots uint32, family uint64, shares []model.Share) []turn {
	var turns []turn
	for _, share := range shares {
		if share.Weight == 0 || share.ID == 0 {
			continue
		}
		start, skip := maglev.Permutation(share.ID, family, uint64(slots)) // so that the first of the Columns is maglev's table
		turns = append(turns, turn{id: share.ID, weight: uint64(share.Weight), next: uint32(start), start: uint32(start), skip: uint32(skip)})
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.id, b.id) })
	return turns
}

// filling is a table on its way.
type filling struct {
	slots   uint32
	choices int
	cells   []uint16
	taken   []uint8 // cells of every slot that have a server, from the first
}

func newFilling(slots uint32, choices int) *filling {
	if choices < 1 || choices > math.MaxUint8 {
		panic(fmt.Sprintf("candidates: %d choices: want 1 to %d", choices, math.MaxUint8))
	}
	return &filling{slots: slots, choices: choices, cells: make([]uint16, int(slots)*choices), taken: make([]uint8, slots)}
}

// fill fills the cells from one place of every slot to before another.
func (f *filling) fill(from, to int, turns []turn) {
	heaviest := uint64(0)
	for i := range turns {
		heaviest = max(heaviest, turns[i].weight)
	}
	left := int(f.slots) * max(0, min(to, len(turns))-from)
	for round := uint64(1); left > 0; round++ {
		for i := range turns {
			t := &turns[i]
			if t.over || round*t.weight < t.required {
				continue
			}
			t.required += heaviest
			slot, ok := f.next(t, from, uint8(to))
			if !ok {
				continue
			}
			f.cells[int(slot)*f.choices+int(f.taken[slot])] = t.id
			f.taken[slot]++
			if left--; left == 0 {
				return
			}
		}
	}
}

// next walks a server to the next slot that it can have, and past it; false: there is none.
func (f *filling) next(t *turn, from int, to uint8) (slot uint32, ok bool) {
	for !t.over {
		slot = t.next
		for f.taken[slot] >= to {
			if slot = f.after(slot, t.skip); slot == t.start {
				t.over = true
				return 0, false
			}
		}
		t.next = f.after(slot, t.skip)
		t.over = t.next == t.start
		if from == 0 || !slices.Contains(f.cells[int(slot)*f.choices:][:from], t.id) {
			return slot, true
		}
	}
	return 0, false
}

// after returns (slot + skip) modulo slots, both below it, without a branch: a difference below 0 is a large number.
func (f *filling) after(slot, skip uint32) uint32 {
	slot += skip
	return min(slot, slot-f.slots)
}

package history

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func everybody(uint16) bool { return true }

// dumbPrevious looks through a slot's whole past for the last distinct owners that are still known.
func dumbPrevious(past []uint16, known func(uint16) bool) (previous [Depth]uint16) {
	owner, count := past[len(past)-1], 0
	for _, id := range slices.Backward(past) {
		if count < Depth && id != 0 && id != owner && known(id) && !slices.Contains(previous[:], id) {
			previous[count] = id
			count++
		}
	}
	return previous
}

func TestPushEqualsASearchThroughTheWholePast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		past := rapid.SliceOfN(rapid.Uint16Range(1, 5), 1, 12).Draw(t, "owners")
		var slots []Slot
		for _, owner := range past {
			slots = Push(slots, []uint16{owner}, everybody)
		}
		if want := dumbPrevious(past, everybody); slots[0].Previous != want || slots[0].Owner != past[len(past)-1] {
			t.Errorf("past %v: have %+v, want %v", past, slots[0], want)
		}
	})
}

func TestSlotNeverRemembersItsOwnerNorAServerTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var slots []Slot
		for range rapid.IntRange(1, 6).Draw(t, "versions") {
			owners := rapid.SliceOfN(rapid.Uint16Range(0, 4), 1, 20).Draw(t, "owners") // of any length
			gone := rapid.Uint16Range(1, 4).Draw(t, "gone")
			slots = Push(slots, owners, func(id uint16) bool { return id != gone })
			for i, slot := range slots {
				p := slot.Previous
				if slot.Owner != owners[i] || p[0] == gone || p[1] == gone || (p[0] != 0 && (p[0] == slot.Owner || p[0] == p[1])) ||
					(p[1] != 0 && (p[1] == slot.Owner || p[0] == 0)) {
					t.Fatalf("slot %d is %+v", i, slot)
				}
			}
		}
	})
}

func TestPushingTheSameTableChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.SliceOfN(rapid.Uint16Range(1, 5), 7, 7).Draw(t, "first")
		second := rapid.SliceOfN(rapid.Uint16Range(1, 5), 7, 7).Draw(t, "second")
		slots := Push(First(first, nil), second, everybody)
		if again := Push(slots, second, everybody); !slices.Equal(slots, again) {
			t.Errorf("%v became %v", slots, again)
		}
	})
}

func TestPreviousOwnerComesBackAsOwner(t *testing.T) {
	slots := First([]uint16{1}, nil)
	slots = Push(slots, []uint16{2}, everybody)
	slots = Push(slots, []uint16{1}, everybody)
	if slots[0] != (Slot{Owner: 1, Previous: [2]uint16{2}}) {
		t.Errorf("have %+v", slots[0])
	}
}

func TestStartRemembersWhoOwnedASlotBeforeTheDrain(t *testing.T) {
	have := First([]uint16{1, 3, 0}, []uint16{1, 2, 2})
	want := []Slot{{Owner: 1}, {Owner: 3, Previous: [2]uint16{2}}, {Previous: [2]uint16{2}}}
	if !slices.Equal(have, want) {
		t.Errorf("have %+v, want %+v", have, want)
	}
}

func TestAnotherTableSizeKeepsTheOwnersOfTheSamePartOfTheHashSpace(t *testing.T) {
	grown := Push(First([]uint16{1, 2}, nil), []uint16{9, 9, 9, 9}, everybody)
	if grown[1].Previous != [2]uint16{1} || grown[2].Previous != [2]uint16{2} {
		t.Errorf("grown: %+v", grown)
	}
	shrunk := Push(First([]uint16{1, 2, 3, 4}, nil), []uint16{9, 9}, everybody)
	if shrunk[0].Previous != [2]uint16{1, 2} || shrunk[1].Previous != [2]uint16{3, 4} {
		t.Errorf("shrunk: %+v", shrunk)
	}
}

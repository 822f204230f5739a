package history

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func everybody(uint16) bool { return true }

// one is the shape of a slot of one column.
func one(depth int) Shape { return Shape{Columns: 1, Depth: depth} }

// column has these owners.
func column(owners ...uint16) (c Column) {
	copy(c.Owners[:], owners)
	return c
}

// dumbOwners looks through a column's whole past for the last distinct owners that are still known.
func dumbOwners(past []uint16, depth int, known func(uint16) bool) Column {
	owners := []uint16{past[len(past)-1]}
	for _, id := range slices.Backward(past) {
		if len(owners) < depth && id != 0 && known(id) && !slices.Contains(owners, id) {
			owners = append(owners, id)
		}
	}
	return column(owners...)
}

func anyShape(t *rapid.T) Shape {
	return Shape{Columns: rapid.IntRange(1, 4).Draw(t, "columns"), Depth: rapid.IntRange(1, Depth).Draw(t, "depth")}
}

func TestPushEqualsASearchThroughTheWholePast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := anyShape(t)
		versions := rapid.SliceOfN(rapid.SliceOfN(rapid.Uint16Range(1, 5), 3*shape.Columns, 3*shape.Columns), 1, 12).Draw(t, "owners")
		var columns []Column
		for _, owners := range versions {
			columns = Push(columns, shape.Columns, owners, shape, everybody)
		}
		for cell, have := range columns {
			var past []uint16
			for _, owners := range versions {
				past = append(past, owners[cell])
			}
			if want := dumbOwners(past, shape.Depth, everybody); have != want {
				t.Errorf("past %v: have %+v, want %v", past, have, want)
			}
		}
	})
}

func TestColumnNeverRemembersItsOwnerNorAServerTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var columns []Column
		before := 1
		for range rapid.IntRange(1, 6).Draw(t, "versions") {
			shape := anyShape(t)
			owners := rapid.SliceOfN(rapid.Uint16Range(0, 4), shape.Columns, 20).Draw(t, "owners") // of any length
			owners = owners[:len(owners)/shape.Columns*shape.Columns]
			gone := rapid.Uint16Range(1, 4).Draw(t, "gone")
			columns = Push(columns, before, owners, shape, func(id uint16) bool { return id != gone })
			before = shape.Columns
			for cell, have := range columns {
				rest := slices.DeleteFunc(slices.Clone(have.Owners[1:]), func(id uint16) bool { return id == 0 })
				full := 1 + len(rest)
				slices.Sort(rest)
				if have.Owners[0] != owners[cell] || slices.Contains(rest, gone) || slices.Contains(rest, owners[cell]) ||
					len(slices.Compact(rest)) != full-1 || full > shape.Depth || slices.Contains(have.Owners[1:full], 0) {
					t.Fatalf("cell %d is %+v", cell, have)
				}
			}
		}
	})
}

func TestPushingTheSameTableChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := anyShape(t)
		first := rapid.SliceOfN(rapid.Uint16Range(1, 5), 7*shape.Columns, 7*shape.Columns).Draw(t, "first")
		second := rapid.SliceOfN(rapid.Uint16Range(1, 5), 7*shape.Columns, 7*shape.Columns).Draw(t, "second")
		columns := Push(First(first, nil, shape), shape.Columns, second, shape, everybody)
		if again := Push(columns, shape.Columns, second, shape, everybody); !slices.Equal(columns, again) {
			t.Errorf("%v became %v", columns, again)
		}
	})
}

func TestPreviousOwnerComesBackAsOwner(t *testing.T) {
	columns := First([]uint16{1}, nil, one(3))
	columns = Push(columns, 1, []uint16{2}, one(3), everybody)
	columns = Push(columns, 1, []uint16{1}, one(3), everybody)
	if columns[0] != column(1, 2) {
		t.Errorf("have %+v", columns[0])
	}
}

func TestStartRemembersWhoOwnedAColumnBeforeTheDrain(t *testing.T) {
	have := First([]uint16{1, 3, 0}, []uint16{1, 2, 2}, one(3))
	if want := []Column{column(1), column(3, 2), column(0, 2)}; !slices.Equal(have, want) {
		t.Errorf("have %+v, want %+v", have, want)
	}
}

func TestAnotherTableSizeKeepsTheOwnersOfTheSamePartOfTheHashSpace(t *testing.T) {
	grown := Push(First([]uint16{1, 2}, nil, one(3)), 1, []uint16{9, 9, 9, 9}, one(3), everybody)
	if grown[1] != column(9, 1) || grown[2] != column(9, 2) {
		t.Errorf("grown: %+v", grown)
	}
	shrunk := Push(First([]uint16{1, 2, 3, 4}, nil, one(3)), 1, []uint16{9, 9}, one(3), everybody)
	if shrunk[0] != column(9, 1, 2) || shrunk[1] != column(9, 3, 4) {
		t.Errorf("shrunk: %+v", shrunk)
	}
}

func TestColumnsThatComeAndGoLeaveTheOthersTheirPast(t *testing.T) {
	two := Shape{Columns: 2, Depth: 3}
	columns := Push(First([]uint16{1, 2}, nil, one(3)), 1, []uint16{3, 4, 5, 6}, two, everybody)
	if want := []Column{column(3, 1), column(4), column(5, 2), column(6)}; !slices.Equal(columns, want) {
		t.Errorf("with a second column: have %+v, want %+v", columns, want)
	}
	columns = Push(columns, 2, []uint16{7, 8}, one(3), everybody)
	if want := []Column{column(7, 3, 1), column(8, 5, 2)}; !slices.Equal(columns, want) {
		t.Errorf("without it: have %+v, want %+v", columns, want)
	}
}

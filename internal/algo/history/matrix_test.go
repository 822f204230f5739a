package history

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// dumbColumn looks through a cell's whole past for its last distinct owners.
func dumbColumn(past []uint16, depth int) []uint16 {
	column := []uint16{past[len(past)-1]}
	for _, owner := range slices.Backward(past) {
		if owner != 0 && len(column) < depth && !slices.Contains(column, owner) {
			column = append(column, owner)
		}
	}
	return append(column, make([]uint16, depth-len(column))...)
}

// dumbPrinted is one cell of algorithm 1 with lists: update version numbers, build the new table, remove duplicates.
func dumbPrinted(column []uint16, owner uint16) []uint16 {
	shifted := append([]uint16{owner}, column[:len(column)-1]...)
	if i := slices.Index(shifted[1:], owner); i >= 0 {
		shifted = append(slices.Delete(shifted, i+1, i+2), 0)
	}
	return shifted
}

func drawPast(t *rapid.T) (past []uint16, depth int) {
	return rapid.SliceOfN(rapid.Uint16Range(1, 5), 1, 20).Draw(t, "owners"), rapid.IntRange(1, 6).Draw(t, "depth")
}

func TestMatrixEqualsASearchThroughTheWholePast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		past, depth := drawPast(t)
		m := NewMatrix([]uint16{9, past[0]}, depth)
		for _, owner := range past[1:] {
			m.Push([]uint16{9, owner})
		}
		if have, want := m.Column(1), dumbColumn(past, depth); !slices.Equal(have, want) || m.Column(0)[0] != 9 {
			t.Errorf("past %v: have %v, want %v", past, have, want)
		}
	})
}

func TestCellThatHadNobodyForAWhileForgetsNoMoreThanOneOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, depth := drawPast(t)
		after := rapid.Uint16Range(1, 5).Draw(t, "after")
		m := NewMatrix(before[:1], depth)
		for _, owner := range append(before[1:], 0, after) {
			m.Push([]uint16{owner})
		}
		remembered := max(1, depth-1)
		if have, want := m.Column(0), dumbColumn(append(before, after), depth); !slices.Equal(have[:remembered], want[:remembered]) {
			t.Errorf("before %v, after %d: have %v, want %v", before, after, have, want)
		}
	})
}

func TestPrintedMatrixEqualsItsListing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		past, depth := drawPast(t)
		m, column := NewMatrix([]uint16{9, past[0]}, depth), append([]uint16{past[0]}, make([]uint16, depth-1)...)
		for _, owner := range past[1:] {
			m.PushAsPrinted([]uint16{9, owner})
			column = dumbPrinted(column, owner)
			if !slices.Equal(m.Column(1), column) {
				t.Fatalf("past %v: have %v, want %v", past, m.Column(1), column)
			}
		}
	})
}

// The printed algorithm with h rows is between ours with h-1 and ours with h.
func TestPrintedMatrixWastesItsLastRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		past, depth := drawPast(t)
		depth++
		printed, same, shorter := NewMatrix(past[:1], depth), NewMatrix(past[:1], depth), NewMatrix(past[:1], depth-1)
		for i := range past[1:] {
			owners := past[i+1 : i+2]
			printed.PushAsPrinted(owners)
			same.Push(owners)
			shorter.Push(owners)
			ours := append(slices.Clone(same.Column(0)), 0)
			have := append(slices.Clone(printed.Column(0)), 0)
			have = have[:slices.Index(have, 0)]
			if !slices.Equal(have, ours[:len(have)]) || !slices.Equal(printed.Column(0)[:depth-1], shorter.Column(0)) {
				t.Fatalf("past %v: printed %v, ours %v, ours with one row less %v", past, printed.Column(0), same.Column(0), shorter.Column(0))
			}
		}
	})
	m := NewMatrix([]uint16{1}, 2)
	m.PushAsPrinted([]uint16{2})
	m.PushAsPrinted([]uint16{2})
	if !slices.Equal(m.Column(0), []uint16{2, 0}) {
		t.Errorf("a table that stays as it is leaves %v", m.Column(0))
	}
}

// Table I of the paper: s3, s2, ..., s13.
func TestOwnersMoveBackByEpochs(t *testing.T) {
	m := NewMatrix([]uint16{13, 10}, 3)
	m.Push([]uint16{2, 13})
	m.Push([]uint16{3, 4})
	if !slices.Equal(m.Column(0), []uint16{3, 2, 13}) || !slices.Equal(m.Column(1), []uint16{4, 13, 10}) {
		t.Errorf("have %v and %v", m.Column(0), m.Column(1))
	}
}

func TestMatrixRemembersWhatAColumnDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		past, _ := drawPast(t)
		depth := rapid.IntRange(1, Depth).Draw(t, "depth")
		m, columns := NewMatrix(past[:1], depth), First(past[:1], nil, one(depth))
		for i := range past[1:] {
			m.Push(past[i+1 : i+2])
			columns = Push(columns, 1, past[i+1:i+2], one(depth), everybody)
		}
		if want := columns[0].Owners[:depth]; !slices.Equal(m.Column(0), want) {
			t.Errorf("have %v, want %v", m.Column(0), want)
		}
	})
}

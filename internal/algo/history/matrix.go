package history

import "slices"

// Matrix keeps the last owners of every cell of a table: SHELL's history matrix (section III-B), a column of some rows for every bucket and
// choice, the present owner first. A Slot has room for what a data plane looks at, a Matrix has any depth. Not safe for concurrent use.
type Matrix struct {
	depth int
	rows  []uint16 // of cell c: from c*depth on; ids, 0 where there is none
}

// NewMatrix returns the matrix of a table without a past, with so many rows. It panics when there are none.
func NewMatrix(owners []uint16, depth int) *Matrix {
	if depth < 1 {
		panic("history.NewMatrix: no rows")
	}
	m := &Matrix{depth: depth, rows: make([]uint16, len(owners)*depth)}
	for cell, owner := range owners {
		m.rows[cell*depth] = owner
	}
	return m
}

// Column returns the owners of a cell, the present one first, 0 after the last. It is the matrix's own: to be read until the next push.
func (m *Matrix) Column(cell int) []uint16 { return m.rows[cell*m.depth:][:m.depth] }

// Push makes owners those of all cells, which must be as many as before. Earlier owners move back by one row, and the oldest falls off.
//
// Departs from SHELL's algorithm 1: a column has as many distinct owners as rows, whatever changed elsewhere. See PushAsPrinted.
func (m *Matrix) Push(owners []uint16) {
	for cell, owner := range owners {
		column := m.Column(cell)
		if column[0] == owner {
			continue
		}
		if column[0] == 0 && len(column) > 1 { // nobody is not worth a row
			copy(column, column[1:])
			column[len(column)-1] = 0
		}
		place := 0 // of the row that is given up: empty, of the same owner, or of the oldest
		for place < len(column)-1 && column[place] != 0 && column[place] != owner {
			place++
		}
		copy(column[1:], column[:place])
		column[0] = owner
	}
}

// PushAsPrinted is algorithm 1 as printed: it moves all rows back before it takes the owner's second mention out. So even a cell whose
// owner stays loses its last row, and a matrix with h rows remembers h-1 owners; an h-th only until the next push.
func (m *Matrix) PushAsPrinted(owners []uint16) {
	for cell, owner := range owners {
		column := m.Column(cell)
		last := len(column) - 1
		if column[0] == owner {
			column[last] = 0 // back and forth, but for the last row
			column[0] = owner
			continue
		}
		copy(column[1:], column[:last])
		column[0] = owner
		if again := slices.Index(column[1:], owner); again >= 0 {
			copy(column[again+1:], column[again+2:])
			column[last] = 0
		}
	}
}

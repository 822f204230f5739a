package shell

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/history"
)

// passage follows connections that never end, one in every cell: those of a uniformly drawn bucket and choice. A connection is reset as soon
// as its server is not in the history of its cell, even if it comes back later.
type passage struct {
	first  []uint16 // their servers
	matrix *history.Matrix
	push   func(owners []uint16)
	rows   int
	lost   []uint8 // by cell: the most rows that did not have the server, at any time
	resets []int   // by number of rows: connections that are lost with so many
	gone   int     // connections whose server is in no row now
}

// newPassage follows connections from a table on, with the last distinct owners: resets counts what each number of rows up to the given one
// loses, as the rows of a shorter history are the first of a longer one's.
func newPassage(owners []uint16, rows int) *passage {
	p := &passage{first: slices.Clone(owners), rows: rows, matrix: history.NewMatrix(owners, rows), lost: make([]uint8, len(owners)), resets: make([]int, rows+1)}
	p.push = p.matrix.Push
	return p
}

// newPrintedPassage follows them with the history that the printed algorithm 1 keeps. Only the resets of the given number of rows count.
func newPrintedPassage(owners []uint16, rows int) *passage {
	p := newPassage(owners, rows)
	p.push = p.matrix.PushAsPrinted
	return p
}

// update goes on to the next table.
func (p *passage) update(owners []uint16) {
	p.push(owners)
	p.gone = 0
	for cell, server := range p.first {
		if owners[cell] == server {
			continue
		}
		before := slices.Index(p.matrix.Column(cell), server)
		if before < 0 {
			before = p.rows
			p.gone++
		}
		for int(p.lost[cell]) < before {
			p.lost[cell]++
			p.resets[p.lost[cell]]++
		}
	}
}

// percent is the share of connections that are reset by now.
func (p *passage) percent(rows int) float64 {
	return 100 * float64(p.resets[rows]) / float64(len(p.first))
}

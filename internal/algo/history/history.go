// Package history remembers who owned a slot before: SHELL (Pit-Claudel et al., "Stateless Load-Aware Load Balancing in P4",
// ICNP 2018, section III) keeps a matrix of the last h owners of every bucket and choice, Beamer (NSDI'18) one previous owner. Agents
// hand packets of connections that they do not know on to these owners ("second chance").
package history

import "slices"

// Depth is the most owners that a column has room for, the present one among them.
const Depth = 4

// Column is one column of a slot: its owner, then the last distinct owners before, latest first; ids, 0 = none. It is struct column of
// bpf/lb/state/service.h.
type Column struct {
	Owners [Depth]uint16
}

// Shape is that of a table: the columns of each slot, from 1, and the owners that each keeps, 1 to Depth.
type Shape struct {
	Columns, Depth int
}

// First returns the columns of a node that starts without a past: where servers are draining, the previous owner is the one that
// the table had before they drained. Both tables have the same length; ownersBefore may be nil.
func First(owners, ownersBefore []uint16, shape Shape) []Column {
	before := make([]Column, len(ownersBefore))
	for i, owner := range ownersBefore {
		before[i].Owners[0] = owner
	}
	return Push(before, shape.Columns, owners, shape, func(uint16) bool { return true })
}

// Push returns the columns after the table became owners, slot by slot: earlier owners move back by one place and the oldest falls off.
// Owners that are not known any more (removed servers) are left out. When nothing changed, the result equals previous.
// previous may have another number of slots: a slot then inherits from all slots that covered its part of the hash space; and another number
// of columns: each inherits from the one of its place.
//
// Departs from SHELL: a column keeps the last distinct owners, not those of the last versions of the table, so that changes
// elsewhere do not push them out.
func Push(previous []Column, columnsBefore int, owners []uint16, shape Shape, known func(id uint16) bool) []Column {
	cells, slots, before := make([]Column, len(owners)), len(owners)/shape.Columns, len(previous)/max(columnsBefore, 1)
	var replaced []Column
	for cell, owner := range owners {
		cells[cell].Owners[0] = owner
		slot, column := cell/shape.Columns, cell%shape.Columns
		if before == 0 || column >= columnsBefore {
			continue
		}
		replaced = replaced[:0]
		for old := slot * before / slots; old <= ((slot+1)*before-1)/slots; old++ {
			replaced = append(replaced, previous[old*columnsBefore+column])
		}
		cells[cell].remember(replaced, shape.Depth, known)
	}
	return cells
}

// remember fills what is behind c's owner from the columns that it replaces: their owners first, then those before.
func (c *Column) remember(replaced []Column, depth int, known func(uint16) bool) {
	count := 1
	for rank := range Depth {
		for i := range replaced {
			id := replaced[i].Owners[rank]
			if count < depth && id != 0 && !slices.Contains(c.Owners[:count], id) && known(id) {
				c.Owners[count] = id
				count++
			}
		}
	}
}

// Package history remembers who owned a slot before: SHELL (Pit-Claudel et al., "Stateless Load-Aware Load Balancing in P4",
// ICNP 2018, section III) keeps a matrix of the last h owners of every bucket, Beamer (NSDI'18) one previous owner. Agents
// hand packets of connections that they do not know on to these owners ("second chance").
package history

import "slices"

// Depth is the number of previous owners that a slot keeps.
const Depth = 2

// Slot is one slot of a table: its owner and the last distinct owners before, latest first; ids, 0 = none.
type Slot struct {
	Owner    uint16
	Previous [Depth]uint16
}

// First returns the slots of a node that starts without a past: where servers are draining, the previous owner is the one that
// the table had before they drained. Both tables have the same length; ownersBefore may be nil.
func First(owners, ownersBefore []uint16) []Slot {
	before := make([]Slot, len(ownersBefore))
	for i, owner := range ownersBefore {
		before[i].Owner = owner
	}
	return Push(before, owners, func(uint16) bool { return true })
}

// Push returns the slots after the table became owners: earlier owners move back by one place and the oldest falls off.
// Owners that are not known any more (removed servers) are left out. When nothing changed, the result equals previous.
// previous may have another length: a slot then inherits from all slots that covered its part of the hash space.
//
// Departs from SHELL: a slot keeps the last distinct owners, not those of the last versions of the table, so that changes
// elsewhere do not push them out.
func Push(previous []Slot, owners []uint16, known func(id uint16) bool) []Slot {
	slots := make([]Slot, len(owners))
	for i, owner := range owners {
		slots[i] = Slot{Owner: owner}
		if len(previous) == 0 {
			continue
		}
		first := i * len(previous) / len(owners)
		last := ((i+1)*len(previous) - 1) / len(owners)
		slots[i].remember(previous[first:last+1], known)
	}
	return slots
}

// remember fills s.Previous from the slots that it replaces: their owners first, then what they remembered.
func (s *Slot) remember(replaced []Slot, known func(uint16) bool) {
	count := 0
	add := func(id uint16) {
		if count < Depth && id != 0 && id != s.Owner && !slices.Contains(s.Previous[:count], id) && known(id) {
			s.Previous[count] = id
			count++
		}
	}
	for _, old := range replaced {
		add(old.Owner)
	}
	for depth := range Depth {
		for _, old := range replaced {
			add(old.Previous[depth])
		}
	}
}

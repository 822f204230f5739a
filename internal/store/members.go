package store

import (
	"cmp"
	"slices"
)

// Listed returns members by name. Of several with one name the last to join counts: a controller that was restarted is on the list
// twice until its former life has timed out.
func Listed(members []Member) []Member {
	list := slices.Clone(members)
	slices.SortFunc(list, func(a, b Member) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(b.Term, a.Term)) })
	return slices.CompactFunc(list, func(a, b Member) bool { return a.Name == b.Name })
}

// Publish puts a list into a channel of capacity 1 that has one sender, in place of one that nobody has taken yet.
func Publish(to chan []Member, list []Member) {
	select {
	case <-to:
	default:
	}
	to <- list
}

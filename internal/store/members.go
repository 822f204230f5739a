package store

import (
	"cmp"
	"slices"
)

// Listed returns members by name. Of several with one name the last to join counts: a controller that was restarted is on the list
// twice until its former life has timed out. Another one with another address is its Rival.
func Listed(members []Member) (list []Member) {
	byName := slices.Clone(members)
	slices.SortFunc(byName, func(a, b Member) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(b.Term, a.Term)) })
	for _, m := range byName {
		last := len(list) - 1
		switch {
		case last < 0 || list[last].Name != m.Name:
			list = append(list, m)
		case list[last].Address != m.Address:
			list[last].Rival = m.Address
		}
	}
	return list
}

// Publish puts a list into a channel of capacity 1 that has one sender, in place of one that nobody has taken yet.
func Publish(to chan []Member, list []Member) {
	select {
	case <-to:
	default:
	}
	to <- list
}

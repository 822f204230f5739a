// Package wcmp fills tables as weighted-cost multipath routing does: every next hop owns slots in proportion to its weight (Zhou et al.,
// "WCMP: Weighted Cost Multipathing for Improved Fairness in Data Centers", EuroSys'14). Spotlight measures itself against it.
package wcmp

import (
	"cmp"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// part is a server with the slots that it still has to take.
type part struct {
	id   uint16
	left uint32
	rest uint64 // of its exact part, in units of 1/total slots
}

// Table returns the owner of every slot: ids in proportion to the weights, each off by less than one slot; 0 everywhere when no share
// has a weight above 0. Owners take turns in the order of their ids, so that equal weights give the table of package modulo. A server
// whose part is less than a slot may get none. The order of shares does not matter.
func Table(slots uint32, shares []model.Share) []uint16 {
	owners := make([]uint16, 0, slots)
	parts := apportion(slots, shares)
	if len(parts) == 0 {
		return make([]uint16, slots)
	}
	for len(parts) > 0 {
		for i := range parts {
			if parts[i].left > 0 {
				owners = append(owners, parts[i].id)
				parts[i].left--
			}
		}
		parts = slices.DeleteFunc(parts, func(p part) bool { return p.left == 0 })
	}
	return owners
}

// apportion divides the slots by largest remainders, in the order of the ids.
func apportion(slots uint32, shares []model.Share) []part {
	var parts []part
	total := uint64(0)
	for _, share := range shares {
		if share.Weight > 0 && share.ID != 0 {
			total += uint64(share.Weight)
		}
	}
	left := slots
	for _, share := range shares {
		if share.Weight > 0 && share.ID != 0 {
			exact := uint64(slots) * uint64(share.Weight)
			parts = append(parts, part{share.ID, uint32(exact / total), exact % total})
			left -= uint32(exact / total)
		}
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Or(-cmp.Compare(a.rest, b.rest), cmp.Compare(a.id, b.id)) })
	for i := range parts[:min(int(left), len(parts))] {
		parts[i].left++
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.id, b.id) })
	return parts
}

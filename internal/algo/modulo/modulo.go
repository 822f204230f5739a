// Package modulo fills tables as equal-cost multipath routing without resilience does: slot i belongs to next hop i mod N.
// It is the baseline that consistent hashing is measured against; a change of N moves nearly every slot.
package modulo

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// Table returns the owner of every slot: the (i mod N)-th smallest id among the N shares with a weight above 0, whatever the
// weight; 0 everywhere when there is none. The order of shares does not matter.
func Table(slots uint32, shares []model.Share) []uint16 {
	owners := make([]uint16, slots)
	var ids []uint16
	for _, share := range shares {
		if share.Weight > 0 && share.ID != 0 {
			ids = append(ids, share.ID)
		}
	}
	if len(ids) == 0 {
		return owners
	}
	slices.Sort(ids)
	for i := range owners {
		owners[i] = ids[i%len(ids)]
	}
	return owners
}

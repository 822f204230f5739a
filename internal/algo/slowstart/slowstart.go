// Package slowstart makes the shares of new connections smaller of servers that have begun to take them: a cold server has caches to fill.
// A share grows in tenths of what it will be.
package slowstart

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// Whole is the part of a server that does not start.
const Whole = 10

// Part is how far a server has come.
type Part struct {
	Tenths uint8  // of its weight: 1 to Whole-1
	Tick   uint64 // which of many equal stretches of time since it began: whole classes are shared out over them
}

// Parts are those of a service's servers that start, by id.
type Parts map[uint16]Part

// of is what a server has: tenths of its weight.
func (p Parts) of(id uint16) uint16 {
	if part, starts := p[id]; starts {
		return uint16(part.Tenths)
	}
	return Whole
}

// Weight is the weight of a server that all others are to be compared with by their Weight: in proportion to one another, and to nothing else.
// Where nobody starts it is as configured.
func (p Parts) Weight(id, weight uint16) uint16 {
	if len(p) == 0 {
		return weight
	}
	return weight * p.of(id)
}

// Shares are the shares with their parts, in proportion to one another. Where nobody starts they are as they were.
func (p Parts) Shares(shares []model.Share) []model.Share {
	if len(p) == 0 {
		return shares
	}
	parts := slices.Clone(shares)
	for i := range parts {
		parts[i].Weight = p.Weight(parts[i].ID, parts[i].Weight)
	}
	return parts
}

// Classes are the weights of takers that have small whole numbers for weights: a server has of each tick what makes its part over all of them.
// Where no weight is above 0 all have the same. Where only servers that start would be left, and not now, all others have the same.
func (p Parts) Classes(takers []model.Share, weights map[uint16]uint16) map[uint16]uint16 {
	most, any := uint16(0), false
	for _, taker := range takers {
		most = max(most, p.of(taker.ID))
		any = any || weights[taker.ID] > 0
	}
	if !slices.ContainsFunc(takers, func(taker model.Share) bool { return p.of(taker.ID) < most }) {
		return weights // of equals nobody waits
	}
	classes, left := make(map[uint16]uint16, len(takers)), false
	for _, taker := range takers {
		weight := weights[taker.ID]
		if !any {
			weight = 1
		}
		if part := p.of(taker.ID); part < most {
			each, tick := uint64(weight)*uint64(part), p[taker.ID].Tick
			weight = uint16((tick+1)*each/uint64(most) - tick*each/uint64(most))
		}
		classes[taker.ID] = weight
		left = left || weight > 0
	}
	for _, taker := range takers {
		if !left && p.of(taker.ID) == most {
			classes[taker.ID] = 1
		}
	}
	return classes
}

// Package maglev fills consistent-hashing tables: Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer"
// (NSDI'16), section 3.4, algorithm 1.
package maglev

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/siphash"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants: any two independent hashes will do; these are never secret and never change, as every node must
// build the same table.
const (
	offsetKey = 0x6f66667365740000 // "offset"
	skipKey   = 0x736b697000000000 // "skip"
)

// turn is one server's walk through its permutation of the slots.
type turn struct {
	id       uint16
	weight   uint64
	next     uint64 // slot that it asks for next
	skip     uint64 // step of the walk, 1..slots-1, prime to the prime number of slots
	required uint64 // round * weight at which it takes its next slot
}

// Table returns the owner of every slot: ids in proportion to the weights, 0 everywhere when no share has a weight above 0.
// slots must be prime (model.TableSizes). The order of shares does not matter: the result depends on ids and weights alone,
// so all nodes agree without talking. Costs about slots * ln(slots) steps.
//
// Departs from section 3.4, which leaves weights open: as in Envoy and Katran, in every round a server takes a slot only if
// round * weight has grown by the largest weight since its last one. Everybody takes one in the first round.
func Table(slots uint32, shares []model.Share) []uint16 {
	owners := make([]uint16, slots)
	turns := walks(uint64(slots), shares)
	if len(turns) == 0 {
		return owners
	}
	largest := slices.MaxFunc(turns, func(a, b turn) int { return cmp.Compare(a.weight, b.weight) }).weight
	filled := uint32(0)
	for round := uint64(1); ; round++ {
		for i := range turns {
			t := &turns[i]
			if round*t.weight < t.required {
				continue
			}
			t.required += largest
			for owners[t.next] != 0 {
				if t.next += t.skip; t.next >= uint64(slots) { // both are below slots: no division
					t.next -= uint64(slots)
				}
			}
			owners[t.next] = t.id
			if filled++; filled == slots {
				return owners
			}
		}
	}
}

// Permutation returns where a server's walk through the slots starts, and its step, 1..slots-1: algorithm 1's offset and skip. Other
// families have other permutations; Table's is 0.
func Permutation(id uint16, family, slots uint64) (start, skip uint64) {
	var name [2]byte
	binary.LittleEndian.PutUint16(name[:], id)
	return siphash.Sum13(offsetKey, family, name[:]) % slots, siphash.Sum13(skipKey, family, name[:])%(slots-1) + 1
}

// walks returns the starting point of every server with a weight, in the order of the ids.
func walks(slots uint64, shares []model.Share) []turn {
	var turns []turn
	for _, share := range shares {
		if share.Weight == 0 || share.ID == 0 {
			continue
		}
		start, skip := Permutation(share.ID, 0, slots)
		turns = append(turns, turn{id: share.ID, weight: uint64(share.Weight), next: start, skip: skip})
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.id, b.id) })
	return turns
}

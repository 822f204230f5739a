package choice

import (
	"math"

	"github.com/ballast-lb/ballast/internal/model"
)

// Prices returns what a connection to each server costs, by id: in inverse proportion to the weights, exactly so where the least common
// multiple allows it, else rounded to 16 bits. A weight of 0 counts as 1.
func Prices(shares []model.Share) map[uint16]uint16 {
	smallest, multiple := uint64(model.MaxWeight), uint64(1)
	for _, share := range shares {
		weight := uint64(max(share.Weight, 1))
		smallest = min(smallest, weight)
		if multiple/smallest <= math.MaxUint16 {
			multiple *= weight / gcd(multiple, weight)
		}
	}
	multiple = min(multiple, math.MaxUint16*smallest)
	out := make(map[uint16]uint16, len(shares))
	for _, share := range shares {
		weight := uint64(max(share.Weight, 1))
		out[share.ID] = uint16((multiple + weight/2) / weight)
	}
	return out
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

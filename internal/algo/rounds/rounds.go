// Package rounds lays out the turns of round robin as a fixed sequence that the data path walks with one counter.
package rounds

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// MaxTurns is the longest round that the data path's map holds.
const MaxTurns = model.MaxRoundServers

// Equal returns one turn for every share with a weight above 0, in the order of the ids: dispatch rr. At most MaxTurns servers
// are supported, which model.Validate enforces; more panic.
func Equal(shares []model.Share) []uint16 {
	equal := slices.Clone(shares)
	for i := range equal {
		equal[i].Weight = min(equal[i].Weight, 1)
	}
	return Weighted(equal)
}

// Weighted returns a round in which every server has as many turns as its weight, spread as evenly as possible: nginx's smooth
// weighted round robin (ngx_http_upstream_round_robin.c, commit 52327e0627f4). Weights are divided by their greatest common
// divisor. Where the round would still be longer than MaxTurns, weights are scaled to fit and rounded down, but never below one
// turn: a server's part is then off by at most one turn in its own favour, or by one turn and its part of those extra turns.
// The order of shares does not matter. The result is empty when no share has a weight; more than MaxTurns servers panic.
func Weighted(shares []model.Share) []uint16 {
	ids, weights, total := reduce(shares)
	if len(ids) > MaxTurns {
		panic(fmt.Sprintf("round of %d servers: at most %d fit", len(ids), MaxTurns))
	}
	round := make([]uint16, 0, total)
	current := make([]int, len(ids))
	for range total {
		best := 0
		for i := range current {
			current[i] += weights[i]
			if current[i] > current[best] {
				best = i
			}
		}
		current[best] -= total
		round = append(round, ids[best])
	}
	return round
}

// reduce returns the ids in ascending order with weights in lowest terms whose sum is at most MaxTurns.
func reduce(shares []model.Share) (ids []uint16, weights []int, total int) {
	sorted := slices.DeleteFunc(slices.Clone(shares), func(s model.Share) bool { return s.Weight == 0 || s.ID == 0 })
	slices.SortFunc(sorted, func(a, b model.Share) int { return cmp.Compare(a.ID, b.ID) })
	for _, share := range sorted {
		ids = append(ids, share.ID)
		weights = append(weights, int(share.Weight))
	}
	total = lowestTerms(weights)
	exact, sum := slices.Clone(weights), total
	for fit := MaxTurns; total > MaxTurns && fit > 0; fit -= total - MaxTurns {
		for i := range weights {
			weights[i] = max(1, exact[i]*fit/sum)
		}
		total = lowestTerms(weights)
	}
	return ids, weights, total
}

// lowestTerms divides the weights by their greatest common divisor in place and returns their sum.
func lowestTerms(weights []int) (sum int) {
	divisor := 0
	for _, weight := range weights {
		for a, b := divisor, weight; ; a, b = b, a%b {
			if b == 0 {
				divisor = a
				break
			}
		}
	}
	for i := range weights {
		weights[i] /= divisor
		sum += weights[i]
	}
	return sum
}

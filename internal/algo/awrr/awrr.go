// Package awrr turns the load of servers into turns of a round: the automatic weighted round robin of Cheetah (Barbette et al., "A
// High-Speed Load-Balancer Design with Guaranteed Per-Connection-Consistency", NSDI'20, section IV-B).
package awrr

import (
	"math"

	"github.com/ballast-lb/ballast/internal/model"
)

// Specification constants (Cheetah IV-B).
const (
	Balanced = 10  // N: turns of a server whose load is the average
	Least    = 2   // an overloaded server keeps so many
	Most     = 30  // 3N
	alpha    = 0.5 // how much of the average is mixed into a server's own load: the speed of convergence
)

// Load is how busy a server is, in any unit that is the same for all servers of the service.
type Load struct {
	ID   uint16
	Load float64
}

// Turns returns how many turns of a round each server gets, in the order of loads:
// N_i = round(10 * L_avg / ((1 - alpha) * L_i + alpha * L_avg)), at least 2 and at most 30.
// Where no server has any load, all get 10.
//
// A negative load counts as none. One that is not a number is not known: it gets the 10 turns of an average one. An infinite load
// gets 2. Neither of these enters the average.
func Turns(loads []Load) []model.Share {
	turns := make([]model.Share, len(loads))
	average := averageOf(loads)
	for i, l := range loads {
		turns[i] = model.Share{ID: l.ID, Weight: turnsOf(max(l.Load, 0), average)}
	}
	return turns
}

func averageOf(loads []Load) (average float64) {
	known := 0.0
	for _, l := range loads {
		if isKnown(l.Load) {
			known++
		}
	}
	for _, l := range loads {
		if isKnown(l.Load) {
			average += max(l.Load, 0) / known // the sum might not be finite
		}
	}
	return average
}

func isKnown(load float64) bool { return !math.IsNaN(load) && !math.IsInf(load, 1) }

func turnsOf(load, average float64) uint16 {
	switch {
	case math.IsNaN(load):
		return Balanced
	case math.IsInf(load, 1):
		return Least
	case average == 0:
		return Balanced
	}
	share := 1 / ((1-alpha)*(load/average) + alpha)
	return uint16(min(max(math.Round(Balanced*share), Least), Most))
}

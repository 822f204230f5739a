// Package capacity estimates how much more a server could take from what is known of its load (Spotlight V-B, V-D3).
//
// Estimates are only ever compared with each other: the unit does not matter as long as all servers of a service have the same.
package capacity

import "math"

// Idle is how many outstanding requests an idle server counts as having.
const Idle = 1

// FromQueue returns A = Q / q of Spotlight V-B, where q is the mean number of outstanding requests over the last interval and
// limit is Q, the number beyond which the server refuses requests.
//
// Departs from Spotlight: q below Idle counts as Idle. The paper's A of an idle server is infinite, and one of two nearly idle
// servers would get everything because it happened to have had a request less. A q that is no number counts as Idle, too.
func FromQueue(q, limit float64) float64 {
	if !(q > Idle) {
		q = Idle
	}
	return limit / q
}

// FromCPU returns the part of the capacity that is not in use, (1 - U) * C in the notation of Spotlight's table I, where C is the
// number of CPUs times the configured weight. It is never negative.
func FromCPU(permille uint16, cpus float64, weight uint16) float64 {
	return float64(1000-min(permille, 1000)) * cpus * float64(weight) / 1000
}

// Penalty returns the factor, above 0 and at most 1, that the estimate of a server that fails requests is multiplied by: the square
// of the part that it answers. The queue of a server that fails at once is shorter by just that part (Spotlight V-D3), which makes
// FromQueue too large by it: one factor takes that back, the other is the penalty. One success that nobody counted is added, so
// that a server is not condemned by its first failure, nor for ever.
func Penalty(answered, failed float64) float64 {
	answered, failed = max(answered, 0), max(failed, 0)
	part := (answered + 1) / (answered + failed + 1)
	if math.IsNaN(part) {
		return 1
	}
	return part * part
}

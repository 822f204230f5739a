// Package estimate keeps a load balancer's estimates of open connections near the truth: dispatch p2c and least choose by them.
//
// Packets add one at each SYN and take one off at the client's FIN or RST. A connection that ends without a word from its client stays:
// its SYN was refused, or its server was killed. Three things correct that. Agents count the connections of their servers. A server that
// takes new connections again begins with the mean of the others, of which it is then released step by step. And each estimate decays.
//
// It is pure: time and randomness are arguments, nothing here does I/O.
package estimate

import (
	"math"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	// memory is the time constant of the decay. It bounds how long connections that ended unseen keep a server from new ones. Connections
	// that last longer are forgotten, too: of these the estimate then says only how many began of late.
	memory = 2 * time.Minute
	// A count is seconds old, so a small difference is noise while connections begin: an eighth of it is taken over. Of a difference
	// beyond three standard deviations of two Poisson counts, half is.
	smallGain, largeGain = 1. / 8, 1. / 2
	deviations           = 3
)

// Server is one server of a service, as one load balancer sees it.
type Server struct {
	Open     int32  // the estimate
	Weight   uint16 // as configured
	TakesNew bool
	Counted  bool
	Count    float64 // Counted: of connections that are open there, this load balancer's part
}

// Decayed is what to add to an estimate after a time. Fractions are rounded by random, in [0, 1), so that small estimates decay as fast
// as large ones.
func Decayed(open int32, after time.Duration, random float64) int32 {
	if open <= 0 {
		return 0
	}
	return -min(open, int32(float64(open)*min(after.Seconds()/memory.Seconds(), 1)+random))
}

// Mean is what the server at index i has open if it has as many for its weight as the others that take new connections. ok: there are such.
func Mean(servers []Server, i int) (mean float64, ok bool) {
	open := make([]float64, len(servers))
	for at := range servers {
		open[at] = float64(servers[at].Open)
	}
	return meanOf(servers, open, i)
}

func meanOf(servers []Server, open []float64, i int) (mean float64, ok bool) {
	sum, weight := 0., 0.
	for at := range servers {
		if s := &servers[at]; at != i && s.TakesNew {
			sum, weight = sum+open[at], weight+float64(s.Weight)
		}
	}
	if weight == 0 {
		return 0, false
	}
	return sum / weight * float64(servers[i].Weight), true
}

// Correct is what to add to each estimate, now that agents have counted. onlyDown: counts are bounds, as other load balancers have an
// unknown part of them. begun are the connections that this load balancer has dispatched since the last correction.
//
// A server far below the others would get every new connection until it has as many as they. So a correction takes a server at most its
// share of begun, and one more, below their mean: because of corrections it gets no more than about twice its share.
func Correct(servers []Server, onlyDown bool, begun uint64, random func() float64) (change []int32) {
	next := make([]float64, len(servers))
	for i := range servers {
		s := &servers[i]
		next[i] = float64(s.Open)
		if s.Counted && (!onlyDown || s.Count < next[i]) {
			next[i] += gain(next[i], s.Count, begun) * (s.Count - next[i])
		}
	}
	return toward(servers, next, begun, random)
}

// Release is what to add to each estimate for a server that began with the mean of the others although nothing was open on it. given are
// the connections that each was given so and that were not released yet; begun are those that this load balancer has dispatched since the
// last release. Estimates alone would never release them: with as many on its account as the others, a server whose connections do not
// end gets no new ones while the others' are replaced one by one.
func Release(servers []Server, given []int32, begun uint64, random func() float64) (change []int32) {
	next := make([]float64, len(servers))
	for i := range servers {
		next[i] = float64(max(0, servers[i].Open-given[i]))
	}
	return toward(servers, next, begun, random)
}

// toward is what to add to estimates to come to next, with the bound of Correct.
func toward(servers []Server, next []float64, begun uint64, random func() float64) (change []int32) {
	weight := 0.
	for i := range servers {
		if servers[i].TakesNew {
			weight += float64(servers[i].Weight)
		}
	}
	change = make([]int32, len(servers))
	for i := range servers {
		s := &servers[i]
		to := next[i]
		if mean, ok := meanOf(servers, next, i); ok && s.TakesNew && to < float64(s.Open) {
			share := 1 + float64(begun)*float64(s.Weight)/weight
			to = max(to, min(float64(s.Open), mean)-share)
		}
		change[i] = int32(math.Floor(max(to, 0) - float64(s.Open) + random()))
	}
	return change
}

func gain(open, count float64, begun uint64) float64 {
	if begun == 0 || math.Abs(count-open) > deviations*math.Sqrt(open+count) {
		return largeGain
	}
	return smallGain
}

// Serving are the ids of a service's servers that get new connections by its policy. down are those that are unhealthy.
func Serving(service *model.Service, down map[uint16]bool) map[uint16]bool {
	ids := map[uint16]bool{}
	for i := range service.Servers {
		if s := &service.Servers[i]; s.TakesNew() && !down[s.ID] {
			ids[s.ID] = true
		}
	}
	return ids
}

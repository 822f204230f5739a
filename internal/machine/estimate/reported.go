// Loads that were reported of servers, where dispatch p2c and least compare those (Cheetah IV-B).
//
// Reports are old when they arrive, and the next one is an interval away. If load balancers compared reports alone, least would give one server
// all connections of an interval, which Cheetah (V-B) measured to be worse than no measure. So packets add to a load, at each connection, what
// one connection brings on average, until the next report. Reports are expressed in that unit.
package estimate

import (
	"cmp"
	"math"
)

// Implementation constants.
const (
	// Unit is what a new connection adds to a load: CONNECTION_LOAD of bpf/lb/state/loads.h.
	Unit = 256
	// MostOpen connections are the highest load that is set: a load is a 32-bit number.
	MostOpen = 1 << 20
	// rateGain is the weight of the last interval in the mean number of connections of an interval.
	rateGain = 1. / 8
)

// Reported is one server of a service whose load is reported.
type Reported struct {
	Weight   uint16 // its share is in proportion to it
	TakesNew bool
	Known    bool
	Load     float64 // Known: as reported, for its size
	Size     uint16  // 0: its weight
}

// total is its load, which is known.
func (s *Reported) total() float64 { return s.Load * float64(cmp.Or(s.Size, s.Weight)) }

// Reports turns the reported loads of a service into what a load balancer compares. The zero value has seen none.
type Reports struct {
	rate float64 // connections that begin at this load balancer in an interval
}

// Loads returns each server's load from now on, in Units. In the intervals that have passed since the loads before, 0 before the first ones,
// begun connections began here. share is this load balancer's part of the service's connections, 0: it is not known; the others decide as it
// does, by the same reports. requests: a connection adds at most 1 to the load of a server of weight 1.
//
// A server gets a load at most its share of an interval's connections, and one more, below the mean of the others. So a server whose reports
// are too low gets about twice its share.
func (r *Reports) Loads(servers []Reported, begun uint64, intervals, share float64, requests bool) []int32 {
	if intervals > 0 {
		r.rate += rateGain * (float64(begun)/max(intervals, 1) - r.rate)
	}
	total, weight := 0., 0.
	for i := range servers {
		if s := &servers[i]; s.TakesNew {
			weight += float64(s.Weight)
			if s.Known {
				total += s.total()
			}
		}
	}
	each := total / max(r.rate, 1)
	if requests && share > 0 {
		each = min(each, 1/share)
	}
	out := make([]int32, len(servers))
	if each <= 0 {
		return out
	}
	loads := make([]float64, len(servers))
	for i := range servers {
		if s := &servers[i]; s.Known {
			loads[i] = s.total() / each
		}
	}
	for i := range servers {
		s, load := &servers[i], loads[i]
		if mean, ok := meanOfKnown(servers, loads, i); ok && !s.Known {
			load = mean
		} else if ok {
			load = max(load, mean-1-r.rate*float64(s.Weight)/weight)
		}
		out[i] = int32(math.Round(Unit * min(load, MostOpen)))
	}
	return out
}

// meanOfKnown is what the server at index i has if it has as much for its weight as the others whose load is known. ok: there are such.
func meanOfKnown(servers []Reported, loads []float64, i int) (mean float64, ok bool) {
	sum, weight := 0., 0.
	for at := range servers {
		if s := &servers[at]; at != i && s.TakesNew && s.Known {
			sum, weight = sum+loads[at], weight+float64(s.Weight)
		}
	}
	if weight == 0 {
		return 0, false
	}
	return sum / weight * float64(servers[i].Weight), true
}

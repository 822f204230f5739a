package queueing

import (
	"math"
	"slices"
)

// choose gives a request its server: the session's, or whose turn it is.
func (s *shift) choose(one *session) {
	if !s.balancer.persistent && one.request > 0 {
		one.home = s.turns.Choose(0, nil)
	}
	s.active[one.home]++
}

// drawn is the number that belongs to a request, whatever the balancer.
func (one *session) drawn() uint64 { return one.number<<8 | uint64(one.request) }

// workOf is what a request takes at a server.
func (s *shift) workOf(one *session, shared bool) int64 {
	work := int64(s.works.ExpAt(one.drawn(), float64(workNS)))
	if shared {
		work += s.handlingNS()
	}
	return work
}

// access has a request get its session's data, or put them back.
func (s *shift) access(at uint32) {
	one := &s.sessions[at]
	if s.waits.Float64At(one.drawn()<<3|uint64(one.stage)) < s.stalls.part {
		s.alarm(s.now+s.stalls.lengthNS, at)
		return
	}
	s.enter(databaseStation, at, s.accessNS())
}

func (c *cluster) handlingNS() int64 { return handlingNS + int64(c.dataMB*float64(perMBNS)) }

func (c *cluster) accessNS() int64 { return accessNS + int64(c.dataMB*float64(accessMBNS)) }

// answer ends a request. Its session thinks, or ends; of a steady number another one takes its place at once.
func (s *shift) answer(at uint32) {
	one := &s.sessions[at]
	s.active[one.home]--
	if s.now >= s.warmNS {
		s.times = append(s.times, s.now-one.born)
	}
	think := s.think(s.thinks.At(one.drawn()))
	one.stage = thinking
	one.left--
	one.request++
	if one.left == 0 {
		s.free = append(s.free, at)
		if s.population == 0 {
			return
		}
		at = s.begin()
	}
	s.alarm(s.now+think, at)
}

// boundOf is how many requests a second no cluster can exceed: the station with most to do for each sets it. dependent is the part of
// requests that are not the first of their session.
func (c *cluster) boundOf(dependent float64) float64 {
	balancer, database := float64(c.balancer.costNS)/balancerCores, 0.0
	if !c.balancer.persistent {
		database = 2 * dependent * float64(c.accessNS()) / databaseCores
	}
	return 1 / max(balancer/float64(second), database/float64(second), c.serverSeconds(dependent)/yuzServers)
}

// serverSeconds is what a request takes of a server's time on average.
func (c *cluster) serverSeconds(dependent float64) float64 {
	if c.balancer.persistent {
		dependent = 0
	}
	return (float64(workNS) + dependent*float64(c.handlingNS())) / float64(second)
}

// throughput is how many requests a second ended.
func (s *shift) throughput() float64 {
	return float64(len(s.times)) * float64(second) / float64(s.countNS)
}

// meanSeconds of the requests that ended.
func (s *shift) meanSeconds() float64 { return Mean(s.times) }

// quantile returns the time in seconds that a part of the requests does not exceed.
func (s *shift) quantile(part float64) float64 {
	slices.Sort(s.times)
	return Quantile(s.times, part)
}

// variation is the coefficient of variation of the connections of a server.
func (s *shift) variation() float64 {
	sum, squares := 0.0, 0.0
	for _, active := range s.samples {
		sum, squares = sum+float64(active), squares+float64(int64(active)*int64(active))
	}
	n := float64(len(s.samples))
	mean := sum / n
	return math.Sqrt(squares/n-float64(mean*mean)) / mean
}

// always returns the same number of requests, or the same time, whatever is drawn.
func always[T any](value T) func(uint64) T { return func(uint64) T { return value } }

package queueing

import (
	"math"
	"math/bits"
)

// fraction is how many bits after the point virtual time has: it is counted in 2^-16 ns.
const fraction = 16

// never is a time that does not come.
const never = int64(1<<63 - 1)

// station is a machine that serves all its jobs at once, each at the same speed: processor sharing (Kleinrock, "Queueing Systems", volume 2,
// 4.4). One core serves n jobs at 1/n of its speed; more cores serve a job at the speed of one core at most.
//
// A job leaves in the nanosecond in which it is done. That is all the error there is: each arrival and departure costs O(log n), because
// virtual time goes by as fast as each job is served, so that the virtual time at which a job is done is known when it enters. All is counted in
// integers: the result is the same on any machine.
type station struct {
	cores   int64
	jobs    heap
	clock   uint64  // virtual time, in 2^-16 ns: service of a job that was there from the beginning
	settled int64   // ns: when the clock was right
	busyNS  int64   // of all cores together, until then
	waitNS  float64 // of all jobs together, until then

	due    int64 // ns: when the next job is done
	queued int64 // ns: the earliest event in the queue that is for this station
}

// settle sets the clock.
func (s *station) settle(now int64) {
	elapsed := now - s.settled
	s.settled = now
	n := int64(s.jobs.len())
	if n == 0 {
		return
	}
	working := min(n, s.cores)
	s.clock += share(uint64(elapsed)<<fraction, uint64(working), 0, uint64(n))
	s.busyNS += elapsed * working
	s.waitNS += float64(float64(elapsed) * float64(n)) // rounded twice on all processors
}

// longest is a virtual time that does not come: three days.
const longest = math.MaxUint64 - 1<<fraction

// share returns (time*part+more)/of, at most longest. A long time among many jobs does not fit 64 bits on the way.
func share(time, part, more, of uint64) uint64 {
	high, low := bits.Mul64(time, part)
	low, carry := bits.Add64(low, more, 0)
	if high += carry; high >= of {
		return longest
	}
	quotient, _ := bits.Div64(high, low, of)
	return min(quotient, longest)
}

// plan computes when the next job is done if nobody enters. The station must be settled.
func (s *station) plan() {
	n := uint64(s.jobs.len())
	if n == 0 {
		s.due = never
		return
	}
	working := min(n, uint64(s.cores))
	left := s.jobs.first().done - min(s.clock, s.jobs.first().done)
	needs := share(left, n, working-1, working)
	s.due = s.settled + int64((needs+1<<fraction-1)>>fraction)
}

// enter takes a job in. work is how long it would take alone, in ns.
func (s *station) enter(now int64, id uint32, work int64) {
	s.settle(now)
	s.jobs.push(job{done: s.clock + uint64(work)<<fraction, id: id})
	s.plan()
}

// leave takes out the job that is done now.
func (s *station) leave(now int64) (id uint32) {
	s.settle(now)
	id = s.jobs.pop().id
	s.plan()
	return id
}

// drop takes all jobs out, done or not.
func (s *station) drop(now int64) (ids []uint32) {
	s.settle(now)
	for _, job := range s.jobs.jobs {
		ids = append(ids, job.id)
	}
	s.jobs.jobs = s.jobs.jobs[:0]
	s.plan()
	return ids
}

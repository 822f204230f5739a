package queueing

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
	clock   uint64 // virtual time, in 2^-16 ns: service of a job that was there from the beginning
	settled int64  // ns: when the clock was right
	busyNS  int64  // of all cores together, until then

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
	s.clock += uint64(elapsed<<fraction*working) / uint64(n)
	s.busyNS += elapsed * working
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
	needs := (left*n + working - 1) / working
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

package queueing

import (
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// Yuz's test bed (section IV): six servers, a database and a balancer, each with eight cores. The servers count as 48 of one core.
const (
	yuzServers    = 48
	balancerCores = 8
	databaseCores = 8
)

// What things take. The paper has no absolute numbers but the ratios of balancers to each other (figure 6); all others are assumed, of a size
// that a web shop could have, so that Yuz carries about twice what a balancer without persistence does at 1 MB of session data (the abstract),
// and that L7 overtakes it near 10 MB (figure 11): these two are fitted. Nothing else is.
const (
	networkNS    = 600 * microsecond  // three round trips: TCP, TLS, request
	workNS       = 2 * millisecond    // mean of a request's own work at the server, exponential
	handlingNS   = 1200 * microsecond // of a server that gets a session's data from the database and puts them back
	perMBNS      = 800 * microsecond  // the same, for each MB of them
	accessNS     = 50 * microsecond   // of the database, for each of two accesses
	accessMBNS   = 100 * microsecond  // the same, for each MB
	layer4NS     = 180 * microsecond  // of the balancer, for all packets of a request
	yuzNS        = 198 * microsecond  // 10 % more (IV-A)
	layer7NS     = 1800 * microsecond // an order of magnitude more (IV-A)
	thinkNS      = second             // between an answer and the session's next request (IV-B)
	usualMB      = 1.0                // of session data (IV-B)
	usualRequest = 10                 // requests of a session where they are not varied
)

// balancer is a kind of load balancer.
type balancer struct {
	name       string
	costNS     int64 // of its processors, for each request
	persistent bool  // all requests of a session go to one server, which keeps the session's data
}

var (
	layer4 = balancer{name: "l4", costNS: layer4NS}
	yuz    = balancer{name: "yuz", costNS: yuzNS, persistent: true}
	layer7 = balancer{name: "l7", costNS: layer7NS, persistent: true}
)

// cluster is a service whose users have sessions: each is a row of requests, one after the other, each on a connection of its own.
//
// A request passes the network, the balancer, and the server, which shares its core among all requests. Without persistence a server first
// gets the session's data from the database and last puts them back; the first request of a session has none, and what it leaves behind is
// too little to count. Waiting for the database costs a server nothing.
type cluster struct {
	balancer balancer
	dataMB   float64 // of each session

	// Exactly one of them: so many sessions at all times, or so many requests a second in sessions that begin at random (Poisson).
	population int
	rate       float64

	requests func(random uint64) int   // of a session
	think    func(random uint64) int64 // ns
	stalls   stalls                    // of the database
	sampleNS int64                     // between looks at the connections of each server; 0: none

	warmNS, countNS int64
}

// stalls are accesses to the database that wait long: for a lock, or a slow disk. They keep none of its cores from others.
type stalls struct {
	part     float64 // of all accesses
	lengthNS int64
}

// session is a user at work.
type session struct {
	number  uint64 // of all
	left    int    // requests, the present one included
	request int    // that it is at, from 0
	home    uint32 // server of its requests, or of the present one
	stage   stage
	born    int64 // ns: of the present request
}

// stage is where a session's request is.
type stage uint8

const (
	thinking stage = iota
	travelling
	balancing
	reading
	serving
	writing
	answered
)

// Stations of a cluster beyond the servers, which are 0 to yuzServers-1.
const (
	databaseStation = yuzServers
	balancerStation = yuzServers + 1
)

// Alarms of a cluster beyond those of sessions, which are their places.
const (
	sessionBegins = 1<<30 + iota
	sampling
)

// shift is one run of a cluster.
type shift struct {
	*cluster
	*network
	sessions []session
	free     []uint32 // of sessions
	turns    dispatch.Policy
	number   uint64 // of the next session
	active   []int32
	works    random.Key
	thinks   random.Key
	lengths  random.Key
	begins   random.Stream
	waits    random.Key

	times   []int64 // of requests that end when they count, ns
	samples []int32 // connections of a server
}

// run plays the cluster.
func (c *cluster) run(run *sim.Run) *shift {
	s := &shift{
		cluster: c, network: newNetwork(), turns: chooser("rr", 0, "", yuzServers), active: make([]int32, yuzServers),
		works: random.Keyed(run.Seed, "work"), thinks: random.Keyed(run.Seed, "think"), lengths: random.Keyed(run.Seed, "lengths"),
		begins: random.New(run.Seed, "sessions"), waits: random.Keyed(run.Seed, "stalls"),
	}
	for range yuzServers {
		s.add(1)
	}
	s.add(databaseCores)
	s.add(balancerCores)
	s.open()
	end := c.warmNS + c.countNS
	for events := 0; ; events++ {
		h, ok := s.next(end)
		if !ok {
			return s
		}
		if events%8192 == 0 {
			run.StopIfUnwanted()
		}
		if !h.alarm || h.id < sessionBegins {
			s.step(h.id)
			continue
		}
		s.ring(h.id)
	}
}

// open puts the sessions in that are there at the start: each in the pause before one of its requests. Sessions that begin at random have none
// before their first; those of a steady number have, behind the last of another.
func (s *shift) open() {
	begin, first := s.population, 0
	if s.rate > 0 {
		begin, first = int(s.rate*float64(thinkNS)/float64(second)*(1-1.0/usualRequest)), 1
		s.alarm(s.nextSession(), sessionBegins)
	}
	for range begin {
		at := s.begin()
		one := &s.sessions[at]
		drawn := random.Below(s.thinks.At(one.number<<8|255), uint32(max(one.left-first, 1)))
		one.request = min(first+int(drawn), one.left-1)
		one.left -= one.request
		s.alarm(int64(s.begins.Float64()*float64(thinkNS)), at)
	}
	if s.sampleNS > 0 {
		s.alarm(s.warmNS, sampling)
	}
}

// nextSession is when the next one begins, ns.
func (s *shift) nextSession() int64 {
	requests := float64(usualRequest)
	return s.now + int64(s.begins.Exp(float64(second)*requests/s.rate))
}

// begin makes a session, which has not asked for anything yet, and returns its place.
func (s *shift) begin() uint32 {
	one := session{number: s.number, left: s.requests(s.lengths.At(s.number)), home: s.turns.Choose(0, nil)}
	s.number++
	if last := len(s.free) - 1; last >= 0 {
		at := s.free[last]
		s.free = s.free[:last]
		s.sessions[at] = one
		return at
	}
	s.sessions = append(s.sessions, one)
	return uint32(len(s.sessions) - 1)
}

// ring does what an alarm is for that is not a session's.
func (s *shift) ring(what uint32) {
	switch what {
	case sessionBegins:
		s.step(s.begin())
		s.alarm(s.nextSession(), sessionBegins)
	case sampling:
		s.samples = append(s.samples, s.active...)
		s.alarm(s.now+s.sampleNS, sampling)
	}
}

// step brings a session's request to its next stage.
func (s *shift) step(at uint32) {
	one := &s.sessions[at]
	shared := !s.balancer.persistent && one.request > 0
	one.stage++
	if one.stage == reading && !shared {
		one.stage = serving
	}
	switch one.stage {
	case travelling:
		one.born = s.now
		s.choose(one)
		s.alarm(s.now+networkNS, at)
	case balancing:
		s.enter(balancerStation, at, s.balancer.costNS)
	case reading:
		s.access(at)
	case serving:
		s.enter(int(one.home), at, s.workOf(one, shared))
	case writing:
		if shared {
			s.access(at)
			return
		}
		s.answer(at)
	case answered:
		s.answer(at)
	}
}

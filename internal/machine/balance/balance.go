// Package balance decides how much of a service's new connections each server should get, from what is known of their load
// (Spotlight V, Cheetah IV-B). It is pure: time is an argument, nothing here does I/O.
//
// # What a server's load is known by
//
// Each server is measured by the source that the service asks for. A source that has been silent for three intervals, and for a
// second at least, is stale, and the next one counts. The interval of an agent that only people listen to is longer
// (model.Service.LoadPeriod):
//
//	endpoint     outstanding requests that the application tells, then CPU in use that it tells, then connections, then estimate
//	cpu          CPU in use, told by the agent, then connections, then estimate
//	connections  open connections with those that wait to be accepted, told by the agent, then estimate
//	estimate     what the load balancers saw: connections that they dispatched less those that they saw end
//	packets      packets a second that all load balancers together sent to the server of late; bytes likewise
//
// Sources count different things: a connection that is kept alive is open, but no request is outstanding. A server that is measured
// by another source than the rest is therefore set in proportion: where servers known by both show twice as many open connections
// as outstanding requests, half of its connections count. A server about which nothing is known counts as the mean of the others,
// and when nothing is known of any of them, all are alike.
//
// # No smoothing
//
// What agents tell is a mean over the interval already. A filter on top of it would add delay to a loop whose delay is what makes
// it overshoot (Spotlight VI-B: longer intervals are worse), and one that remembers the past would make what two controllers decide
// depend on when each of them took the service over.
package balance

import (
	"math"
	"time"
)

// Implementation constants.
const (
	staleIntervals  = 3
	staleAtLeast    = time.Second
	leastPackets    = 3               // of a client whose connection was of use: SYN, ACK, request
	failureHalfLife = 2 * time.Second // of the evidence for or against a server's answers
	forgetAfter     = 24 * time.Hour  // what has been silent for that long is gone
	mostRequests    = 1e9             // that a report can claim
)

// Report is what an agent, or the application's endpoint, says of one server. A report replaces the one before by the same teller.
type Report struct {
	Connections uint32  // open and accepted, now
	AcceptQueue uint32  // waiting to be accepted, now
	MeanQueue   float64 // mean of Connections + AcceptQueue, or of outstanding requests, since the report before
	CPUPermille uint16  // of CPUs, in use
	CPUs        float64 // of the host, or the part of them that its control group may use; an application need not say: 0
	HasQueue    bool    // the three first fields are known
	HasCPU      bool    // CPUPermille and CPUs are known
	Answered    uint64  // requests answered well since the report before
	Failed      uint64  // requests failed since the report before
	Capacity    float64 // outstanding requests that the server can hold; 0: the service's queue_limit times the server's weight
	// FromEndpoint: the application itself says so. Its MeanQueue are requests, its Connections are not looked at.
	FromEndpoint bool
}

// Seen is what one load balancer saw of one server since it started.
type Seen struct {
	Connections uint64 // dispatched
	Closed      uint64 // FIN or RST seen
	Packets     uint64 // of clients, the first ones of connections included
	Bytes       uint64 // of these packets
	// Estimate is what it takes to be open by way of itself, where it chooses by that: corrected and decayed. nil: it does not.
	Estimate *uint32
}

// Service is what is known of one service's servers, by id. The zero value knows nothing. It is not safe for concurrent use.
type Service struct {
	agents    map[uint16]*report
	endpoints map[uint16]*report
	traffic   map[uint16]*traffic
	seenAt    time.Time         // when a load balancer last reported anything
	begun     map[string]*begun // by load balancer
	weights   map[uint16]uint16 // as last decided; nil: the policy does not follow load
	weighed   time.Time         // when they were
	interval  time.Duration     // of load, as of the last decision
	sweptAt   time.Time
}

// report is the last that one teller said, and how many requests the server answered and failed of late: decayed.
type report struct {
	Report
	at               time.Time
	answered, failed float64
}

// Report takes a report of an agent or of the application's endpoint.
func (s *Service) Report(now time.Time, id uint16, t Report) {
	reports := &s.agents
	if t.FromEndpoint {
		reports = &s.endpoints
	}
	if *reports == nil {
		*reports = make(map[uint16]*report)
	}
	r := (*reports)[id]
	if r == nil {
		r = &report{at: now}
		(*reports)[id] = r
	}
	remains := decay(now.Sub(r.at))
	r.answered = r.answered*remains + float64(t.Answered)
	r.failed = r.failed*remains + float64(t.Failed)
	r.Report, r.at = sane(t), now
}

// decay is the part of the evidence that is left after some time.
func decay(after time.Duration) float64 { return halved(after, failureHalfLife) }

func halved(after, halfLife time.Duration) float64 {
	return math.Exp2(-max(after.Seconds(), 0) / halfLife.Seconds())
}

// sane drops what cannot be: tellers are other programs, on machines that may be broken.
func sane(t Report) Report {
	if !(t.MeanQueue >= 0 && t.MeanQueue <= mostRequests) {
		t.HasQueue, t.MeanQueue = false, 0
	}
	if t.FromEndpoint && t.CPUs == 0 {
		t.CPUs = 1
	}
	if !(t.CPUs > 0 && t.CPUs <= 1<<16) {
		t.HasCPU, t.CPUs = false, 0
	}
	if !(t.Capacity > 0 && t.Capacity <= mostRequests) {
		t.Capacity = 0
	}
	t.CPUPermille = min(t.CPUPermille, 1000)
	return t
}

// fresh reports whether what was said then, and is said once in each period, still counts.
func fresh(now, then time.Time, period time.Duration) bool {
	return !then.IsZero() && now.Sub(then) <= max(staleIntervals*period, staleAtLeast)
}

// forget drops what has been silent for long: servers and load balancers that have left.
func (s *Service) forget(now time.Time) {
	if now.Sub(s.sweptAt) < forgetAfter/24 {
		return
	}
	s.sweptAt = now
	for _, reports := range []map[uint16]*report{s.agents, s.endpoints} {
		for id, r := range reports {
			if now.Sub(r.at) > forgetAfter {
				delete(reports, id)
			}
		}
	}
	for lb, b := range s.begun {
		if now.Sub(b.heard) > forgetAfter {
			delete(s.begun, lb)
		}
	}
	for id, t := range s.traffic {
		for lb, n := range t.nodes {
			if now.Sub(n.at) > forgetAfter {
				delete(t.nodes, lb)
			}
		}
		if len(t.nodes) == 0 {
			delete(s.traffic, id)
		}
	}
}

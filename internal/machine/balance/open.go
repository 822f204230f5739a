// Open connections, as agents count them: load balancers whose policy goes by their own estimates are told.
package balance

import (
	"math"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	// shareHalfLife is that of the connections by which load balancers' parts of a service are known.
	shareHalfLife = 10 * time.Second
	leastBegun    = 1e-200 // of these: when all are older than two hours, the parts are equal
)

// begun are the connections that one load balancer dispatched of late: decayed since at.
type begun struct {
	connections float64
	at, heard   time.Time
}

func (s *Service) began(now time.Time, lb string, connections float64) {
	if s.begun == nil {
		s.begun = map[string]*begun{}
	}
	b := s.begun[lb]
	if b == nil {
		b = &begun{at: now}
		s.begun[lb] = b
	}
	b.connections = b.of(now) + connections
	b.at, b.heard = now, now
}

func (b *begun) of(now time.Time) float64 {
	return b.connections * math.Exp2(-max(now.Sub(b.at), 0).Seconds()/shareHalfLife.Seconds())
}

// Counts returns how many connections are open on the servers that agents have counted of late, by id.
func (s *Service) Counts(now time.Time, svc *model.Service) map[uint16]uint32 {
	counts := map[uint16]uint32{}
	for i := range svc.Servers {
		server := &svc.Servers[i]
		if r := s.agents[server.ID]; r != nil && r.HasQueue && fresh(now, r.at, svc.LoadPeriod(server)) {
			counts[server.ID] = uint32(min(r.open(), math.MaxInt32))
		}
	}
	return counts
}

// Shares are the parts of the service's new connections that the load balancers dispatch, which were heard of lately. Their estimates should
// add up to what agents count, and each sees the ends of the connections that it dispatched, unless routes have changed. So the count is
// divided as new connections are. Equal parts of it would be wrong where one load balancer gets most of them. Parts by the estimates would
// keep the errors that the count is to correct.
func (s *Service) Shares(now time.Time) map[string]float64 {
	shares, sum := map[string]float64{}, 0.
	for lb, b := range s.begun {
		if now.Sub(b.heard) <= seenFor {
			shares[lb] = b.of(now)
			sum += shares[lb]
		}
	}
	for lb := range shares {
		if sum > leastBegun {
			shares[lb] /= sum
		} else {
			shares[lb] = 1 / float64(len(shares))
		}
	}
	return shares
}

// estimated is the sum of what load balancers that were heard of lately take to be open on a server; ok: they have such estimates.
func (t *traffic) estimated(now time.Time) (open uint64, ok bool) {
	for _, n := range t.nodes {
		if n.last.Estimate != nil && now.Sub(n.at) <= seenFor {
			open, ok = open+uint64(*n.last.Estimate), true
		}
	}
	return open, ok
}

// Rose takes note that a server takes new connections again after it was unhealthy. What load balancers saw open on it when it fell says
// nothing about it now, so it counts as the mean of the others by weight, as one that nothing is known of does.
func (s *Service) Rose(svc *model.Service, id uint16) {
	t := s.traffic[id]
	if t == nil {
		return
	}
	own, open, weight := 0., 0., 0.
	for i := range svc.Servers {
		server := &svc.Servers[i]
		if server.ID == id {
			own = float64(server.Weight)
		} else if other := s.traffic[server.ID]; other != nil && server.TakesNew() {
			open, weight = open+max(other.open, 0), weight+float64(server.Weight)
		}
	}
	t.open = 0
	if weight > 0 {
		t.open = own * open / weight
	}
}

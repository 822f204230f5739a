// What is known of a server, for people.
package balance

import (
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Status is what is known of one server.
type Status struct {
	Source      string    // of Load: connections, cpu, endpoint, estimate; empty: nothing is known
	Load        float64   // requests, or the part of the CPU in use
	At          time.Time // when Load was told
	Available   float64   // capacity that is left, in the same unit, after the penalty for failures
	Kept        float64   // part of the capacity that failures of late leave, up to 1
	Weighed     time.Time // when Weight was decided; zero: it is the configured one
	Weight      uint16    // as last decided; where the policy does not follow load, the configured one
	Connections *uint64   // that live; nil: nobody can tell
	Exact       bool      // the agent counted Connections; otherwise the load balancers estimate them
	Before      uint64    // what the agent counted last, where Connections is nil because it is silent now
	Counted     time.Time // when it did; zero: it is not so
	Dispatched  uint64    // connections, since load balancers were heard of first
}

// Status returns what is known of a server, configured or removed. svc is what weights are made for: who is unhealthy takes no new
// connections there, but is reported like others.
func (s *Service) Status(now time.Time, svc *model.Service, server *model.Server) Status {
	var status Status
	id := server.ID
	if slices.ContainsFunc(svc.Servers, func(weighed model.Server) bool { return weighed.ID == id && weighed.TakesNew() }) {
		status.Weight = server.Weight
		if s.weights != nil {
			status.Weight, status.Weighed = s.weights[id], s.weighed
		}
	}
	for _, source := range sources(svc.Load.Source) {
		if m := s.measure(now, svc, server, source); m.known {
			status.Source, status.Load, status.At, status.Kept = source.String(), m.load, m.at, s.penalty(now, id)
			status.Available = available(svc, server, source, m.load, m.size) * status.Kept
			break
		}
	}
	if r := s.silent(now, svc, server); r != nil && server.TakesNew() {
		status.Before, status.Counted = r.open(), r.at
	} else {
		status.Connections, status.Exact = s.connections(now, svc, server)
	}
	if t := s.traffic[id]; t != nil {
		status.Dispatched = t.total
	}
	return status
}

// silent returns the last count of an agent that has counted a server's connections and does not any more; nil: it is not so. Estimates do not take its place: load
// balancers see only some of the ends, and nobody says so of those that the agent has seen. Whoever waits for the end of a drain has nothing better.
func (s *Service) silent(now time.Time, svc *model.Service, server *model.Server) *report {
	if r := s.agents[server.ID]; r != nil && r.HasQueue && !fresh(now, r.at, svc.LoadPeriod(server)) {
		return r
	}
	return nil
}

func (r *report) open() uint64 { return uint64(r.Connections) + uint64(r.AcceptQueue) }

// connections returns how many of a server's connections live; nil: nobody can tell.
func (s *Service) connections(now time.Time, svc *model.Service, server *model.Server) (open *uint64, exact bool) {
	if r := s.agents[server.ID]; r != nil && r.HasQueue && fresh(now, r.at, svc.LoadPeriod(server)) {
		return new(r.open()), true
	}
	t := s.traffic[server.ID]
	if t == nil || now.Sub(t.seen) > seenFor || !svc.Affinity.Cookies() { // the data path sees the ends of connections with cookies
		return nil, false
	}
	// Whoever waits for a server to drain must not be misled by an estimate that has decayed.
	if open, ok := t.estimated(now); ok && server.TakesNew() {
		return &open, false
	}
	return new(uint64(max(t.open, 0))), false
}

// From loads to weights.
package balance

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/algo/awrr"
	"github.com/ballast-lb/ballast/internal/algo/capacity"
	"github.com/ballast-lb/ballast/internal/algo/lcf"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	idleCPU = 0.01 // part of the CPU up to which a server counts as idle
	// worstLoad, in averages, is as bad as failing makes a load for awrr: there the formula gives the least turns. A load beyond it
	// would only drag the average along, and with it hide how the others differ.
	worstLoad = 9
)

// sources returns where to look for a server's load, best first.
func sources(wanted model.LoadSource) []model.LoadSource {
	switch wanted {
	case model.LoadEndpoint:
		return []model.LoadSource{model.LoadEndpoint, model.LoadCPU, model.LoadConnections, model.LoadEstimate}
	case model.LoadCPU:
		return []model.LoadSource{model.LoadCPU, model.LoadConnections, model.LoadEstimate}
	case model.LoadConnections:
		return []model.LoadSource{model.LoadConnections, model.LoadEstimate}
	default: // what load balancers count
		return []model.LoadSource{wanted}
	}
}

// A measure is a server's load by one source: requests, or for cpu the part of the CPU in use.
type measure struct {
	load  float64
	size  float64   // of the server: requests are compared per size, and so is what is left of the CPU
	at    time.Time // when it was told; zero: it is not known
	known bool
}

// relative makes loads of servers of different sizes comparable.
func (m measure) relative(source model.LoadSource) float64 {
	if source == model.LoadCPU {
		return m.load
	}
	return m.load / m.size
}

// measure looks up a server's load by one source.
func (s *Service) measure(now time.Time, svc *model.Service, server *model.Server, source model.LoadSource) measure {
	agent, endpoint, seen := s.agents[server.ID], s.endpoints[server.ID], s.traffic[server.ID]
	said := func(r *report) bool {
		period := time.Duration(svc.Load.Interval)
		if r != nil && !r.FromEndpoint {
			period = svc.LoadPeriod(server)
		}
		return r != nil && fresh(now, r.at, period)
	}
	switch source {
	case model.LoadEndpoint:
		if said(endpoint) && endpoint.HasQueue {
			return measure{endpoint.MeanQueue, s.size(now, svc, server), endpoint.at, true}
		}
	case model.LoadConnections:
		if said(agent) && agent.HasQueue {
			return measure{agent.MeanQueue, s.size(now, svc, server), agent.at, true}
		}
	case model.LoadCPU:
		teller := agent
		if svc.Load.Source == model.LoadEndpoint { // an application that knows nothing of requests
			teller = endpoint
		}
		if said(teller) && teller.HasCPU {
			return measure{float64(teller.CPUPermille) / 1000, teller.CPUs, teller.at, true}
		}
	case model.LoadEstimate:
		if seen != nil && fresh(now, s.seenAt, time.Duration(svc.Load.Interval)) {
			return measure{max(seen.open, 0), s.size(now, svc, server), s.seenAt, true}
		}
	case model.LoadPackets, model.LoadBytes:
		if seen != nil && now.Sub(seen.seen) <= seenFor {
			return measure{seen.rates.perSecond(now, s.rateHalfLife(), source), s.size(now, svc, server), seen.seen, true}
		}
	}
	return measure{}
}

// size is how many requests a server can hold, in units of the service's queue limit.
func (s *Service) size(now time.Time, svc *model.Service, server *model.Server) float64 {
	if said := s.endpoints[server.ID]; said != nil && said.Capacity > 0 && svc.Load.QueueLimit > 0 && fresh(now, said.at, time.Duration(svc.Load.Interval)) {
		return said.Capacity / float64(svc.Load.QueueLimit)
	}
	return float64(max(server.Weight, 1))
}

// penalty is what is left of a server's capacity for answering badly. The evidence fades, so that a server that gets no requests
// because it failed them is tried again.
func (s *Service) penalty(now time.Time, id uint16) float64 {
	var answered, failed float64
	for _, r := range []*report{s.agents[id], s.endpoints[id]} {
		if r != nil {
			remains := decay(now.Sub(r.at))
			answered, failed = answered+r.answered*remains, failed+r.failed*remains
		}
	}
	if t := s.traffic[id]; t != nil {
		reached, refused := t.refused(now)
		answered, failed = answered+reached, failed+refused
	}
	return capacity.Penalty(answered, failed)
}

// available is what a server could still take: of requests, or of CPUs.
func available(svc *model.Service, server *model.Server, source model.LoadSource, load, size float64) float64 {
	if source == model.LoadCPU {
		return capacity.FromCPU(uint16(math.Round(1000*min(load, 1))), size, server.Weight)
	}
	return capacity.FromQueue(load, float64(svc.Load.QueueLimit)*size)
}

// Weigh returns the weights by the service's policy of the servers that take new connections, in the order of their ids, and
// remembers them for Status. A policy that does not follow load has none: nil.
func (s *Service) Weigh(now time.Time, svc *model.Service) []model.Share {
	if !svc.Dispatch.FollowsLoad() {
		s.weights = nil
		return nil
	}
	s.forget(now)
	var loads []awrr.Load
	var left []awfd.Available
	assessed, _, _ := s.assess(now, svc)
	for _, a := range assessed {
		loads = append(loads, awrr.Load{ID: a.server.ID, Load: a.load})
		left = append(left, awfd.Available{ID: a.server.ID, Capacity: a.available})
	}
	var shares []model.Share
	switch svc.Dispatch {
	case model.DispatchAWRR:
		shares = awrr.Turns(loads)
	case model.DispatchAWFD:
		shares = awfd.Weights(left, svc.Load.Classes)
	case model.DispatchLCF:
		shares = lcf.Weights(left)
	}
	slices.SortFunc(shares, func(a, b model.Share) int { return cmp.Compare(a.ID, b.ID) })
	s.weights, s.weighed = make(map[uint16]uint16, len(shares)), now
	for _, share := range shares {
		s.weights[share.ID] = share.Weight
	}
	return shares
}

// Load is what is known of one server's load, for its size.
type Load struct {
	ID   uint16
	Load float64
}

// Loads returns the loads of the servers that take new connections, in the order of their ids; requests: 1 is a request or a connection of a
// server of weight 1. None: the policy compares no reports, or nothing is known of any server.
func (s *Service) Loads(now time.Time, svc *model.Service) (loads []Load, requests bool) {
	if !svc.ComparesReports() {
		return nil, false
	}
	s.forget(now)
	assessed, unit, ok := s.assess(now, svc)
	if !ok {
		return nil, false
	}
	for _, a := range assessed {
		loads = append(loads, Load{a.server.ID, a.load})
	}
	return loads, unit.CountsRequests()
}

// An assessment is what weights are made of.
type assessment struct {
	server    *model.Server
	load      float64 // per capacity, made worse by failures: awrr
	available float64 // made less by failures: awfd, lcf
	penalty   float64
}

// assess compares the servers that take new connections, in the order of their ids: sums of floating-point numbers depend on it. ok: something
// is known of them.
func (s *Service) assess(now time.Time, svc *model.Service) (out []assessment, unit model.LoadSource, ok bool) {
	s.interval = time.Duration(svc.Load.Interval)
	for i := range svc.Servers {
		if server := &svc.Servers[i]; server.TakesNew() {
			out = append(out, assessment{server: server})
		}
	}
	slices.SortFunc(out, func(a, b assessment) int { return cmp.Compare(a.server.ID, b.server.ID) })
	unit, loads, ok := s.compare(now, svc, out)
	if !ok {
		for i := range out {
			out[i].available = 1
		}
		return out, unit, false
	}
	cpus := s.meanCPUs(now, svc, out)
	for i := range out {
		a := &out[i]
		size, idle := s.size(now, svc, a.server), float64(capacity.Idle)
		load, requests := loads[i], loads[i]*size
		if unit == model.LoadCPU {
			size, idle, requests = cpus, idleCPU, load
			if m := s.measure(now, svc, a.server, model.LoadCPU); m.known {
				size = m.size
			}
		} else {
			idle /= size
		}
		// Departs from Cheetah IV-B as FromQueue does from Spotlight: between idle servers chance would decide.
		a.penalty = s.penalty(now, a.server.ID)
		a.load = max(load, idle)
		a.available = available(svc, a.server, unit, requests, size) * a.penalty
	}
	punish(out)
	return out, unit, true
}

// punish makes the loads of servers that fail requests worse.
func punish(servers []assessment) {
	average := 0.0
	for _, a := range servers {
		average += a.load / float64(len(servers))
	}
	for i := range servers {
		a := &servers[i]
		worse := a.load + max(a.load, average)*(1/a.penalty-1) // a server without load, because it fails at once, too
		a.load = max(a.load, min(worse, worstLoad*average))
	}
}

// compare returns the relative loads of all servers in the unit of one source: the best that anything is known by.
func (s *Service) compare(now time.Time, svc *model.Service, servers []assessment) (unit model.LoadSource, loads []float64, ok bool) {
	loads, known := make([]float64, len(servers)), make([]bool, len(servers))
	reference := make([]measure, len(servers))
	sum, count := 0.0, 0
	for _, source := range sources(svc.Load.Source) {
		measures := make([]measure, len(servers))
		any := false
		for i := range servers {
			measures[i] = s.measure(now, svc, servers[i].server, source)
			any = any || measures[i].known
		}
		if !any {
			continue
		}
		if !ok {
			unit, reference, ok = source, measures, true
		}
		scale, comparable := proportion(unit, reference, source, measures)
		for i, m := range measures {
			if m.known && comparable && !known[i] {
				loads[i], known[i] = m.relative(source)*scale, true
				sum, count = sum+loads[i], count+1
			}
		}
	}
	for i := range loads {
		if !known[i] && ok {
			loads[i] = sum / float64(count)
		}
	}
	return unit, loads, ok
}

// proportion returns what one source's loads have to be multiplied by to be comparable with those of the reference, going by the
// servers that are known by both.
func proportion(unit model.LoadSource, reference []measure, source model.LoadSource, measures []measure) (scale float64, ok bool) {
	if source == unit {
		return 1, true
	}
	var wanted, have float64
	for i := range measures {
		if measures[i].known && reference[i].known {
			wanted += reference[i].relative(unit)
			have += measures[i].relative(source)
		}
	}
	if have > 0 {
		return wanted / have, true
	}
	return 1, unit != model.LoadCPU // both count requests
}

// meanCPUs is what a server counts as having that does not say.
func (s *Service) meanCPUs(now time.Time, svc *model.Service, servers []assessment) float64 {
	sum, count := 0.0, 0
	for _, a := range servers {
		if m := s.measure(now, svc, a.server, model.LoadCPU); m.known {
			sum, count = sum+m.size, count+1
		}
	}
	if count == 0 {
		return 1
	}
	return sum / float64(count)
}

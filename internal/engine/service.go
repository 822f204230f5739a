// What an engine knows of a service, and decides about it.
package engine

import (
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/machine/filtered"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
)

// serviceState is what an engine knows of one service.
type serviceState struct {
	name string
	slot slot // in the engine's schedule

	mutex  sync.Mutex  // guards what follows; comes after Engine.mutex
	view   ServiceView // changes under Engine.mutex, too
	ids    map[uint16]bool
	lead   bool
	term   uint64
	health verdicts

	balance balance.Service
	weighed model.Service // as weights are made for: who is unhealthy takes no new connections
	weights weightUpdates
	counts  countUpdates
	loads   uint64 // version of the last loads

	requests requests
	activity activity
	starts   starts
	silent   map[uint16]bool // servers whose endpoint did not answer
}

// slot is where a service stands in the engine's schedule. Engine.mutex guards it.
type slot struct {
	due   time.Time
	index int // -1: nowhere
}

// decision is what an engine publishes of a service.
type decision struct {
	weights   *follow.Update
	health    bool
	unhealthy fleet.Unhealthy
	off       []uint16
	counts    *follow.Counts
	loads     *follow.Loads
	shares    map[string]float64 // of counts and loads
}

// setView reports whether its servers have changed, and whether it has to be decided about.
func (s *serviceState) setView(now time.Time, v *ServiceView) (servers, changed bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if v.Revision != 0 && v.Revision == s.view.Revision {
		return false, false
	}
	before := s.view
	s.view = *v
	servers = !slices.Equal(before.Service.Servers, v.Service.Servers) || !slices.Equal(before.Removed, v.Removed)
	if servers {
		s.ids = map[uint16]bool{}
		for _, list := range [][]model.Server{v.Service.Servers, v.Removed} {
			for i := range list {
				s.ids[list[i].ID] = true
			}
		}
		s.activity.keep(s.ids)
		s.starts.keep(s.ids)
	}
	old, next := &before.Service, &v.Service
	changed = old.Name == "" || old.Load != next.Load || old.Dispatch != next.Dispatch || old.Health.Check != next.Health.Check || old.Affinity != next.Affinity
	s.weights.complete = s.weights.complete || changed
	s.judgeNow(now)
	return servers, changed
}

// weigh works out what weights are made for. The caller holds the lock.
func (s *serviceState) weigh() {
	s.weighed = s.view.Service
	if len(s.health.down) == 0 {
		return
	}
	s.weighed.Servers = slices.Clone(s.weighed.Servers)
	for i := range s.weighed.Servers {
		if _, down := slices.BinarySearch(s.health.down, s.weighed.Servers[i].ID); down {
			s.weighed.Servers[i].State = model.StateDraining
		}
	}
}

// setLead reports whether the service is newly led, or not led any more, or in another term.
func (s *serviceState) setLead(lead bool, term uint64) (changed bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	changed = lead != s.lead || lead && term != s.term
	s.lead, s.term = lead, term
	if changed {
		s.weights.complete, s.requests = true, requests{}
	}
	return changed
}

// setCheckers reports whether the service is led.
func (s *serviceState) setCheckers(lbs []string) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.health.checkers, s.health.evidence = lbs, true
	return s.lead
}

// checkedBy returns the load balancers that may check the servers: those that send packets to them, as their way is the one that counts.
func (s *serviceState) checkedBy(lbs []string, tiers map[string]model.Tier) []string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	service := &s.view.Service
	if service.Health.Check == model.CheckNone {
		return nil
	}
	if len(tiers) == 0 {
		return lbs
	}
	return slices.DeleteFunc(slices.Clone(lbs), func(lb string) bool {
		if s.name == model.SecondTierName {
			return tiers[lb] != model.TierFirst
		}
		return service.SendsToNodes(tiers[lb])
	})
}

// period is how often the service has to be decided about.
func (s *serviceState) period() time.Duration {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.lead && s.view.Service.FollowsLoad() {
		return max(time.Duration(s.view.Service.Load.Interval), time.Duration(model.MinLoadInterval))
	}
	return decidePeriod
}

func (s *serviceState) seen(now time.Time, lb string, servers []ServerTraffic) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for i := range servers {
		server, id := &servers[i], servers[i].ID
		if !s.ids[id] {
			continue
		}
		s.balance.Seen(now, lb, id, server.Seen)
		s.activity.report(lb, id, server.Packets)
		s.starts.report(lb, id, server.Start)
	}
}

// checked reports whether the service has to be judged now.
func (s *serviceState) checked(now time.Time, lb string, found *ServerHealth) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.ids[found.ID] {
		return false
	}
	s.health.judge.Report(now, lb, found.ID, found.View)
	s.health.evidence = true
	return true
}

// found reports whether the service has to be judged now.
func (s *serviceState) found(now time.Time, agent string, id uint16, loss health.Loss) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.ids[id] {
		return false
	}
	changed := s.health.judge.Found(now, agent, id, loss, &s.view.Service.Health)
	s.health.evidence = s.health.evidence || changed
	return changed
}

// reportLoad takes the load that an agent or an application reports.
func (s *serviceState) reportLoad(now time.Time, id uint16, load balance.Report) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.ids[id] {
		s.balance.Report(now, id, load)
	}
}

// decide decides by what is known now. silent are load balancers; nobody changes it.
func (s *serviceState) decide(now time.Time, silent map[string]bool) (d decision) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.health.judge.Silence(silent)
	if s.health.evidence || now.Sub(s.health.judged) >= decidePeriod/2 { // weights may be due much more often
		s.judgeNow(now)
	}
	shares := s.balance.Weigh(now, &s.weighed) // also where another controller leads: for Servers, and to be ready
	if !s.lead {
		return decision{}
	}
	if shares != nil {
		d.weights = s.weights.next(s.term, shares)
	}
	d.unhealthy = fleet.Unhealthy{Down: s.health.down, Kept: s.health.kept, Cut: s.toCut(now)}
	if !d.unhealthy.Equal(fleet.Unhealthy{Down: s.view.Down, Kept: s.view.Kept, Cut: s.view.Cut}) && now.Sub(s.requests.health) >= repeatPeriod {
		d.health, s.requests.health = true, now
	}
	d.off = s.toSwitchOff(now)
	if s.view.Service.CountsOpen() {
		d.counts, d.shares = s.counts.next(now, s.term, s.balance.Counts(now, &s.view.Service), s.balance.Shares(now))
	}
	if loads, requests := s.balance.Loads(now, &s.weighed); len(loads) > 0 {
		s.loads++
		d.loads, d.shares = &follow.Loads{Term: s.term, Version: s.loads, Requests: requests}, s.balance.Shares(now)
		for _, load := range loads {
			d.loads.Servers = append(d.loads.Servers, follow.Load(load))
		}
	}
	return d
}

// judgeNow decides who is unhealthy. The caller holds the lock.
func (s *serviceState) judgeNow(now time.Time) {
	healthy, changed := s.health.decide(now, &s.view.Service)
	for _, id := range healthy {
		s.balance.Rose(&s.weighed, id)
	}
	if changed {
		s.requests.health = time.Time{}
	}
	s.weigh()
}

// toCut returns who has been unhealthy for so long that the connections are cut. Whoever decided it before knew better since when.
func (s *serviceState) toCut(now time.Time) (ids []uint16) {
	deadline := time.Duration(s.view.Service.Health.Deadline)
	if deadline == 0 {
		return nil
	}
	for _, id := range s.health.down {
		_, before := slices.BinarySearch(s.view.Cut, id)
		if since := s.health.judge.DownSince(id); before || !since.IsZero() && now.Sub(since) >= deadline {
			ids = append(ids, id)
		}
	}
	return ids
}

// toSwitchOff returns the servers whose drain should have ended.
func (s *serviceState) toSwitchOff(now time.Time) (ids []uint16) {
	for i := range s.view.Service.Servers {
		server := &s.view.Service.Servers[i]
		if !server.DrainEnded(now) || now.Sub(s.requests.off[server.ID]) < repeatPeriod {
			continue
		}
		if s.requests.off == nil {
			s.requests.off = map[uint16]time.Time{}
		}
		s.requests.off[server.ID] = now
		ids = append(ids, server.ID)
	}
	return ids
}

// needsAgents reports whether the service's servers answer clients themselves.
func (s *serviceState) needsAgents() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.view.Service.Return == model.ReturnDirect && s.view.Service.Affinity.Cookies()
}

// named is the server with an id, without what is known of it.
func (s *serviceState) named(id uint16) []ServerStatus {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for i := range s.view.Service.Servers {
		if s.view.Service.Servers[i].ID == id {
			return []ServerStatus{{Service: s.name, Server: s.view.Service.Servers[i]}}
		}
	}
	return nil
}

// tunnels adds what load balancers see, through tunnels, of one of the service's servers. Where its agent has found why packets are lost,
// the tunnel is not what is wrong.
func (s *serviceState) tunnels(id uint16, views []filtered.View) []filtered.View {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	protocol := s.view.Service.TunnelProtocol()
	if protocol == "" || s.health.judge.Lost(id) {
		return views
	}
	for i := range s.view.Service.Servers {
		server := &s.view.Service.Servers[i]
		if server.ID != id {
			continue
		}
		for lb, v := range s.health.judge.Views(id) {
			if !v.Direct {
				views = append(views, filtered.View{Balancer: lb, Server: server.Name, Address: server.Address, Protocol: protocol, Answers: v.Healthy || !v.Unanswered})
			}
		}
	}
	return views
}

// status returns what is known of the service's servers.
func (s *serviceState) status(now time.Time) (servers []ServerStatus) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for i := range s.view.Service.Servers {
		server := s.view.Service.Servers[i]
		state, detail := s.health.judge.Status(server.ID)
		servers = append(servers, ServerStatus{Service: s.name, Server: server, Status: s.balance.Status(now, &s.weighed, &server),
			Health: state, HealthDetail: detail, HealthReported: s.health.judge.Reported(server.ID), Activity: s.activity.reports[server.ID]})
		if servers[i].Weight > 0 { // what load balancers report may be older
			servers[i].Start = s.starts.at(now, server.ID)
		}
	}
	for _, server := range s.view.Removed {
		gone := model.Server{ID: server.ID, State: model.StateOff}
		servers = append(servers, ServerStatus{Service: s.name, Server: server, Removed: true, Status: s.balance.Status(now, &s.weighed, &gone),
			Activity: s.activity.reports[server.ID]})
	}
	return servers
}

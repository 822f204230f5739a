package engine

import (
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/machine/filtered"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
)

// account is what an engine knows of one service.
type account struct {
	name  string
	due   time.Time // under the engine's lock
	place int       // in the engine's schedule

	mutex    sync.Mutex
	view     ServiceView
	kept     []uint16      // unhealthy, and get new connections all the same
	weighed  model.Service // as weights are made for: who is unhealthy takes no new connections
	ids      map[uint16]bool
	lead     bool
	term     uint64
	balance  balance.Service
	judge    health.Judge
	checkers []string
	down     []uint16 // as judged last
	judged   time.Time
	evidence bool                 // there is something that was not judged yet
	told     time.Time            // Down
	asked    map[uint16]time.Time // Off
	version  uint64
	updates  uint64
	complete bool              // the next update of weights tells all of them
	sent     map[uint16]uint16 // weights
	packets  map[uint16]map[string]uint64
	silent   map[uint16]bool   // servers whose endpoint did not answer
	activity map[uint16]uint64 // reports that showed new packets for a server
	counts   countsTold
}

// decision is what an engine tells of a service.
type decision struct {
	weights   *follow.Update
	health    bool
	unhealthy node.Unhealthy
	off       []uint16
	counts    *follow.Counts
	shares    map[string]float64 // of counts
}

// setView reports whether its servers have changed, and whether it has to be looked at.
func (a *account) setView(now time.Time, v *ServiceView) (servers, changed bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if v.Revision != 0 && v.Revision == a.view.Revision {
		return false, false
	}
	before := a.view
	a.view = *v
	servers = !slices.Equal(before.Service.Servers, v.Service.Servers) || !slices.Equal(before.Removed, v.Removed)
	if servers {
		a.ids = map[uint16]bool{}
		for _, list := range [][]model.Server{v.Service.Servers, v.Removed} {
			for i := range list {
				a.ids[list[i].ID] = true
			}
		}
		for id := range a.packets {
			if !a.ids[id] {
				delete(a.packets, id)
				delete(a.activity, id)
			}
		}
	}
	old, next := &before.Service, &v.Service
	changed = old.Name == "" || old.Load != next.Load || old.Dispatch != next.Dispatch || old.Health.Check != next.Health.Check || old.Affinity != next.Affinity
	a.complete = a.complete || changed
	a.judgeNow(now)
	return servers, changed
}

// weigh works out what weights are made for. The caller holds the lock.
func (a *account) weigh() {
	a.weighed = a.view.Service
	if len(a.down) == 0 {
		return
	}
	a.weighed.Servers = slices.Clone(a.weighed.Servers)
	for i := range a.weighed.Servers {
		if _, down := slices.BinarySearch(a.down, a.weighed.Servers[i].ID); down {
			a.weighed.Servers[i].State = model.StateDraining
		}
	}
}

// setLead reports whether the service is newly led, or not led any more, or in another term.
func (a *account) setLead(lead bool, term uint64) (changed bool) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	changed = lead != a.lead || lead && term != a.term
	a.lead, a.term = lead, term
	if changed {
		a.complete, a.told, a.asked = true, time.Time{}, nil
	}
	return changed
}

// setCheckers reports whether the service is led.
func (a *account) setCheckers(lbs []string) bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.checkers, a.evidence = lbs, true
	return a.lead
}

// checkedBy returns the load balancers that may check the servers: those that send packets to them, as their way is the one that counts.
func (a *account) checkedBy(lbs []string, tiers map[string]model.Tier) []string {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	s := &a.view.Service
	if s.Health.Check == model.CheckNone {
		return nil
	}
	if len(tiers) == 0 {
		return lbs
	}
	return slices.DeleteFunc(slices.Clone(lbs), func(lb string) bool {
		if a.name == model.SecondTierName {
			return tiers[lb] != model.TierFirst
		}
		return s.SendsToNodes(tiers[lb])
	})
}

// period is how often the service has to be looked at.
func (a *account) period() time.Duration {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.lead && a.view.Service.Dispatch.FollowsLoad() {
		return max(time.Duration(a.view.Service.Load.Interval), time.Duration(model.MinLoadInterval))
	}
	return lookPeriod
}

func (a *account) seen(now time.Time, lb string, servers []ServerTraffic) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for i := range servers {
		s, id := &servers[i], servers[i].ID
		if !a.ids[id] {
			continue
		}
		a.balance.Seen(now, lb, id, s.Seen)
		if a.packets == nil {
			a.packets, a.activity = map[uint16]map[string]uint64{}, map[uint16]uint64{}
		}
		if a.packets[id] == nil {
			a.packets[id] = map[string]uint64{}
		}
		if before, known := a.packets[id][lb]; !known || before != s.Packets {
			a.packets[id][lb] = s.Packets
			a.activity[id]++
		}
	}
}

// checked reports whether the service has to be judged now.
func (a *account) checked(now time.Time, lb string, s *ServerHealth) bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if !a.ids[s.ID] {
		return false
	}
	a.judge.Told(now, lb, s.ID, s.View)
	a.evidence = true
	return true
}

// found reports whether the service has to be judged now.
func (a *account) found(now time.Time, agent string, id uint16, loss health.Loss) bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if !a.ids[id] {
		return false
	}
	changed := a.judge.Found(now, agent, id, loss, &a.view.Service.Health)
	a.evidence = a.evidence || changed
	return changed
}

// toldLoad takes what an agent or an application says.
func (a *account) toldLoad(now time.Time, id uint16, told balance.Told) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.ids[id] {
		a.balance.Told(now, id, told)
	}
}

// look decides by what is known now.
func (a *account) look(now time.Time) (d decision) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if a.evidence || now.Sub(a.judged) >= lookPeriod/2 { // weights may be due much more often
		a.judgeNow(now)
	}
	shares := a.balance.Weigh(now, &a.weighed) // also where another controller leads: for Servers, and to be ready
	if !a.lead {
		return decision{}
	}
	if shares != nil {
		d.weights = a.update(shares)
	}
	d.unhealthy = node.Unhealthy{Down: a.down, Kept: a.kept, Cut: a.toCut(now)}
	if !d.unhealthy.Equal(node.Unhealthy{Down: a.view.Down, Kept: a.view.Kept, Cut: a.view.Cut}) && now.Sub(a.told) >= repeatPeriod {
		d.health, a.told = true, now
	}
	d.off = a.toSwitchOff(now)
	if a.view.Service.Dispatch.CountsOpen() {
		d.counts, d.shares = a.counts.next(now, a.term, a.balance.Counts(now, &a.view.Service), a.balance.Shares(now))
	}
	return d
}

// judgeNow decides who is unhealthy. The caller holds the lock.
func (a *account) judgeNow(now time.Time) {
	down := a.judge.Down(now, &a.view.Service, a.checkers)
	a.judged, a.evidence = now, false
	if kept := a.judge.Kept(); !slices.Equal(down, a.down) || !slices.Equal(kept, a.kept) {
		for _, id := range slices.Concat(a.down, a.kept) {
			if !slices.Contains(down, id) && !(slices.Contains(a.kept, id) && slices.Contains(kept, id)) {
				a.balance.Rose(&a.weighed, id)
			}
		}
		a.down, a.kept, a.told = down, kept, time.Time{}
	}
	a.weigh()
}

// update makes an update of what is new; nil: nothing is.
func (a *account) update(shares []model.Share) *follow.Update {
	complete := a.complete || a.updates%completeUpdate == 0
	a.updates++
	u := &follow.Update{Term: a.term, Version: a.version + 1, Complete: complete}
	sent := make(map[uint16]uint16, len(shares))
	for _, share := range shares {
		sent[share.ID] = share.Weight
		if before, ok := a.sent[share.ID]; complete || !ok || before != share.Weight {
			u.Weights = append(u.Weights, share)
		}
	}
	a.sent = sent
	if !complete && len(u.Weights) == 0 {
		return nil
	}
	a.complete = false
	a.version++
	return u
}

// toCut returns who has been unhealthy for so long that the connections are cut. Whoever decided it before knew better since when.
func (a *account) toCut(now time.Time) (ids []uint16) {
	deadline := time.Duration(a.view.Service.Health.Deadline)
	if deadline == 0 {
		return nil
	}
	for _, id := range a.down {
		_, before := slices.BinarySearch(a.view.Cut, id)
		if since := a.judge.DownSince(id); before || !since.IsZero() && now.Sub(since) >= deadline {
			ids = append(ids, id)
		}
	}
	return ids
}

// toSwitchOff returns the servers whose drain should have ended.
func (a *account) toSwitchOff(now time.Time) (ids []uint16) {
	for i := range a.view.Service.Servers {
		s := &a.view.Service.Servers[i]
		if s.State != model.StateDraining || s.Deadline.IsZero() || now.Before(s.Deadline) || now.Sub(a.asked[s.ID]) < repeatPeriod {
			continue
		}
		if a.asked == nil {
			a.asked = map[uint16]time.Time{}
		}
		a.asked[s.ID] = now
		ids = append(ids, s.ID)
	}
	return ids
}

// needsAgents reports whether the service's servers answer clients themselves.
func (a *account) needsAgents() bool {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.view.Service.Return == model.ReturnDirect && a.view.Service.Affinity.Cookies()
}

// named is the server with an id, without what is known of it.
func (a *account) named(id uint16) []ServerStatus {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for i := range a.view.Service.Servers {
		if a.view.Service.Servers[i].ID == id {
			return []ServerStatus{{Service: a.name, Server: a.view.Service.Servers[i]}}
		}
	}
	return nil
}

// tunnels adds what load balancers see, through tunnels, of one of the service's servers. Where its agent has found why packets are lost,
// the tunnel is not what is wrong.
func (a *account) tunnels(id uint16, views []filtered.View) []filtered.View {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	protocol := a.view.Service.TunnelProtocol()
	if protocol == "" || a.judge.Lost(id) {
		return views
	}
	for i := range a.view.Service.Servers {
		server := &a.view.Service.Servers[i]
		if server.ID != id {
			continue
		}
		for lb, v := range a.judge.Views(id) {
			if !v.Direct {
				views = append(views, filtered.View{Balancer: lb, Server: server.Name, Address: server.Address, Protocol: protocol, Answers: v.Healthy || !v.Unanswered})
			}
		}
	}
	return views
}

// status tells what is known of the service's servers.
func (a *account) status(now time.Time) (servers []ServerStatus) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for i := range a.view.Service.Servers {
		server := a.view.Service.Servers[i]
		state, detail := a.judge.Status(server.ID)
		servers = append(servers, ServerStatus{Service: a.name, Server: server, Status: a.balance.Status(now, &a.weighed, &server),
			Health: state, HealthDetail: detail, Activity: a.activity[server.ID]})
	}
	for _, server := range a.view.Removed {
		gone := model.Server{ID: server.ID, State: model.StateOff}
		servers = append(servers, ServerStatus{Service: a.name, Server: server, Removed: true, Status: a.balance.Status(now, &a.weighed, &gone),
			Activity: a.activity[server.ID]})
	}
	return servers
}

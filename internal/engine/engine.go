// Package engine judges the health of servers, asks them for their load, and weighs them. Controllers run one, and a load balancer that
// runs by a file.
package engine

import (
	"container/heap"
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/rendezvous"
	"github.com/ballast-lb/ballast/internal/linux/poll"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Options are who receives what an engine decides. Callbacks come from Run, one at a time and with no lock held; they
// must not wait for long. Those that are nil are not called.
type Options struct {
	// Weigh takes new weights of a service that is led: only what has changed, and from time to time everything.
	Weigh func(service string, update *follow.Update)
	// Count takes what agents have counted of a service that is led and whose policy chooses by open connections, and which part of its
	// connections each load balancer dispatches.
	Count func(service string, counts *follow.Counts, shares map[string]float64)
	// Loads takes the loads of servers of a service that is led and whose policy compares them, in each interval; shares as of Count.
	Loads func(service string, loads *follow.Loads, shares map[string]float64)
	// Down takes who is unhealthy of a service that is led, whenever that differs from the view. It is repeated until the view
	// agrees.
	Down func(service string, found fleet.Unhealthy)
	// Off asks for a server of a service that is led to be switched off, as the deadline of its drain has passed. It is repeated until
	// the view agrees.
	Off func(service string, id uint16)
	// Checks takes what each load balancer is to check, of the services that are led.
	Checks func(map[string][]string)
	// Transport asks applications for their load; nil: an ordinary one.
	Transport http.RoundTripper
	Log       *slog.Logger
}

// Implementation constants.
const (
	decidePeriod   = time.Second // how often an engine decides about a service when nothing happens
	repeatPeriod   = time.Second // of what was asked for and is not so yet
	completeUpdate = 8           // every so many updates of weights have all of them: lost ones are made good
	checkers       = 3           // load balancers that check a service
)

// Engine judges the health of servers and weighs them by their load. It knows of all services, so that it can lead one that nobody
// leads any more at once; it publishes only what it decides about those that it leads. It has no store and no streams. All methods are safe
// for concurrent use; reports of services and servers that it does not know are ignored.
type Engine struct {
	options Options
	poller  *poll.Poller
	wake    chan struct{}

	mutex    sync.RWMutex
	term     uint64
	leads    func(service string) bool
	services map[string]*serviceState
	due      schedule
	urgent   map[*serviceState]bool // to be decided about now
	lbs      []string
	alive    map[string]time.Time  // load balancers that say every second that they work: when they did last
	tiers    map[string]model.Tier // of load balancers that have one
	assign   bool                  // who checks what has to be decided again
	checks   map[string][]string   // as published last
	target   bool                  // who is polled has to be decided again
	stale    bool                  // byName and byAddress are
	byName   map[string][]entry    // servers, for the reports of agents
	byAddr   map[netip.Addr][]addressed
}

// entry is one server of a service.
type entry struct {
	service *serviceState
	id      uint16
}

// addressed is an entry with the server's name.
type addressed struct {
	entry
	name string
}

// New returns an engine that knows of no service and leads none.
func New(o Options) *Engine {
	e := &Engine{options: o, wake: make(chan struct{}, 1), leads: func(string) bool { return false }, services: map[string]*serviceState{}, alive: map[string]time.Time{},
		urgent: map[*serviceState]bool{}}
	e.poller = poll.New(poll.Options{Report: e.polled, Transport: o.Transport})
	return e
}

// SetState takes the desired state as it is now.
func (e *Engine) SetState(view *View) {
	now := time.Now()
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if tiers := view.tiers(); !maps.Equal(tiers, e.tiers) {
		e.tiers, e.assign = tiers, true
	}
	here := make(map[string]bool, len(view.Services))
	for v := range view.judged() {
		here[v.Service.Name] = true
		state := e.services[v.Service.Name]
		if state == nil {
			state = &serviceState{name: v.Service.Name, slot: slot{index: -1}}
			state.health.judge.Restore(now, v.Down, v.Kept)
			e.services[state.name] = state
			state.setLead(e.leads(state.name), e.term)
			e.assign = true
		}
		servers, changed := state.setView(now, v)
		e.stale = e.stale || servers
		e.assign = e.assign || changed
		e.target = e.target || servers || changed
		if servers || changed {
			e.schedule(state, now)
		}
	}
	for name, state := range e.services {
		if !here[name] {
			delete(e.services, name)
			heap.Remove(&e.due, state.slot.index)
			state.setLead(false, 0)
			delete(e.urgent, state)
			e.stale, e.assign, e.target = true, true, true
		}
	}
	e.wakeUp()
}

// Lead takes which services this engine leads from now on, and the term of its updates: higher than of whoever led them before.
func (e *Engine) Lead(term uint64, leads func(service string) bool) {
	now := time.Now()
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.term, e.leads, e.assign, e.target = term, leads, true, true
	for name, state := range e.services {
		if state.setLead(leads(name), term) {
			e.schedule(state, now)
		}
	}
	e.wakeUp()
}

// SetLoadBalancers takes which load balancers are connected, and so can check servers.
func (e *Engine) SetLoadBalancers(names []string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.lbs, e.assign = slices.Clone(names), true
	maps.DeleteFunc(e.alive, func(lb string, _ time.Time) bool { return !slices.Contains(names, lb) })
	e.wakeUp()
}

// Alive takes that a connected load balancer works.
func (e *Engine) Alive(lb string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if slices.Contains(e.lbs, lb) {
		e.alive[lb] = time.Now()
	}
}

// silent are the load balancers that have said that they work, and do not any more. The caller holds the lock.
func (e *Engine) silent(now time.Time) map[string]bool {
	silent := map[string]bool{}
	for lb, at := range e.alive {
		if now.Sub(at) >= health.Silent {
			silent[lb] = true
		}
	}
	return silent
}

// serversOf returns the servers that an agent speaks for, each once: those at its addresses, and by its name those of services that have none of that name there.
// A server that was removed keeps its name, and one at another address may have it since: counts of one host are not those of two servers.
func (e *Engine) serversOf(agent *pki.Identity) (servers []entry) {
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	if e.stale {
		e.mutex.RUnlock()
		e.index()
		e.mutex.RLock()
	}
	here := map[*serviceState]bool{} // by the name
	for _, address := range agent.Addresses {
		for _, server := range e.byAddr[address] {
			if !slices.Contains(servers, server.entry) {
				servers = append(servers, server.entry)
				here[server.service] = here[server.service] || server.name == agent.Name
			}
		}
	}
	for _, server := range e.byName[agent.Name] {
		if !here[server.service] && !slices.Contains(servers, server) {
			servers = append(servers, server)
		}
	}
	return servers
}

// index finds servers by name and address.
func (e *Engine) index() {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if !e.stale {
		return // reports of many agents came at once, and another has done it
	}
	e.stale, e.byName, e.byAddr = false, map[string][]entry{}, map[netip.Addr][]addressed{}
	for _, state := range e.services {
		removed := slices.Clone(state.view.Removed) // changed under both locks
		slices.Reverse(removed)                     // the latest first
		named := map[string]bool{}
		for _, servers := range [][]model.Server{state.view.Service.Servers, removed} {
			for i := range servers {
				server, name := entry{state, servers[i].ID}, servers[i].Name
				e.byAddr[servers[i].Address] = append(e.byAddr[servers[i].Address], addressed{server, name})
				if !named[name] {
					e.byName[name], named[name] = append(e.byName[name], server), true
				}
			}
		}
	}
}

func (e *Engine) service(name string) *serviceState {
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	return e.services[name]
}

func (e *Engine) wakeUp() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// schedule has a service decided about soon: at a random time of its period, at most a second from now. From then on it keeps its own step, so
// that not all services are decided about at once. The caller holds the lock.
func (e *Engine) schedule(state *serviceState, now time.Time) {
	state.slot.due = now.Add(rand.N(min(state.period(), decidePeriod)))
	if state.slot.index < 0 {
		heap.Push(&e.due, state)
	} else {
		heap.Fix(&e.due, state.slot.index)
	}
}

// Run decides until ctx ends.
func (e *Engine) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	ctx, cancel := context.WithCancel(ctx)
	var polling sync.WaitGroup
	defer polling.Wait()
	defer cancel()
	polling.Go(func() { e.poller.Run(ctx) })
	for {
		services, silent, checks, next := e.next(time.Now())
		for _, state := range services {
			e.publish(state, state.decide(time.Now(), silent))
		}
		if checks != nil && e.options.Checks != nil {
			e.options.Checks(checks)
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-e.wake:
		case <-ctx.Done():
			return
		}
	}
}

// next returns the services to decide about now, which load balancers are silent, who is to check what if that has changed, and when to go on.
func (e *Engine) next(now time.Time) (services []*serviceState, silent map[string]bool, checks map[string][]string, next time.Time) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for state := range e.urgent {
		services = append(services, state)
	}
	clear(e.urgent)
	for len(e.due) > 0 && !e.due[0].slot.due.After(now) {
		state := e.due[0]
		services = append(services, state)
		period := state.period()
		state.slot.due = state.slot.due.Add(period * (1 + now.Sub(state.slot.due)/period)) // what was missed is not made up for
		heap.Fix(&e.due, 0)
	}
	if e.assign {
		e.assign = false
		checks = e.assignChecks()
	}
	if e.target {
		e.target = false
		e.poller.Set(e.targets())
	}
	next = now.Add(decidePeriod)
	if len(e.due) > 0 && e.due[0].slot.due.Before(next) {
		next = e.due[0].slot.due
	}
	return services, e.silent(now), checks, next
}

// assignChecks decides who checks what, and returns it for the services that are led; nil: nothing is to be told.
func (e *Engine) assignChecks() map[string][]string {
	checks := map[string][]string{}
	for name, state := range e.services {
		elected, lead := rendezvous.Elect(name, state.checkedBy(e.lbs, e.tiers), checkers), false
		if lead = state.setCheckers(elected); !lead {
			continue
		}
		for _, lb := range elected {
			checks[lb] = append(checks[lb], name)
		}
	}
	same := len(checks) == len(e.checks)
	for lb, services := range checks {
		slices.Sort(services)
		same = same && slices.Equal(services, e.checks[lb])
	}
	if same || e.term == 0 { // who leads nothing may judge nobody: load balancers that hear no other do, by the checks that go on
		return nil
	}
	e.checks = checks
	return checks
}

func (e *Engine) publish(state *serviceState, d decision) {
	if d.weights != nil && e.options.Weigh != nil {
		e.options.Weigh(state.name, d.weights)
	}
	if d.counts != nil && e.options.Count != nil {
		e.options.Count(state.name, d.counts, d.shares)
	}
	if d.loads != nil && e.options.Loads != nil {
		e.options.Loads(state.name, d.loads, d.shares)
	}
	if d.health && e.options.Down != nil {
		e.options.Down(state.name, d.unhealthy)
	}
	for _, id := range d.off {
		if e.options.Off != nil {
			e.options.Off(state.name, id)
		}
	}
}

// schedule is a heap of services by when to decide about them.
type schedule []*serviceState

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].slot.due.Before(s[j].slot.due) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].slot.index, s[j].slot.index = i, j
}

func (s *schedule) Push(a any) {
	a.(*serviceState).slot.index = len(*s)
	*s = append(*s, a.(*serviceState))
}

func (s *schedule) Pop() any {
	last := len(*s) - 1
	state := (*s)[last]
	*s = (*s)[:last]
	state.slot.index = -1
	return state
}

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
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Options are whom an engine tells what it decides. Callbacks come from Run, one at a time and with no lock held; they
// must not wait for long. Those that are nil are not called.
type Options struct {
	// Weigh takes new weights of a service that is led: only what has changed, and from time to time everything.
	Weigh func(service string, update *follow.Update)
	// Count takes what agents have counted of a service that is led and whose policy chooses by open connections, and which part of its
	// connections each load balancer dispatches.
	Count func(service string, counts *follow.Counts, shares map[string]float64)
	// Down takes who is unhealthy of a service that is led, whenever that differs from what the view says. It is repeated until the view
	// agrees.
	Down func(service string, found node.Unhealthy)
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
	lookPeriod     = time.Second // how often a service is looked at when nothing happens
	repeatPeriod   = time.Second // of what was asked for and is not so yet
	completeUpdate = 8           // every so many updates of weights tell all of them: lost ones are made good
	checkers       = 3           // load balancers that check a service
)

// Engine judges the health of servers and weighs them by their load. It knows of all services, so that it can lead one that nobody
// leads any more at once; only of those that it leads it tells anybody. It has no store and no streams. All methods are safe for
// concurrent use; reports of services and servers that it does not know are ignored.
type Engine struct {
	options Options
	poller  *poll.Poller
	wake    chan struct{}

	mutex    sync.RWMutex
	term     uint64
	leads    func(service string) bool
	accounts map[string]*account
	due      schedule
	urgent   map[*account]bool // to be looked at now
	lbs      []string
	tiers    map[string]model.Tier // of load balancers that have one
	assign   bool                  // who checks what has to be decided again
	checks   map[string][]string   // as told last
	target   bool                  // who is polled has to be decided again
	stale    bool                  // byName and byAddress are
	byName   map[string][]entry    // servers, for the reports of agents
	byAddr   map[netip.Addr][]entry
}

// entry is one server of a service.
type entry struct {
	account *account
	id      uint16
}

// New returns an engine that knows of no service and leads none.
func New(o Options) *Engine {
	e := &Engine{options: o, wake: make(chan struct{}, 1), leads: func(string) bool { return false }, accounts: map[string]*account{},
		urgent: map[*account]bool{}}
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
		a := e.accounts[v.Service.Name]
		if a == nil {
			a = &account{name: v.Service.Name, place: -1}
			a.judge.Restore(now, v.Down, v.Kept)
			e.accounts[a.name] = a
			a.setLead(e.leads(a.name), e.term)
			e.assign = true
		}
		servers, changed := a.setView(now, v)
		e.stale = e.stale || servers
		e.assign = e.assign || changed
		e.target = e.target || servers || changed
		if servers || changed {
			e.schedule(a, now)
		}
	}
	for name, a := range e.accounts {
		if !here[name] {
			delete(e.accounts, name)
			heap.Remove(&e.due, a.place)
			a.setLead(false, 0)
			delete(e.urgent, a)
			e.stale, e.assign, e.target = true, true, true
		}
	}
	e.wakeUp()
}

// Lead says which services this engine leads from now on, and the term of its updates: higher than of whoever led them before.
func (e *Engine) Lead(term uint64, leads func(service string) bool) {
	now := time.Now()
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.term, e.leads, e.assign, e.target = term, leads, true, true
	for name, a := range e.accounts {
		if a.setLead(leads(name), term) {
			e.schedule(a, now)
		}
	}
	e.wakeUp()
}

// SetLoadBalancers says which load balancers are connected, and so can check servers.
func (e *Engine) SetLoadBalancers(names []string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.lbs, e.assign = slices.Clone(names), true
	e.wakeUp()
}

// serversOf returns the servers that an agent speaks for, each once.
func (e *Engine) serversOf(agent *pki.Identity) (servers []entry) {
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	if e.stale {
		e.mutex.RUnlock()
		e.index()
		e.mutex.RLock()
	}
	servers = append(servers, e.byName[agent.Name]...)
	for _, address := range agent.Addresses {
		for _, server := range e.byAddr[address] {
			if !slices.Contains(servers, server) {
				servers = append(servers, server)
			}
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
	e.stale, e.byName, e.byAddr = false, map[string][]entry{}, map[netip.Addr][]entry{}
	for _, a := range e.accounts {
		for _, servers := range [][]model.Server{a.view.Service.Servers, a.view.Removed} { // changed under both locks
			for i := range servers {
				server := entry{a, servers[i].ID}
				e.byName[servers[i].Name] = append(e.byName[servers[i].Name], server)
				e.byAddr[servers[i].Address] = append(e.byAddr[servers[i].Address], server)
			}
		}
	}
}

func (e *Engine) account(name string) *account {
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	return e.accounts[name]
}

func (e *Engine) wakeUp() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// schedule looks at a service soon: at a random time of its period, at most a second from now. From then on it keeps its own step, so
// that services are not looked at all at once. The caller holds the lock.
func (e *Engine) schedule(a *account, now time.Time) {
	a.due = now.Add(rand.N(min(a.period(), lookPeriod)))
	if a.place < 0 {
		heap.Push(&e.due, a)
	} else {
		heap.Fix(&e.due, a.place)
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
		accounts, checks, next := e.next(time.Now())
		for _, a := range accounts {
			e.tell(a, a.look(time.Now()))
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

// next returns the services to look at now, who is to check what if that has changed, and when to look again.
func (e *Engine) next(now time.Time) (accounts []*account, checks map[string][]string, next time.Time) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	for a := range e.urgent {
		accounts = append(accounts, a)
	}
	clear(e.urgent)
	for len(e.due) > 0 && !e.due[0].due.After(now) {
		a := e.due[0]
		accounts = append(accounts, a)
		period := a.period()
		a.due = a.due.Add(period * (1 + now.Sub(a.due)/period)) // what was missed is not made up for
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
	next = now.Add(lookPeriod)
	if len(e.due) > 0 && e.due[0].due.Before(next) {
		next = e.due[0].due
	}
	return accounts, checks, next
}

// assignChecks decides who checks what, and returns it for the services that are led; nil: it is as it was.
func (e *Engine) assignChecks() map[string][]string {
	checks := map[string][]string{}
	for name, a := range e.accounts {
		elected, lead := rendezvous.Elect(name, a.checkedBy(e.lbs, e.tiers), checkers), false
		if lead = a.setCheckers(elected); !lead {
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
	if same {
		return nil
	}
	e.checks = checks
	return checks
}

func (e *Engine) tell(a *account, d decision) {
	if d.weights != nil && e.options.Weigh != nil {
		e.options.Weigh(a.name, d.weights)
	}
	if d.counts != nil && e.options.Count != nil {
		e.options.Count(a.name, d.counts, d.shares)
	}
	if d.health && e.options.Down != nil {
		e.options.Down(a.name, d.unhealthy)
	}
	for _, id := range d.off {
		if e.options.Off != nil {
			e.options.Off(a.name, id)
		}
	}
}

// schedule is a heap of services by when to look at them.
type schedule []*account

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].due.Before(s[j].due) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i, j
}

func (s *schedule) Push(a any) {
	a.(*account).place = len(*s)
	*s = append(*s, a.(*account))
}

func (s *schedule) Pop() any {
	last := len(*s) - 1
	a := (*s)[last]
	*s = (*s)[:last]
	a.place = -1
	return a
}

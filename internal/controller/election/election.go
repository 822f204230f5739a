// Package election divides the services among the controllers that live.
//
// Controllers divide the services by a list in the store, so that all of them go by the same one: each is led by the
// controller that rendezvous.Elect names. Whoever sees that those that live are others than the list says replaces it.
// The revision of the list is the term of the weights made by it, so those of whoever went by an older list are told
// apart, however late they come.
package election

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/store"
)

// Implementation constants.
const (
	retryPause     = 200 * time.Millisecond
	proposeTimeout = time.Second // of an attempt to replace the list: meanwhile nothing else is noticed
	// settleTime is how long a new list is left alone: whoever wrote it may know of a controller that we are just about
	// to hear of.
	settleTime = 100 * time.Millisecond
	ownPeriod  = time.Second // of looking at whether this controller's own certificate is good
)

// Options are what an election needs.
type Options struct {
	Self   store.Member // this controller, but for Addresses
	Store  store.Store
	Mirror *desired.Mirror
	Writer *desired.Writer
	// Addresses are those that this controller's certificate names now.
	Addresses func() []netip.Addr
	// Revoked reports whether this controller's own certificate is revoked.
	Revoked func() bool
	// Lead is told what this controller leads from now on, and in which term; 0: nothing.
	Lead func(term uint64, leads func(service string) bool)
	// Judge is told whether this controller judges servers.
	Judge func(bool)
	// Live is told who lives; nil: this controller cannot know.
	Live func(names []string)
	Log  *slog.Logger
}

// Election is a controller's part in dividing the services. It is safe for concurrent use.
type Election struct {
	o Options

	mutex sync.Mutex
	leads Leadership
	live  []store.Member
	gone  map[string]*ballastv1.NodeStatus // controllers that lived, by name
}

// New returns an election that this controller takes no part in yet.
func New(o Options) *Election { return &Election{o: o} }

// Standing is what is known at one moment. Nobody changes it.
type Standing struct {
	Leadership
	Live []store.Member
	Gone map[string]*ballastv1.NodeStatus // controllers whose lease has ended, by name
}

// Now returns what is known now.
func (e *Election) Now() Standing {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return Standing{e.leads, e.live, e.gone}
}

// Leads reports whether this controller leads a service now.
func (e *Election) Leads(service string) bool { return e.Now().Leads(e.o.Self.Name, service) }

// Forget forgets a controller whose lease has ended, and reports whether there was one of that name. A dry run only reports.
func (e *Election) Forget(dryRun bool, name string) bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	_, known := e.gone[name]
	if dryRun {
		return known
	}
	e.gone = maps.Clone(e.gone)
	delete(e.gone, name)
	return known
}

// SetWriting tells load balancers whether this controller judges servers: it leads, and can write to the store.
func (e *Election) SetWriting(writes bool) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.o.Judge(writes && e.leads.Term != 0)
}

// Run registers this controller among those that live and divides the services with them until ctx ends, but for the
// time in which its own certificate is revoked: no node would hear it.
func (e *Election) Run(ctx context.Context) {
	for ctx.Err() == nil {
		part, end := context.WithCancel(ctx)
		var watching sync.WaitGroup
		watching.Go(func() {
			defer end()
			awaitThat(part, e.o.Revoked)
		})
		e.elect(part)
		end()
		watching.Wait()
		awaitThat(ctx, func() bool { return !e.o.Revoked() })
	}
}

// awaitThat waits until something holds, or ctx ends.
func awaitThat(ctx context.Context, holds func() bool) {
	tick := time.NewTicker(ownPeriod)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// elect keeps up with who lives until ctx ends, and leads what falls to this controller.
func (e *Election) elect(ctx context.Context) {
	defer e.withdraw()
	live := e.register(ctx)
	var members []store.Member
	var term uint64
	var began time.Time // of the term
	said := ""
	for {
		current, changed := e.o.Mirror.Next()
		if current != nil && current.Revisions[documents.ControllersKey] != term {
			term, began = current.Revisions[documents.ControllersKey], time.Now()
		}
		e.lead(decide(e.o.Self.Name, members, current))
		var again <-chan time.Time
		if agreed(members, current) {
			said = ""
		} else if young := settleTime - time.Since(began); young > 0 {
			again = time.After(young)
		} else if err := e.propose(ctx, members); err != nil && ctx.Err() == nil {
			again = time.After(retryPause)
			if text := err.Error(); text != said {
				said = text
				e.o.Log.Warn("the list of controllers cannot be written: services may have no controller", "error", err)
			}
		}
		select {
		case list, ok := <-live:
			if !ok {
				return
			}
			members = list
			e.take(list)
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// register puts this controller on the list of those that live, and delivers the list.
func (e *Election) register(ctx context.Context) <-chan []store.Member {
	self, said := e.o.Self, false
	self.Addresses = e.o.Addresses()
	for {
		live, err := e.o.Store.Join(ctx, self)
		if err == nil {
			return live
		}
		if !said && ctx.Err() == nil {
			said = true
			e.o.Log.Error("this controller cannot join the others yet, it leads nothing", "error", err)
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			ended := make(chan []store.Member)
			close(ended)
			return ended
		}
	}
}

// take takes note of who lives.
func (e *Election) take(live []store.Member) {
	for _, why := range Contested(live) {
		e.o.Log.Warn("a certificate is in use twice", "why", why)
	}
	e.mutex.Lock()
	e.gone = withoutLease(e.gone, e.live, live)
	e.live = live
	e.mutex.Unlock()
	e.o.Live(namesOf(e.o.Self.Name, live))
}

// lead takes over, or gives up, and says so once.
func (e *Election) lead(l Leadership) {
	e.mutex.Lock()
	before := e.leads
	e.leads = l
	e.mutex.Unlock()
	if l.equal(before) {
		return
	}
	e.o.Lead(l.Term, func(service string) bool { return l.Leads(e.o.Self.Name, service) })
	e.o.Judge(l.Term != 0)
	if l.Term == 0 {
		e.o.Log.Warn("this controller leads no service any more: the others, if there are any, take over; load balancers that hear no other judge servers themselves")
		return
	}
	e.o.Log.Info("services are divided among the controllers", "controllers", l.Names, "term", l.Term)
}

// propose replaces the list of controllers in the store by those that live. Who is not one of them does not know them
// well.
func (e *Election) propose(ctx context.Context, live []store.Member) error {
	if e.o.Mirror.Now() == nil || !Lives(e.o.Self.Name, live) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	return e.o.Writer.Update(ctx, func(now *documents.Snapshot) ([]store.Document, error) {
		if agreed(live, now) {
			return nil, nil
		}
		list, err := now.Put(documents.ControllersKey, listOf(live))
		return []store.Document{list}, err
	})
}

// withdraw gives up what this controller has as one of those that live.
func (e *Election) withdraw() {
	e.mutex.Lock()
	e.live, e.leads = nil, Leadership{}
	e.mutex.Unlock()
	e.o.Lead(0, func(string) bool { return false })
	e.o.Judge(false)
	e.o.Live(nil)
}

// Others are the controllers that live, without this one.
func (e *Election) Others() []store.Member {
	return slices.DeleteFunc(slices.Clone(e.Now().Live), func(m store.Member) bool { return m.Name == e.o.Self.Name })
}

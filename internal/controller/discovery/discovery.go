// Package discovery keeps the servers of services as their sources name them.
//
// Every controller asks, so that each knows how old its answers are and the next one can take over at once; the one that leads a service carries out what it
// hears. That is a change of the fleet like any other, so all load balancers have the same servers with the same ids.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/discovery"
	machine "github.com/ballast-lb/ballast/internal/machine/discovery"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants.
const (
	period     = time.Second     // of looking at what time alone changes
	retryAfter = 5 * time.Second // what could not be carried out
)

// Options are what a manager needs.
type Options struct {
	Name     string // of this controller
	Mirror   *desired.Mirror
	Editor   desired.Editor
	LeaderOf func(service string) string // empty: it is not known
	Log      *slog.Logger
	Asking   discovery.Options
}

// Manager asks sources. It is safe for concurrent use.
type Manager struct {
	o    Options
	wake desired.Wake

	mutex   sync.Mutex
	watched map[string]*watched // by service
}

// watched is the source of one service.
type watched struct {
	source  model.ServerSource
	since   time.Time
	stop    context.CancelFunc
	tracker machine.Tracker
	led     time.Time // since then this controller leads the service; zero: it does not
	due     time.Time // time alone changes something then; zero: never
	seen    state     // that was acted on last
	said    string    // to the log
}

// state is what an action depends on.
type state struct {
	version  int    // of what the source says
	revision uint64 // of the service
	leads    bool
}

// New returns a manager that asks nobody yet.
func New(o Options) *Manager {
	return &Manager{o: o, wake: desired.NewWake(), watched: map[string]*watched{}}
}

// Run asks until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	desired.Loop{Wake: m.wake, Period: period, Step: func(ctx context.Context, now *documents.Snapshot) error {
		m.follow(ctx, now, &asking)
		return m.act(ctx, now)
	}, Failed: func(err error) { m.o.Log.Error("servers stay as they are, and not as their sources say", "error", err) }}.Run(ctx, m.o.Mirror)
}

// follow asks the sources that the fleet has now, and no others.
func (m *Manager) follow(ctx context.Context, now *documents.Snapshot, asking *sync.WaitGroup) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for name, w := range m.watched {
		if s := now.Services[name]; s == nil || s.Service.Source != w.source {
			w.stop()
			delete(m.watched, name)
		}
	}
	for name, s := range now.Services {
		of := s.Service.Source
		if of.IsZero() || m.watched[name] != nil {
			continue
		}
		w := &watched{source: of, since: time.Now()}
		var asked context.Context
		asked, w.stop = context.WithCancel(ctx)
		m.watched[name] = w
		asking.Go(func() { discovery.Watch(asked, of, m.o.Asking, func(a machine.Answer) { m.take(asked, name, w, a) }) })
	}
}

// take takes what a source says, unless nobody asks it any more.
func (m *Manager) take(ctx context.Context, service string, w *watched, a machine.Answer) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if ctx.Err() != nil {
		return
	}
	err := w.tracker.Take(a, time.Now())
	switch said := fmt.Sprint(err); {
	case err != nil && said != w.said:
		m.o.Log.Warn("servers stay as they are: their source has no good answer", "service", service, "source", w.source.String(), "error", err)
		w.said = said
	case err == nil && w.said != "":
		m.o.Log.Info("the source answers again", "service", service, "source", w.source.String())
		w.said = ""
	}
	m.wake.Call()
}

// act makes services what their sources say, where something has changed. One that fails holds up no other.
func (m *Manager) act(ctx context.Context, now *documents.Snapshot) (failed error) {
	m.mutex.Lock()
	names := slices.Sorted(maps.Keys(m.watched))
	m.mutex.Unlock()
	for _, name := range names {
		if err := m.actOn(ctx, now, name); err != nil {
			failed = errors.Join(failed, fmt.Errorf("service %s: %w", name, err))
		}
	}
	return failed
}

func (m *Manager) actOn(ctx context.Context, now *documents.Snapshot, name string) error {
	m.mutex.Lock()
	w, service, at := m.watched[name], now.Services[name], time.Now()
	if w == nil || service == nil || service.Service.Source != w.source {
		m.mutex.Unlock()
		return nil
	}
	is := state{w.tracker.Version(), now.Revisions[documents.ServicesPrefix+name], m.leads(name)}
	switch {
	case !is.leads:
		w.led = time.Time{}
	case w.led.IsZero():
		w.led = at
	}
	if is == w.seen && (w.due.IsZero() || at.Before(w.due)) {
		m.mutex.Unlock()
		return nil
	}
	node := now.Node()
	servers, due, ok := w.tracker.Wanted(node.Base.Service(name), w.led, at)
	w.seen, w.due = is, due
	m.mutex.Unlock()
	if !ok {
		return nil
	}
	same, unfit, err := m.carryOut(ctx, node, name, w.source, servers, is.leads)
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if w.tracker.Observe(same, unfit, err, at); err != nil {
		w.due = time.Now().Add(retryAfter)
	}
	return err
}

func (m *Manager) leads(service string) bool { return m.o.LeaderOf(service) == m.o.Name }

var errNotLeading = errors.New("another controller leads the service by now")

// carryOut gives a service its servers if this controller leads it, and reports whether it has them; node is the fleet as it is known.
func (m *Manager) carryOut(ctx context.Context, node *fleet.Desired, name string, of model.ServerSource, servers []model.Server, leads bool) (
	same bool, unfit []string, err error,
) {
	var bad []api.Unfit
	edit := api.SetServers(name, of, servers, &bad)
	if leads {
		ctx, cancel := context.WithTimeout(ctx, desired.WriteTimeout)
		defer cancel()
		ctx = api.WithCaller(ctx, api.Caller{Name: m.o.Name, Role: string(pki.Controller), Address: of.String()})
		_, _, err = m.o.Editor.Change(ctx, false, func(next *fleet.Desired) error {
			if !m.leads(name) {
				return errNotLeading
			}
			return edit(next)
		})
		same = err == nil
	} else {
		var changes []string
		changes, err = node.Change(time.Now(), edit)
		same = err == nil && len(changes) == 0
	}
	for _, server := range bad {
		unfit = append(unfit, fmt.Sprintf("%s: %v", server.Server.Name, server.Why))
	}
	if errors.Is(err, errNotLeading) || errors.Is(err, api.ErrOtherSource) {
		err = nil // there is another look as soon as that is known here
	}
	return same, unfit, err
}

// Status is how a service stands to its source.
type Status struct {
	machine.Status
	Service string
	Source  model.ServerSource
	Age     time.Duration // of the last good answer; before the first, since this controller asks
}

// All tells how services stand to their sources, by name.
func (m *Manager) All() (list []Status) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	now := time.Now()
	for _, name := range slices.Sorted(maps.Keys(m.watched)) {
		w := m.watched[name]
		one := Status{w.tracker.Status(now, m.o.LeaderOf(name)), name, w.source, now.Sub(w.since)}
		if !one.Good.IsZero() {
			one.Age = now.Sub(one.Good)
		}
		list = append(list, one)
	}
	return list
}

// Problems says which services have other servers than their sources name, and why.
func (m *Manager) Problems() (problems []string) {
	for _, s := range m.All() {
		if s.Problem != "" {
			problems = append(problems, fmt.Sprintf("servers of service %s from %s: %s", s.Service, s.Source, s.Problem))
		}
	}
	return problems
}

// List is All as it is told to people, of one service, or of all if it is empty.
func (m *Manager) List(service string) (list []*ballastv1.SourceStatus) {
	for _, s := range m.All() {
		if service != "" && service != s.Service {
			continue
		}
		one := &ballastv1.SourceStatus{Service: s.Service, Source: s.Source.String(), Servers: uint32(s.Servers), Problem: s.Problem}
		if !s.Good.IsZero() {
			one.Good = timestamppb.New(s.Good)
		}
		list = append(list, one)
	}
	return list
}

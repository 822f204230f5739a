// Package findings stores what checks have found.
package findings

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Options are what findings need.
type Options struct {
	Name    string // of this controller
	Mirror  *desired.Mirror
	Editor  desired.Editor
	Servers func(service string) []engine.ServerStatus
	Writing func(bool) // told whether findings can be stored
	Log     *slog.Logger
}

// Findings are what the engine asks to be written down. The newest of a service counts; what fails is asked for again
// by the engine.
type Findings struct {
	o    Options
	wake desired.Wake

	mutex  sync.Mutex
	unwell map[string]fleet.Unhealthy
	ended  map[serverOf]bool
}

// New returns no findings.
func New(o Options) *Findings { return &Findings{o: o, wake: desired.NewWake()} }

type serverOf struct {
	service string
	id      uint16
}

// SetHealth has the health of a service's servers written down.
func (f *Findings) SetHealth(service string, found fleet.Unhealthy) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.unwell == nil {
		f.unwell = map[string]fleet.Unhealthy{}
	}
	f.unwell[service] = fleet.Unhealthy{Down: slices.Clone(found.Down), Kept: slices.Clone(found.Kept), Cut: slices.Clone(found.Cut)}
	f.wake.Call()
}

// EndDrain has a server switched off whose drain has ended.
func (f *Findings) EndDrain(service string, id uint16) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.ended == nil {
		f.ended = map[serverOf]bool{}
	}
	f.ended[serverOf{service, id}] = true
	f.wake.Call()
}

func (f *Findings) take() (unwell map[string]fleet.Unhealthy, ended map[serverOf]bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	unwell, ended = f.unwell, f.ended
	f.unwell, f.ended = nil, nil
	return unwell, ended
}

// Run stores findings until ctx ends.
func (f *Findings) Run(ctx context.Context) {
	said := ""
	var again <-chan time.Time // after what failed: it may not be asked for again
	for {
		select {
		case <-f.wake:
		case <-again:
			again = nil
			f.o.Writing(true)
			continue
		case <-ctx.Done():
			return
		}
		unwell, ended := f.take()
		err := f.store(ctx, unwell, ended)
		f.o.Writing(err == nil)
		if err == nil || ctx.Err() != nil {
			said, again = "", nil
			continue
		}
		again = time.After(retryAfter)
		if text := err.Error(); text != said {
			said = text
			f.o.Log.Error("results of health checks cannot be stored: load balancers that hear no other controller judge servers themselves", "error", err)
		}
	}
}

// retryAfter is how long a controller that could not store results of checks counts as one that judges nobody.
const retryAfter = 10 * time.Second

func (f *Findings) store(ctx context.Context, unwell map[string]fleet.Unhealthy, ended map[serverOf]bool) error {
	ctx, cancel := context.WithTimeout(ctx, desired.WriteTimeout)
	defer cancel()
	ctx = api.WithCaller(ctx, api.Caller{Name: f.o.Name, Role: string(pki.Controller)})
	before := f.o.Mirror.Now()
	if len(unwell) > 0 {
		if err := f.o.Editor.SetHealth(ctx, unwell); err != nil {
			return err
		}
		f.logHealth(before, unwell)
	}
	for server := range ended {
		if err := f.o.Editor.SwitchOff(ctx, server.service, server.id); err != nil {
			return err
		}
	}
	return nil
}

// logHealth says who has fallen and who is back, and why.
func (f *Findings) logHealth(before *documents.Snapshot, unwell map[string]fleet.Unhealthy) {
	for _, name := range slices.Sorted(maps.Keys(unwell)) {
		was, is := &fleet.Unhealthy{}, unwell[name]
		if before != nil && before.Health[name] != nil {
			was = before.Health[name]
		}
		for _, s := range f.o.Servers(name) {
			id := s.Server.ID
			fell, cut, kept := slices.Contains(is.Down, id), slices.Contains(is.Cut, id), slices.Contains(is.Kept, id) && !slices.Contains(was.Kept, id)
			switch {
			case name == model.SecondTierName && fell && !slices.Contains(was.Down, id):
				f.o.Log.Warn("node of the second tier unhealthy: its packets go to the others", "node", s.Server.Name, "reason", s.HealthDetail)
			case kept:
				f.o.Log.Warn("server unhealthy, and gets new connections all the same: no server is healthy", "service", name, "server", s.Server.Name, "reason", s.HealthDetail)
			case name == model.SecondTierName && !fell && slices.Contains(was.Down, id):
				f.o.Log.Info("node of the second tier gets packets again", "node", s.Server.Name, "health", s.Health)
			case cut && !slices.Contains(was.Cut, id):
				f.o.Log.Warn("server unhealthy for too long: its connections are cut", "service", name, "server", s.Server.Name)
			case fell && !slices.Contains(was.Down, id):
				f.o.Log.Warn("server unhealthy: no new connections", "service", name, "server", s.Server.Name, "reason", s.HealthDetail)
			case !fell && slices.Contains(was.Down, id) && !s.Removed:
				f.o.Log.Info("server gets new connections again", "service", name, "server", s.Server.Name, "health", s.Health)
			}
		}
	}
}

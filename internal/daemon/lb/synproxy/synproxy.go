// Package synproxy turns syn_proxy auto on and off, by the SYNs that this load balancer counts.
package synproxy

import (
	"context"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/periodic"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	period = 250 * time.Millisecond // of looking at the counters
	calm   = 5 * time.Second        // with less than half of the limit, until it is turned off
)

// Guard looks at the SYNs of services with syn_proxy auto.
type Guard struct {
	tables *dataplane.Tables
	log    *slog.Logger

	seen map[string]*seen // by service
	on   atomic.Pointer[map[string]time.Time]
}

// New makes one that goes on with what an earlier process has found.
func New(tables *dataplane.Tables, log *slog.Logger) *Guard {
	g := &Guard{tables: tables, log: log, seen: map[string]*seen{}}
	g.on.Store(new(map[string]time.Time))
	return g
}

// Run looks until ctx ends.
func (g *Guard) Run(ctx context.Context) { periodic.Every(ctx, period, g.look) }

// On are the services with syn_proxy auto that is on, and since when: since this process began where an earlier one turned it on.
func (g *Guard) On() map[string]time.Time {
	return *g.on.Load()
}

func (g *Guard) look(at time.Time) {
	now := g.tables.Now()
	taking, on := now.Taking(), map[string]time.Time{}
	maps.DeleteFunc(g.seen, func(name string, _ *seen) bool {
		s := now.Running.Service(name)
		return s == nil || s.SYNProxy != model.SYNProxyAuto
	})
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		if s.SYNProxy != model.SYNProxyAuto {
			continue
		}
		var count counts
		var err error
		g.tables.Hold(func(now *dataplane.Snapshot) { count.sent, count.answered, err = now.SYNs(s.Name) })
		if err != nil {
			g.log.Error("SYNs not counted", "service", s.Name, "error", err)
			continue
		}
		known := g.seen[s.Name]
		if known == nil {
			known = &seen{counts: count, at: at, on: now.Flooded[s.Name], since: at, busy: at}
			g.seen[s.Name] = known
		}
		rate := known.rate(count, at)
		limit := float64(s.SYNLimit) * float64(max(taking[s.Name].New, 1))
		if flooded := known.judge(rate, limit, at); flooded != now.Flooded[s.Name] {
			g.turn(s.Name, flooded, rate, limit)
		}
		if known.on {
			on[s.Name] = known.since
		}
	}
	g.on.Store(&on)
}

// turn carries out what was judged. What fails is tried again.
func (g *Guard) turn(service string, on bool, rate, limit float64) {
	if err := g.tables.SetFlooded(service, on); err != nil {
		g.log.Error("syn_proxy not turned on or off", "service", service, "on", on, "error", err)
		return
	}
	if on {
		g.log.Warn("SYNs are above the limit: syn_proxy answers them", "service", service, "per second", int64(rate), "limit", int64(limit))
	} else {
		g.log.Info("SYNs are below half of the limit: syn_proxy is off", "service", service, "per second", int64(rate), "limit", int64(limit))
	}
}

// counts are SYNs of a service: that servers got, and that were answered.
type counts struct{ sent, answered uint64 }

// seen is what is known of a service.
type seen struct {
	counts
	at    time.Time // of counts
	on    bool
	since time.Time // it is on, or off
	busy  time.Time // when there were last more than half of the limit
	last  float64   // rate
}

// rate is that of SYNs a second since the last counts. While they are answered, what servers get are connections that begin by them: the larger one is
// the number of SYNs. Counters may have been reset.
func (s *seen) rate(count counts, at time.Time) float64 {
	elapsed := at.Sub(s.at)
	if elapsed < period/2 {
		return s.last // a tick that was late
	}
	grown := max(grownBy(s.sent, count.sent), grownBy(s.answered, count.answered))
	s.counts, s.at, s.last = count, at, float64(grown)/elapsed.Seconds()
	return s.last
}

func grownBy(before, after uint64) uint64 {
	if after < before {
		return 0
	}
	return after - before
}

// judge reports whether SYNs are to be answered.
func (s *seen) judge(rate, limit float64, at time.Time) bool {
	if rate > limit/2 {
		s.busy = at
	}
	on := rate > limit || s.on && at.Sub(s.busy) < calm
	if on != s.on {
		s.on, s.since = on, at
	}
	return on
}

// Without a controller that judges servers, a load balancer judges them by its own checks.
package lb

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/lb/decider"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/machine/alone"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
)

// standIn is what a load balancer by controllers needs to judge in their place.
type standIn struct {
	machine alone.Machine
	// unhealthy is who is unhealthy as controllers said last. The state says what counts: what this load balancer has found while it judges.
	unhealthy map[string]fleet.Unhealthy
	// current: a controller has said it on a stream that stands, or that stood without a gap until one that stands.
	current bool
	end     func() // nil: controllers judge
}

// judges is what judges servers in this process; nil: controllers do.
func (p *parts) judges() *decider.Local {
	if p.local != nil {
		return p.local
	}
	return p.alone.Load()
}

// resumeAlone goes on with what an earlier process knew.
func (c changing) resumeAlone(saved *savedState) {
	c.standIn.unhealthy = saved.Unhealthy
	if saved.Alone {
		c.standIn.machine.Resume(time.Now())
	}
}

// lookAlone begins to judge when no controller does, and hands back to controllers that have seen what this load balancer sees. It is to
// be called once a second.
func (c changing) lookAlone(ctx context.Context, running *sync.WaitGroup, now time.Time) {
	if c.controllers == nil || !c.tables.Now().Followed {
		return
	}
	s := &c.standIn
	judges := s.machine.Look(now, s.current && c.controllers.Judged(now), sameVerdicts(s.unhealthy, c.state.Unhealthy))
	switch {
	case judges && s.end == nil:
		c.beginAlone(ctx, running)
	case !judges && s.end != nil:
		c.endAlone()
	}
}

func (c changing) beginAlone(ctx context.Context, running *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(ctx)
	var local *decider.Local
	local = decider.NewLocal(decider.Options{JudgeOnly: true, Log: c.log, Unhealthy: func(found map[string]fleet.Unhealthy) {
		c.onUnhealthyAlone(local, found)
	}})
	local.Follow(c.tables.Now())
	c.alone.Store(local)
	running.Go(func() { local.Run(ctx) })
	c.standIn.end = cancel
	c.checks.WantAll(true)
	c.checks.Forget(c.controllers.Connected()) // they need not say again what they want
	c.checks.Follow(c.tables)
	c.checks.Repeat()
	c.note(func(o *outcome) { o.alone, _ = c.standIn.machine.Judges() })
	c.log.Warn("no controller judges servers: this load balancer does, by its own checks")
	c.save()
}

// endAlone lets the controllers' word count again.
func (c changing) endAlone() {
	before := c.alone.Swap(nil)
	c.checks.WantAll(false)
	if err := c.reconcile(&desired.State{Desired: c.state.Desired, Unhealthy: c.standIn.unhealthy, Self: c.state.Self}); err != nil {
		c.alone.Store(before) // the next look tries again
		c.checks.WantAll(true)
		c.log.Error("health of servers as controllers see it not applied: this load balancer goes on judging", "error", err)
		return
	}
	c.standIn.end()
	c.standIn.end = nil
	c.note(func(o *outcome) { o.alone = time.Time{} })
	c.save()
	c.log.Info("controllers judge servers again")
}

// onUnhealthyAlone is onUnhealthy while this load balancer judges.
func (cs *changes) onUnhealthyAlone(local *decider.Local, found map[string]fleet.Unhealthy) {
	cs.change(func(c changing) error {
		if c.alone.Load() != local {
			return nil // controllers judge again
		}
		maps.DeleteFunc(found, func(service string, _ fleet.Unhealthy) bool {
			s := c.state.Running.Service(service)
			if service == model.SecondTierName {
				s = c.state.SecondTier()
			}
			return s == nil || s.Health.Check == model.CheckNone
		})
		return c.applyUnhealthy(found)
	})
}

// counting is who is unhealthy where controllers have reported that: what this load balancer has found counts while it judges.
func (c changing) counting(reported map[string]fleet.Unhealthy, running *model.Fleet) map[string]fleet.Unhealthy {
	if c.alone.Load() == nil {
		return reported
	}
	found := maps.Clone(c.state.Unhealthy)
	maps.DeleteFunc(found, func(service string, _ fleet.Unhealthy) bool {
		return service != model.SecondTierName && running.Service(service) == nil
	})
	return found
}

// sameVerdicts reports whether the same servers are unhealthy, and get new connections all the same.
func sameVerdicts(a, b map[string]fleet.Unhealthy) bool {
	for _, names := range []map[string]fleet.Unhealthy{a, b} {
		for service := range names {
			if !slices.Equal(a[service].Down, b[service].Down) || !slices.Equal(a[service].Kept, b[service].Kept) {
				return false
			}
		}
	}
	return true
}

// onLeft takes note that a controller's stream has ended. Checks that the last one wanted go on: this load balancer may have to judge by them.
func (r remote) onLeft(controller string) {
	r.change(func(c changing) error {
		if others := c.controllers.Connected(); len(others) > 0 {
			c.checks.Forget(others)
		} else {
			c.standIn.current = false
		}
		return nil
	})
}

const (
	judgedAlone = "by this load balancer's own checks"
	aloneSince  = "no controller judges servers: this load balancer does, by its own checks, since "
)

// judgedHere marks statuses of a service's servers by what this process has found, if it judges in place of controllers.
func (p *parts) judgedHere(service string, list []*ballastv1.ServerStatus) {
	local := p.alone.Load()
	if local == nil {
		return
	}
	for _, found := range local.Servers(service) {
		at := slices.IndexFunc(list, func(s *ballastv1.ServerStatus) bool {
			return s.Service == service && s.Server.Id == uint32(found.Server.ID)
		})
		if at < 0 || list[at].Health == "unchecked" {
			continue
		}
		list[at].Health, list[at].HealthDetail = found.Health, judgedAlone
		if found.HealthDetail != "" {
			list[at].HealthDetail += ": " + found.HealthDetail
		}
	}
}

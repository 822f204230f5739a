// Servers that begin to take new connections get a share that grows (slow_start).
package dataplane

import (
	"context"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/slowstart"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/machine/starting"
)

// starts are the servers of a service that start, as the tables have them.
type starts struct {
	machine starting.Service
	parts   slowstart.Parts
	until   time.Time // when they are other ones; zero: never
}

// startsOf are those of a state that the tables do not follow yet. Its caller holds mutex.
func (t *Tables) startsOf(state *desired.State, at time.Time) map[string]starts {
	next := map[string]starts{}
	for i := range state.Running.Services {
		s := &state.Running.Services[i]
		if s.SlowStart == 0 || state.SendsToNodes(s) {
			continue
		}
		known := starts{machine: t.starts[s.Name].machine}
		known.machine.Follow(at, s, state.DownOf(s.Name))
		next[s.Name] = known.at(at)
	}
	return next
}

// at is how it is at a time.
func (s starts) at(at time.Time) starts {
	parts, again := s.machine.Parts(at)
	if s.parts, s.until = parts, (time.Time{}); again > 0 {
		s.until = at.Add(again)
	}
	return s
}

// Start lets the shares of servers that start grow until ctx ends.
func (t *Tables) Start(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.begun:
		case <-timer.C:
		}
		if next := t.grow(time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// grow gives servers what they have by now, and returns when there is more; zero: nobody starts.
func (t *Tables) grow(at time.Time) (next time.Time) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for service, known := range t.starts {
		if !known.until.IsZero() && !at.Before(known.until) {
			known = known.at(at)
			t.starts[service] = known
			t.reweigh(service)
		}
		if until := known.until; !until.IsZero() && (next.IsZero() || until.Before(next)) {
			next = until
		}
	}
	return next
}

// A Start is how far a server has come that starts.
type Start struct {
	Tenths uint8     // of its weight
	Whole  time.Time // when it has all of it
}

// Starting are the servers that start, by service and id, as the tables have them.
func (t *Tables) Starting() map[string]map[uint16]Start {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	all := map[string]map[uint16]Start{}
	for service, known := range t.starts {
		if len(known.parts) == 0 {
			continue
		}
		all[service] = map[uint16]Start{}
		for id, part := range known.parts {
			all[service][id] = Start{part.Tenths, known.machine.Whole(id)}
		}
	}
	return all
}

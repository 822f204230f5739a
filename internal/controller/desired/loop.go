package desired

import (
	"context"
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/controller/documents"
)

// Wake has somebody look again. Any number of calls before they do are one.
type Wake chan struct{}

// NewWake returns one that nobody has called.
func NewWake() Wake { return make(Wake, 1) }

// Call wakes whoever receives from it.
func (w Wake) Call() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// Loop is work that goes by the state of the store.
type Loop struct {
	Wake   Wake                          // nil: the state and Period alone have it take a step
	Period time.Duration                 // between two steps, at most
	Tick   func(now *documents.Snapshot) // if given: called with the state when Period has passed
	Step   func(context.Context, *documents.Snapshot) error
	Failed func(error) // called with the error of a step that is another one than that of the step before
}

// Run takes steps until ctx ends, from the first state on.
func (l Loop) Run(ctx context.Context, m *Mirror) {
	tick := time.NewTicker(l.Period)
	defer tick.Stop()
	said := ""
	for {
		now, changed := m.Next()
		if now != nil {
			err := l.Step(ctx, now)
			if said != fmt.Sprint(err) && err != nil && ctx.Err() == nil {
				l.Failed(err)
			}
			said = fmt.Sprint(err)
		}
		select {
		case <-changed:
		case <-l.Wake:
		case <-tick.C:
			if now != nil && l.Tick != nil {
				l.Tick(now)
			}
		case <-ctx.Done():
			return
		}
	}
}

// What happens in a trial: events one after the other, and waiting for its traffic in between.
package world

import (
	"context"
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/script"
)

// Event does one thing to the network and records when it happened and how long it took.
func (t *Trial) Event(what string, do func()) {
	begin := time.Now()
	t.Progress("%s: %5.1f s: %s", t.Setup.Name, begin.Sub(t.started).Seconds(), what)
	script.Checkf(script.Try(do), "%s", what)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.outcome.Events = append(t.outcome.Events, Event{
		What: what, At: Round(begin.Sub(t.started)), Seconds: Round(time.Since(begin)),
	})
}

// Change is an event that edits the fleet and waits until everyone runs by it.
func (t *Trial) Change(what string, edit func()) {
	t.Event(what, func() {
		edit()
		t.Apply()
	})
}

// Until waits until the progress of a load satisfies the condition.
func (t *Trial) Until(running *Load, within time.Duration, what string, condition func(traffic.Progress) bool) {
	Await(t.Context, within, what, func() error {
		now := running.Now()
		if condition(now) {
			return nil
		}
		if err := running.Died(); err != nil {
			return StopWaiting(err)
		}
		return fmt.Errorf("%d connections attempted, %d open", now.Attempted, now.Open)
	})
}

// UntilEmpty waits until no client has an open connection to the servers.
func (t *Trial) UntilEmpty(within time.Duration, servers ...int) {
	Await(t.Context, within, fmt.Sprintf("no connection to servers %v is open", servers), func() error {
		for _, i := range servers {
			for _, running := range t.Loads {
				if open := running.Now().OpenByServer[ServerName(i)]; open != 0 {
					return fmt.Errorf("%s has %d", ServerName(i), open)
				}
			}
		}
		return nil
	})
}

// Busy waits until as many connections were attempted since the call.
func (t *Trial) Busy(running *Load, connections int) {
	before := running.Now().Attempted
	t.Until(running, 30*time.Second, "more connections were attempted",
		func(p traffic.Progress) bool { return p.Attempted >= before+connections })
}

// Step is one event of a series, followed by as many connections before the next.
type Step struct {
	What string
	Do   func()
}

// Series does events one after the other; between them clients open some connections.
func (t *Trial) Series(running *Load, steps ...Step) {
	const between = 40
	for _, one := range steps {
		t.Event(one.What, one.Do)
		t.Busy(running, between)
	}
}

// AtTime is an event of a series whose times are part of the experiment.
func (t *Trial) AtTime(when time.Time, what string, do func()) {
	timer := time.NewTimer(time.Until(when))
	defer timer.Stop()
	select {
	case <-timer.C:
		t.Event(what, do)
		return
	case <-t.Context.Done():
		script.Check(context.Cause(t.Context))
	}
}

package fleet

import (
	"slices"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

func TestWhatWasSeenOfARemovedServerIsRemembered(t *testing.T) {
	n := started(t, 1, 2)
	edit(t, n, fleet(2), start)
	written := n.Removed
	timing := Timing{Linger: time.Hour, Quarantine: time.Hour}
	for _, minute := range []int{30, 80, 89} {
		n.Removed = Remember(written, n.Removed)
		if n.Age(start.Add(time.Duration(minute)*time.Minute), timing, func(string, uint16) uint64 { return 5 }) {
			t.Fatalf("forgotten after %d minutes", minute)
		}
	}
	n.Removed = Remember(written, n.Removed)
	if !n.Age(start.Add(151*time.Minute), timing, func(string, uint16) uint64 { return 5 }) {
		t.Error("never forgotten")
	}
}

// What another process wrote down, or this one before it was restarted, is by a clock that may have been set since.
//
// Promise: When clocks differ or are set, drain deadlines are off by the difference and nothing else; a removed
// server is forgotten only after a day of silence that one process has watched.
func TestOnlyTimeThatThisProcessHasWatchedMakesARemovedServerOld(t *testing.T) {
	timing := Timing{Linger: time.Hour, Quarantine: time.Hour}
	silent := func(string, uint16) uint64 { return 0 }
	now := time.Now()
	look := func(written, looked []Removed) []Removed {
		n := &Desired{Removed: Remember(written, looked)}
		n.Age(now, timing, silent)
		return n.Removed
	}
	written := []Removed{{Service: "web", Server: model.Server{ID: 1}, LastSeen: now.Add(-48 * time.Hour)},
		{Service: "web", Server: model.Server{ID: 2}, LastSeen: now.Add(-48 * time.Hour), Forgotten: true}}
	looked := look(written, nil)
	if len(looked) != 2 || looked[0].Forgotten {
		t.Fatalf("a first look left %+v", looked)
	}

	// The time of day is not what it was written by; the clock of this process goes on.
	written = slices.Clone(looked)
	for i := range written {
		written[i] = Removed{Service: "web", Server: written[i].Server, LastSeen: written[i].LastSeen.Round(0), Forgotten: written[i].Forgotten}
	}
	for i, r := range Remember(written, looked) {
		if r.LastSeen != looked[i].LastSeen {
			t.Errorf("id %d: last seen %v, by the time of day, not %v", r.Server.ID, r.LastSeen, looked[i].LastSeen)
		}
	}
	now = now.Add(59 * time.Minute)
	if looked = look(written, looked); len(looked) != 2 || looked[0].Forgotten {
		t.Fatalf("after 59 minutes: %+v", looked)
	}
	written[0].LastSeen = now.Add(-time.Minute).Round(0) // another process saw a packet
	now = now.Add(2 * time.Minute)
	if looked = look(written, looked); len(looked) != 1 || looked[0].Forgotten {
		t.Fatalf("after 61 minutes: %+v", looked)
	}
	now = now.Add(61 * time.Minute)
	if looked = look(written[:1], looked); len(looked) != 1 || !looked[0].Forgotten {
		t.Fatalf("after an hour of silence: %+v", looked)
	}
}

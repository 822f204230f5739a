// Removed servers, until they are forgotten.
package desired

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/store"
)

// Ager forgets removed servers.
type Ager struct {
	writer *Writer
	timing fleet.Timing

	mutex   sync.Mutex
	removed []fleet.Removed // with what was last seen of them
}

// NewAger returns one that writes by w.
func NewAger(w *Writer, timing fleet.Timing) *Ager { return &Ager{writer: w, timing: timing} }

// Age forgets removed servers that nobody has spoken to for long, of the services that are ours. activity changes with
// every sign of life of a server. What was last seen when is written down seldom: a controller that takes over counts
// from there.
func (a *Ager) Age(
	ctx context.Context,
	now time.Time,
	ours func(service string) bool,
	activity func(service string, id uint16) uint64,
) error {
	_, err := a.writer.Commit(ctx, &documents.Change{}, func(current *documents.Snapshot) ([]store.Document, error) {
		n := current.Node()
		written := n.Removed
		foreign := func(r fleet.Removed) bool { return !ours(r.Service) }
		a.mutex.Lock()
		looked := fleet.Remember(written, a.removed)
		a.mutex.Unlock()
		n.Removed = slices.DeleteFunc(slices.Clone(looked), foreign)
		n.Age(now, a.timing, activity)
		a.mutex.Lock()
		a.removed = append(slices.DeleteFunc(looked, func(r fleet.Removed) bool { return !foreign(r) }), n.Removed...)
		a.mutex.Unlock()
		others := slices.DeleteFunc(slices.Clone(written), func(r fleet.Removed) bool { return ours(r.Service) })
		n.Removed = append(others, a.worthWriting(current, slices.Clone(n.Removed))...)
		return current.Changes(n)
	})
	return err
}

// worthWriting leaves small changes of LastSeen out.
func (a *Ager) worthWriting(current *documents.Snapshot, removed []fleet.Removed) []fleet.Removed {
	const part = 24 // of Linger
	for i := range removed {
		r := &removed[i]
		for _, old := range current.Services[r.Service].Removed {
			if old.Server.ID == r.Server.ID && old.Since.Equal(r.Since) &&
				r.LastSeen.Sub(old.LastSeen) < a.timing.Linger/part &&
				r.Forgotten == old.Forgotten {
				*r = old
			}
		}
	}
	return removed
}

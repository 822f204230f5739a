// What nodes are told of the state, and what they have to be told besides.
package desired

import (
	"context"
	"maps"
	"slices"

	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/store"
)

// unshown is what happened since the last view that nodes were told. Another controller may have told them of it.
type unshown struct {
	revision uint64          // of that view; 0: there was none
	services map[string]bool // that had versions since that no view has shown
	whole    bool            // there may be more of these than services says
}

// all takes note that anything may have happened.
func (u *unshown) all() { u.whole = u.revision != 0 }

// replaced takes note of what documents take the place of that no view has shown.
func (u *unshown) replaced(before *documents.Snapshot, changed []store.Document) {
	if u.revision == 0 {
		return
	}
	for _, document := range changed {
		if name := documents.ServiceOf(document.Key); name != "" && before.ChangedAt[name] > u.revision {
			u.services[name] = true
		}
		u.whole = u.whole ||
			(document.Key == documents.KeysKey || document.Key == documents.TicketsKey) &&
				before.Revisions[document.Key] > u.revision
	}
}

// show says that nodes are told the view of a revision, and returns what they have to be told besides what differs from
// the view before: services that have changed, perhaps there and back, through versions that no view has shown; whole:
// everything.
func (u *unshown) show(revision uint64) (skipped []string, whole bool) {
	skipped, whole = slices.Sorted(maps.Keys(u.services)), u.whole
	*u = unshown{revision: revision, services: map[string]bool{}}
	return skipped, whole
}

// View returns the desired state as nodes are told it, nil before it is known, and what is closed when there may be
// another.
func (m *Mirror) View() (view *engine.View, changed <-chan struct{}) {
	m.mutex.Lock()
	sound, changed := m.sound, m.changed
	m.mutex.Unlock()
	if sound == nil {
		return nil, changed
	}
	return sound.View(), changed
}

// show is unshown.show under the lock.
func (m *Mirror) show(revision uint64) (skipped []string, whole bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.unshown.show(revision)
}

// Publish gives every new view to those who work with it, until ctx ends.
func (m *Mirror) Publish(ctx context.Context, publish func(*engine.View)) {
	for {
		view, changed := m.View()
		if view != nil {
			if view.Skipped, view.Whole = m.show(view.Revision); view.Whole {
				view.CompareAll() // revisions may mean other things now
			}
			publish(view)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Package desired is the desired state in a store: what is known of it here, and how it is changed.
package desired

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store"
)

// Implementation constants.
const (
	reloadPause = 200 * time.Millisecond
	catchUp     = 5 * time.Second // that a change waits to be seen here
	// confirmTime bounds how long a reader waits for the store before it is told what is known here.
	confirmTime = 2 * time.Second
)

// Mirror is what is known here of the store, which all controllers change. It is safe for concurrent use. Before Follow
// has loaded it, nothing is known.
type Mirror struct {
	store store.Store
	log   *slog.Logger

	mutex    sync.Mutex
	current  *documents.Snapshot // what the store has; nil: not loaded yet
	sound    *documents.Snapshot // the newest whose fleet makes sense, which is what nodes are told; nil: there was none
	broken   error               // what is wrong with that of current; nil: nothing
	changed  chan struct{}       // closed by the next change of current
	unshown  unshown
	restored bool // the store was restored from a copy, and the fleet has not been changed since
}

// NewMirror returns a store's mirror, as yet empty.
func NewMirror(s store.Store, log *slog.Logger) *Mirror {
	return &Mirror{store: s, log: log, changed: make(chan struct{})}
}

// Follow keeps up with the store until ctx ends. What cannot be reached, or makes no sense, is tried again.
func (m *Mirror) Follow(ctx context.Context) {
	for said := ""; ctx.Err() == nil; {
		loaded, revision, err := m.store.Load(ctx)
		if err == nil {
			err = m.load(loaded, revision)
		}
		if err == nil {
			if said != "" {
				said = ""
				m.log.Info("the store can be read again")
			}
			err = m.watch(ctx, revision)
		}
		if err != nil && err.Error() != said && ctx.Err() == nil {
			said = err.Error()
			m.log.Error("the store cannot be read, the last state goes on", "error", err)
		}
		select {
		case <-time.After(reloadPause):
		case <-ctx.Done():
		}
	}
}

func (m *Mirror) watch(ctx context.Context, after uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for batch := range m.store.Watch(ctx, after) {
		if err := m.apply(batch); err != nil {
			return err
		}
	}
	return nil
}

// load takes all documents, or none: nodes would take a service that cannot be read here for one that is gone.
func (m *Mirror) load(loaded []store.Document, revision uint64) error {
	next := documents.New()
	next.Revision = revision
	for _, document := range loaded {
		if err := next.Take(document, document.Revision); err != nil {
			return err
		}
	}
	before := m.Now()
	if before.Equal(next) {
		return nil
	}
	restored := before != nil && next.Rewrites(before)
	if restored {
		m.log.Error(RestoredProblem, "revision", revision, "before", before.Revision)
	}
	m.become(next, true, func() {
		m.unshown.all()
		m.restored = m.restored || restored
	})
	return nil
}

func (m *Mirror) apply(batch store.Batch) error {
	before := m.Now()
	next := before.Clone()
	next.Revision = batch.Revision
	for _, document := range batch.Documents {
		if err := next.Take(document, batch.Revision); err != nil {
			return err
		}
	}
	fleet := slices.ContainsFunc(batch.Documents, func(document store.Document) bool { return documents.OfFleet(document.Key) })
	m.become(next, fleet, func() { m.unshown.replaced(before, batch.Documents) })
	return nil
}

// become takes note of what the store has. Nodes are told only what makes sense as a whole: a fleet that contradicts
// itself, as an older version or a hand may have written it, is none that they could take.
//
// note takes note, under the lock, of what nodes have to be told besides: no view may come in between.
func (m *Mirror) become(next *documents.Snapshot, fleet bool, note func()) {
	m.mutex.Lock()
	broken := m.broken
	m.mutex.Unlock()
	if fleet {
		wanted := next.Fleet()
		broken = wanted.Validate()
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	switch {
	case broken == nil:
		if m.broken != nil {
			m.log.Info("the fleet in the store is consistent again: nodes are sent it", "revision", next.Revision)
		}
		m.sound = next
	case m.broken == nil || m.broken.Error() != broken.Error():
		m.log.Error("the fleet in the store contradicts itself: nodes are sent nothing new until it is changed", "revision", next.Revision, "error", broken)
	}
	m.restored = m.restored && next.Revisions[documents.HistoryKey] == m.current.Revisions[documents.HistoryKey]
	note()
	m.current, m.broken = next, broken
	close(m.changed)
	m.changed = make(chan struct{})
}

// Unknown is why there is no state yet that nodes can be told, empty: there is one.
func (m *Mirror) Unknown() string {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	switch {
	case m.sound != nil:
		return ""
	case m.broken != nil:
		return "the fleet in the store contradicts itself: " + m.broken.Error()
	}
	return "waiting for the first complete state of the store"
}

// RestoredProblem is what people are told of a store that was restored.
const RestoredProblem = "the store was restored from a copy: what was changed since the copy was made is undone: `apply` the present file"

// Restored reports whether the store was restored from a copy, and the fleet has not been changed since.
func (m *Mirror) Restored() bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.restored
}

// Broken tells what is wrong with the fleet in the store, nil: nothing.
func (m *Mirror) Broken() error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.broken
}

// Now returns what the store has; nil: it is not known yet.
func (m *Mirror) Now() *documents.Snapshot {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.current
}

// Next returns what Now does, and what is closed when it changes.
func (m *Mirror) Next() (*documents.Snapshot, <-chan struct{}) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.current, m.changed
}

// Known returns what Next does. A controller that has just begun first looks at the store: that is waited for, for a
// moment.
func (m *Mirror) Known(ctx context.Context) (*documents.Snapshot, <-chan struct{}, error) {
	late := time.After(confirmTime)
	for {
		now, changed := m.Next()
		if now != nil {
			return now, changed, nil
		}
		select {
		case <-changed:
		case <-late:
			return nil, nil, ErrUnknown
		case <-ctx.Done():
			return nil, nil, ErrUnknown
		}
	}
}

// ErrUnknown is what clients are told before the store has been read.
var ErrUnknown = connect.NewError(connect.CodeUnavailable, errors.New("this controller has not read the desired state yet: ask another one, or see its log"))

// Fleet returns what is wanted now. The caller must not change it.
func (m *Mirror) Fleet() (fleet model.Fleet, revision uint64, err error) {
	current := m.Now()
	if current == nil {
		return fleet, 0, ErrUnknown
	}
	return current.Fleet(), current.Revision, nil
}

// Await returns when a revision is known here; it is done already, so it is no error if that takes long.
func (m *Mirror) Await(ctx context.Context, revision uint64) {
	late := time.After(catchUp)
	for {
		now, changed := m.Next()
		if now.Revision >= revision {
			return
		}
		select {
		case <-changed:
		case <-late:
			m.log.Warn("a change is in the store, but the watch has not delivered it in time", "revision", revision)
			return
		case <-ctx.Done():
			return
		}
	}
}

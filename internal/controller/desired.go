package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store"
)

// Implementation constants.
const (
	attempts    = 50               // of a change that others get in the way of
	queueTime   = 15 * time.Second // that a change waits for others through this controller
	catchUp     = 5 * time.Second  // that a change waits to be seen here
	reloadPause = 200 * time.Millisecond
)

// Desired is the desired state in a store: all controllers change it, and each follows what the others do. It is safe for concurrent
// use. Before Follow has loaded it, nothing is known and nothing can be changed.
type Desired struct {
	store  store.Store
	timing node.Timing
	log    *slog.Logger

	turn chan struct{} // of those who change the fleet through this controller: one at a time, in order

	mutex   sync.Mutex
	current *snapshot     // what the store has; nil: not loaded yet
	sound   *snapshot     // the newest whose fleet makes sense, which is what nodes are told; nil: there was none
	broken  error         // what is wrong with that of current; nil: nothing
	changed chan struct{} // closed by the next change of current
	aged    []node.Removed
	shown   uint64          // revision of the view that nodes were last told; 0: none
	skipped map[string]bool // services that had versions since that no view has shown
	whole   bool            // there may be more of these than skipped says

	restored bool // the store was restored from a copy, and the fleet has not been changed since
}

// NewDesired returns the state in a store, as yet unknown.
func NewDesired(s store.Store, timing node.Timing, log *slog.Logger) *Desired {
	return &Desired{store: s, timing: timing, log: log, changed: make(chan struct{}), turn: make(chan struct{}, 1)}
}

// Follow keeps up with the store until ctx ends. What cannot be reached, or makes no sense, is tried again.
func (d *Desired) Follow(ctx context.Context) {
	for said := ""; ctx.Err() == nil; {
		documents, revision, err := d.store.Load(ctx)
		if err == nil {
			err = d.load(documents, revision)
		}
		if err == nil {
			if said != "" {
				said = ""
				d.log.Info("the store can be read again")
			}
			err = d.watch(ctx, revision)
		}
		if err != nil && err.Error() != said && ctx.Err() == nil {
			said = err.Error()
			d.log.Error("the store cannot be read, the last state goes on", "error", err)
		}
		select {
		case <-time.After(reloadPause):
		case <-ctx.Done():
		}
	}
}

func (d *Desired) watch(ctx context.Context, after uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for batch := range d.store.Watch(ctx, after) {
		if err := d.apply(batch); err != nil {
			return err
		}
	}
	return nil
}

// load takes all documents, or none: nodes would take a service that cannot be read here for one that is gone.
func (d *Desired) load(documents []store.Document, revision uint64) error {
	next := newSnapshot()
	next.revision = revision
	for _, document := range documents {
		if err := next.take(document, document.Revision); err != nil {
			return err
		}
	}
	before := d.now()
	if before.equal(next) {
		return nil
	}
	restored := before != nil && next.rewrites(before)
	if restored {
		d.log.Error(storeRestored, "revision", revision, "before", before.revision)
	}
	d.become(next, true, func() {
		d.whole = d.shown != 0
		d.restored = d.restored || restored
	})
	return nil
}

func (d *Desired) apply(batch store.Batch) error {
	before := d.now()
	next := before.clone()
	next.revision = batch.Revision
	for _, document := range batch.Documents {
		if err := next.take(document, batch.Revision); err != nil {
			return err
		}
	}
	fleet := slices.ContainsFunc(batch.Documents, func(document store.Document) bool { return ofFleet(document.Key) })
	d.become(next, fleet, func() { d.noteSkipped(before, batch.Documents) })
	return nil
}

// noteSkipped takes note of what documents take the place of that no view has shown. Callers hold the lock.
func (d *Desired) noteSkipped(before *snapshot, documents []store.Document) {
	if d.shown == 0 {
		return
	}
	for _, document := range documents {
		if name := serviceOf(document.Key); name != "" && before.seen[name] > d.shown {
			d.skipped[name] = true
		}
		d.whole = d.whole || (document.Key == keysKey || document.Key == ticketsKey) && before.own[document.Key] > d.shown
	}
}

// show says that nodes are told the view of a revision, and returns what they have to be told besides what differs from the view before:
// services that have changed, perhaps there and back, through versions that no view has shown; whole: everything. Another
// controller may have told nodes of such a version.
func (d *Desired) show(revision uint64) (skipped []string, whole bool) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	skipped, whole = slices.Sorted(maps.Keys(d.skipped)), d.whole
	d.shown, d.skipped, d.whole = revision, map[string]bool{}, false
	return skipped, whole
}

// become takes note of what the store has. Nodes are told only what makes sense as a whole: a fleet that contradicts itself, as an older
// version or a hand may have written it, is none that they could take.
//
// note takes note, under the lock, of what nodes have to be told besides: no view may come in between.
func (d *Desired) become(next *snapshot, fleet bool, note func()) {
	d.mutex.Lock()
	broken := d.broken
	d.mutex.Unlock()
	if fleet {
		wanted := next.fleet()
		broken = wanted.Validate()
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	switch {
	case broken == nil:
		if d.broken != nil {
			d.log.Info("the fleet in the store is consistent again: nodes are sent it", "revision", next.revision)
		}
		d.sound = next
	case d.broken == nil || d.broken.Error() != broken.Error():
		d.log.Error("the fleet in the store contradicts itself: nodes are sent nothing new until it is changed", "revision", next.revision, "error", broken)
	}
	d.restored = d.restored && next.own[historyKey] == d.current.own[historyKey]
	note()
	d.current, d.broken = next, broken
	close(d.changed)
	d.changed = make(chan struct{})
}

// Unknown is why there is no state yet that nodes can be told, empty: there is one.
func (d *Desired) Unknown() string {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	switch {
	case d.sound != nil:
		return ""
	case d.broken != nil:
		return "the fleet in the store contradicts itself: " + d.broken.Error()
	}
	return "waiting for the first complete state of the store"
}

// storeRestored is for people.
const storeRestored = "the store was restored from a copy: what was changed since the copy was made is undone: `apply` the present file"

// Restored reports whether the store was restored from a copy, and the fleet has not been changed since.
func (d *Desired) Restored() bool {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.restored
}

// Broken tells what is wrong with the fleet in the store, nil: nothing.
func (d *Desired) Broken() error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.broken
}

func (d *Desired) now() *snapshot {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.current
}

// next returns the state and what is closed when it changes.
func (d *Desired) next() (*snapshot, <-chan struct{}) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.current, d.changed
}

// known returns what next does. A controller that has just begun first looks at the store: that is waited for, for a moment.
func (d *Desired) known(ctx context.Context) (*snapshot, <-chan struct{}, error) {
	late := time.After(confirmTime)
	for {
		now, changed := d.next()
		if now != nil {
			return now, changed, nil
		}
		select {
		case <-changed:
		case <-late:
			return nil, nil, errUnknown
		case <-ctx.Done():
			return nil, nil, errUnknown
		}
	}
}

// View returns the desired state as nodes are told it, nil before it is known, and what is closed when there may be another.
func (d *Desired) View() (view *engine.View, changed <-chan struct{}) {
	d.mutex.Lock()
	sound, changed := d.sound, d.changed
	d.mutex.Unlock()
	if sound == nil {
		return nil, changed
	}
	return sound.view(), changed
}

// errUnknown is what clients are told before the store has been read.
var errUnknown = connect.NewError(connect.CodeUnavailable, errors.New("this controller has not read the desired state yet: ask another one, or see its log"))

// Fleet returns what is wanted now. The caller must not change it.
func (d *Desired) Fleet() (fleet model.Fleet, revision uint64, err error) {
	current := d.now()
	if current == nil {
		return fleet, 0, errUnknown
	}
	return current.fleet(), current.revision, nil
}

// confirmTime bounds how long a reader waits for the store before it is told what is known here.
const confirmTime = 2 * time.Second

// Newest waits until the store has confirmed that there is nothing newer; see api.Desired.
func (d *Desired) Newest(ctx context.Context) (revision uint64, err error) {
	asked, cancel := context.WithTimeout(ctx, confirmTime)
	defer cancel()
	for {
		now, changed, err := d.known(asked)
		if err != nil {
			return 0, err
		}
		err = d.confirm(asked, now)
		if errors.Is(err, store.ErrConflict) {
			if err = pause(asked, changed); err == nil {
				continue
			}
		}
		if err != nil {
			err = &api.Unconfirmed{Why: fmt.Errorf("the store did not confirm it: %w", err)}
		}
		return now.revision, err
	}
}

// update commits what decide makes of the state as it is now, and waits until it is so here. Where others were faster it decides again.
// It is for what no fleet is made of, so for what is no part of a change.
func (d *Desired) update(ctx context.Context, decide func(*snapshot) ([]store.Document, error)) error {
	for range attempts {
		now, changed, err := d.known(ctx)
		if err != nil {
			return err
		}
		documents, err := decide(now)
		if err != nil || len(documents) == 0 {
			return err
		}
		revision, err := d.store.Commit(ctx, documents)
		if err == nil {
			d.await(ctx, revision)
			return nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
		if err := pause(ctx, changed); err != nil {
			return err
		}
	}
	return store.ErrConflict
}

// pause waits after a conflict until the state has changed here; it may have before we looked.
func pause(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
	case <-time.After(reloadPause):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// await returns when a revision is known here; it is done already, so it is no error if that takes long.
func (d *Desired) await(ctx context.Context, revision uint64) {
	late := time.After(catchUp)
	for {
		now, changed := d.next()
		if now.revision >= revision {
			return
		}
		select {
		case <-changed:
		case <-late:
			d.log.Warn("a change is in the store, but the watch has not delivered it in time", "revision", revision)
			return
		case <-ctx.Done():
			return
		}
	}
}

// SetHealth writes down who is unhealthy, of several services at once. Services that are gone are left out.
func (d *Desired) SetHealth(ctx context.Context, found map[string]node.Unhealthy) error {
	const documents = 2 // of each
	for names := range slices.Chunk(slices.Sorted(maps.Keys(found)), max(1, d.store.Limits().Documents/documents)) {
		err := d.update(ctx, func(now *snapshot) (documents []store.Document, err error) {
			for _, name := range names {
				changed, err := now.judged(name, found[name])
				if err != nil {
					return nil, err
				}
				documents = append(documents, changed...)
			}
			return documents, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// judged returns what writes down who of a service is unhealthy, if that is news.
func (s *snapshot) judged(name string, health node.Unhealthy) ([]store.Document, error) {
	before := cmp.Or(s.health[name], &node.Unhealthy{})
	if !s.judges(name) || before.Equal(health) {
		return nil, nil
	}
	var value []byte // nobody is: no document
	if !health.None() {
		var err error
		if value, err = json.Marshal(health); err != nil {
			return nil, err
		}
	}
	key, of := healthPrefix+name, servicesPrefix+name
	if name == model.SecondTierName {
		of = nodesKey
	}
	return []store.Document{{Key: key, Value: value, Revision: s.own[key]}, {Key: of, Revision: s.own[of], Same: true}}, nil // of what is there still
}

// Age forgets removed servers that nobody has spoken to for long, of the services that are ours. activity changes with every sign of
// life of a server. What was last seen when is written down seldom: a controller that takes over counts from there.
func (d *Desired) Age(ctx context.Context, now time.Time, ours func(service string) bool, activity func(service string, id uint16) uint64) error {
	_, err := d.commit(ctx, &recordedChange{}, func(current *snapshot) ([]store.Document, error) {
		n := current.node()
		written := n.Removed
		foreign := func(r node.Removed) bool { return !ours(r.Service) }
		d.mutex.Lock()
		looked := node.Remember(written, d.aged)
		d.mutex.Unlock()
		n.Removed = slices.DeleteFunc(slices.Clone(looked), foreign)
		n.Age(now, d.timing, activity)
		d.mutex.Lock()
		d.aged = append(slices.DeleteFunc(looked, func(r node.Removed) bool { return ours(r.Service) }), n.Removed...)
		d.mutex.Unlock()
		others := slices.DeleteFunc(slices.Clone(written), func(r node.Removed) bool { return ours(r.Service) })
		n.Removed = append(others, d.worthWriting(current, slices.Clone(n.Removed))...)
		return current.changes(n)
	})
	return err
}

// worthWriting leaves small changes of LastSeen out.
func (d *Desired) worthWriting(current *snapshot, removed []node.Removed) []node.Removed {
	const part = 24 // of Linger
	for i := range removed {
		r := &removed[i]
		for _, old := range current.services[r.Service].Removed {
			if old.Server.ID == r.Server.ID && old.Since.Equal(r.Since) && r.LastSeen.Sub(old.LastSeen) < d.timing.Linger/part && r.Forgotten == old.Forgotten {
				*r = old
			}
		}
	}
	return removed
}

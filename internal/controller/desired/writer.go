// Changes of the store: each is made of one state of it, and carried out only if that is its state still.
package desired

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/store"
)

// Implementation constants.
const (
	attempts  = 50               // of a change that others get in the way of
	queueTime = 15 * time.Second // that a change waits for others through this controller
	// WriteTimeout bounds a write that a controller makes by itself.
	WriteTimeout = 5 * time.Second
)

// Writer changes a store. It is safe for concurrent use. Before its mirror has loaded the store nothing can be changed.
type Writer struct {
	mirror *Mirror
	store  store.Store
	log    *slog.Logger
	turn   chan struct{} // of those who change the fleet through this controller: one at a time, in order
}

// NewWriter returns a writer to the store of a mirror.
func NewWriter(m *Mirror) *Writer {
	return &Writer{mirror: m, store: m.store, log: m.log, turn: make(chan struct{}, 1)}
}

// Decision makes changed documents of a state of the store; none: there is nothing to do.
type Decision func(*documents.Snapshot) ([]store.Document, error)

// Commit carries out what decide makes of the fleet as it is now, and waits until it is so here. Where others were
// faster it decides again. What decide refuses, and that there is nothing to do, is told only if the state that it went
// by is the newest. record says who does what once decide has returned.
func (w *Writer) Commit(ctx context.Context, record *documents.Change, decide Decision) (revision uint64, err error) {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-time.After(queueTime):
		return 0, connect.NewError(connect.CodeUnavailable, fmt.Errorf("nothing was changed: other changes of the fleet have not ended for %v: try again", queueTime))
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	partly := false
	for range attempts {
		now, changed, err := w.mirror.Known(ctx)
		if err != nil {
			return 0, err
		}
		wanted, refused := decide(now)
		var steps [][]store.Document
		if refused == nil {
			steps, refused = documents.Steps(now, wanted, w.store.Limits())
		}
		if len(steps) == 0 {
			err = w.confirm(ctx, now)
			if err == nil {
				return now.Revision, noteSteps(refused, partly)
			}
		} else {
			record.ID = fmt.Sprintf("%016x", rand.Uint64())
			done := 0
			done, revision, err = w.carryOut(context.WithoutCancel(ctx), now, steps, *record)
			if done > 0 {
				w.mirror.Await(ctx, revision)
			}
			if partly = partly || done > 0; err == nil {
				return revision, nil
			}
		}
		if !errors.Is(err, store.ErrConflict) {
			return 0, noteSteps(failure(ctx, err), partly)
		}
		if err := pause(ctx, changed); err != nil {
			return 0, noteSteps(err, partly)
		}
	}
	return 0, noteSteps(fmt.Errorf("%w, %d times: try again", store.ErrConflict, attempts), partly)
}

// confirm returns store.ErrConflict if the fleet is not that of a snapshot any more.
func (w *Writer) confirm(ctx context.Context, now *documents.Snapshot) error {
	_, err := w.store.Commit(ctx, []store.Document{{Key: documents.HistoryKey, Revision: now.Revisions[documents.HistoryKey], Same: true}})
	return err
}

// carryOut commits one step after the other.
func (w *Writer) carryOut(ctx context.Context, now *documents.Snapshot, steps [][]store.Document, record documents.Change) (
	done int, revision uint64, err error,
) {
	history, guard := now.History, now.Revisions[documents.HistoryKey]
	for i, step := range steps {
		record.Step, record.Time = i, time.Now().UTC().Truncate(time.Second)
		undo, err := now.Undoing(&record, step)
		if err != nil {
			return done, revision, err
		}
		next := history.With(record, guard)
		value, err := json.Marshal(next)
		if err != nil {
			return done, revision, err
		}
		guarded := slices.Concat(step, undo, []store.Document{{Key: documents.HistoryKey, Value: value, Revision: guard}})
		if i == 0 {
			guarded = append(guarded, now.Outdated(&next)...)
		}
		at, err := w.store.Commit(ctx, guarded)
		if errors.Is(err, store.ErrConflict) && errors.Is(err, store.ErrUnknown) {
			at, err = w.settle(ctx, record, &history)
		}
		if err != nil {
			return done, revision, err
		}
		done, revision, guard, history = done+1, at, at, next
	}
	return done, revision, nil
}

// settle finds out whether a step was carried out that an attempt has not been answered for, and no other attempt can
// be any more.
func (w *Writer) settle(ctx context.Context, record documents.Change, before *documents.History) (revision uint64, err error) {
	for range attempts {
		now, changed := w.mirror.Next()
		if err := w.confirm(ctx, now); err == nil {
			switch done, known := now.History.Has(record.ID, record.Step, before); {
			case done:
				return now.Revisions[documents.HistoryKey], nil
			case known:
				return 0, store.ErrConflict
			}
			return 0, store.ErrUnknown
		} else if !errors.Is(err, store.ErrConflict) {
			return 0, fmt.Errorf("%w: %w", err, store.ErrUnknown)
		}
		if err := pause(ctx, changed); err != nil {
			return 0, fmt.Errorf("%w: %w", err, store.ErrUnknown)
		}
	}
	return 0, store.ErrUnknown
}

// failure is what clients are told of a store that does not do as it should.
func failure(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, store.ErrUnknown):
		return connect.NewError(connect.CodeUnknown, fmt.Errorf("%w: look with `ballast ctl history list` before you repeat it", err))
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return connect.NewError(connect.CodeUnavailable, fmt.Errorf("nothing was changed, and what this controller knows may be old: %w", err))
}

// noteSteps adds to an error that some steps were done.
func noteSteps(err error, partly bool) error {
	if err == nil || !partly {
		return err
	}
	return connect.NewError(connect.CodeUnknown, fmt.Errorf("a part was carried out, then: %w: look with `ballast ctl history list`, and repeat it", err))
}

// Record commits what decide makes of the state, and notes in the history and in the log who did what, if that is
// anything. A dry run only tells.
func (w *Writer) Record(
	ctx context.Context, dryRun bool, decide func(*documents.Snapshot) (changes []string, wanted []store.Document, err error),
) (changes []string, revision uint64, err error) {
	record := documents.ChangeBy(ctx)
	revision, err = w.Commit(ctx, record, func(now *documents.Snapshot) (wanted []store.Document, err error) {
		changes, wanted, err = decide(now)
		if record.Changes = changes; dryRun {
			return nil, err
		}
		return wanted, err
	})
	if err != nil {
		w.log.Debug("a change was refused", "by", record.By, "error", err)
		return nil, 0, err
	}
	if len(changes) > 0 && !dryRun {
		w.log.Info("changed", "by", record.By, "revision", revision, "changes", changes)
	}
	return changes, revision, nil
}

// Update commits what decide makes of the state as it is now, and waits until it is so here. Where others were faster
// it decides again. It is for what no fleet is made of, so for what is no part of a change.
func (w *Writer) Update(ctx context.Context, decide Decision) error {
	for range attempts {
		now, changed, err := w.mirror.Known(ctx)
		if err != nil {
			return err
		}
		wanted, err := decide(now)
		if err != nil || len(wanted) == 0 {
			return err
		}
		revision, err := w.store.Commit(ctx, wanted)
		if err == nil {
			w.mirror.Await(ctx, revision)
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

// Newest waits until the store has confirmed that there is nothing newer; see api.Desired.
func (w *Writer) Newest(ctx context.Context) (revision uint64, err error) {
	asked, cancel := context.WithTimeout(ctx, confirmTime)
	defer cancel()
	for {
		now, changed, err := w.mirror.Known(asked)
		if err != nil {
			return 0, err
		}
		err = w.confirm(asked, now)
		if errors.Is(err, store.ErrConflict) {
			if err = pause(asked, changed); err == nil {
				continue
			}
		}
		if err != nil {
			err = &api.Unconfirmed{Why: fmt.Errorf("the store did not confirm it: %w", err)}
		}
		return now.Revision, err
	}
}

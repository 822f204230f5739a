// Changes of the fleet: each is made of one state of the store, and carried out only if that is its state still.
package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store"
)

// Implementation constants of the history.
const (
	historyLength = 100
	historyBytes  = 64 << 10
	historyLines  = 20 // of one change
)

// historyDocument tells the last changes of the fleet. Every change compares it and writes it, so no two are made of the same state:
// each may make sense by itself where both together do not.
type historyDocument struct {
	Last    string           `json:"last"` // id and step of the last change
	Changes []recordedChange `json:"changes"`
}

// recordedChange is what somebody did.
type recordedChange struct {
	ID      string     `json:"id"`             // of this attempt
	Step    int        `json:"step,omitempty"` // that it has come to
	Time    time.Time  `json:"time"`
	By      api.Caller `json:"by"`
	Changes []string   `json:"changes"`
}

// with returns the history after a step of a change. Who changes nothing that people would look for is not listed.
func (h *historyDocument) with(c recordedChange) historyDocument {
	next := historyDocument{Last: mark(c.ID, c.Step), Changes: slices.Clone(h.Changes)}
	if len(c.Changes) == 0 {
		return next
	}
	c.Changes = summary(c.Changes)
	next.Changes = append(slices.DeleteFunc(next.Changes, func(old recordedChange) bool { return old.ID == c.ID }), c)
	next.Changes = next.Changes[max(0, len(next.Changes)-historyLength):]
	size := 0
	for i := len(next.Changes) - 1; i >= 0; i-- {
		for _, line := range next.Changes[i].Changes {
			size += len(line)
		}
		if size > historyBytes {
			next.Changes = slices.Clone(next.Changes[i+1:])
			break
		}
	}
	return next
}

// has reports whether a step of a change was carried out. known is false if the history, which followed before, may have forgotten it.
func (h *historyDocument) has(id string, step int, before *historyDocument) (done, known bool) {
	if h.Last == mark(id, step) {
		return true, true
	}
	kept := len(before.Changes) == 0 && len(h.Changes) < historyLength
	for i := range h.Changes {
		if c := &h.Changes[i]; c.ID == id {
			return c.Step >= step, true
		}
		kept = kept || len(before.Changes) > 0 && h.Changes[i].ID == before.Changes[len(before.Changes)-1].ID
	}
	return false, kept
}

func mark(id string, step int) string { return fmt.Sprintf("%s/%d", id, step) }

// summary keeps logs short.
func summary(changes []string) []string {
	if len(changes) <= historyLines {
		return changes
	}
	return append(slices.Clone(changes[:historyLines]), fmt.Sprintf("and %d more", len(changes)-historyLines))
}

// commit carries out what decide makes of the fleet as it is now, and waits until it is so here. Where others were faster it decides
// again. What decide refuses, and that there is nothing to do, is told only if the state that it went by is the newest. record says who
// does what once decide has returned.
func (d *Desired) commit(ctx context.Context, record *recordedChange, decide func(*snapshot) ([]store.Document, error)) (revision uint64, err error) {
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-time.After(queueTime):
		return 0, connect.NewError(connect.CodeUnavailable, fmt.Errorf("nothing was changed: other changes of the fleet have not ended for %v: try again", queueTime))
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	partly := false
	for range attempts {
		now, changed, err := d.known(ctx)
		if err != nil {
			return 0, err
		}
		documents, refused := decide(now)
		var steps [][]store.Document
		if refused == nil {
			steps, refused = now.steps(documents, d.store.Limits())
		}
		if len(steps) == 0 {
			err = d.confirm(ctx, now)
			if err == nil {
				return now.revision, told(refused, partly)
			}
		} else {
			record.ID = fmt.Sprintf("%016x", rand.Uint64())
			done := 0
			done, revision, err = d.carryOut(context.WithoutCancel(ctx), now, steps, *record)
			if done > 0 {
				d.await(ctx, revision)
			}
			if partly = partly || done > 0; err == nil {
				return revision, nil
			}
		}
		if !errors.Is(err, store.ErrConflict) {
			return 0, told(failure(ctx, err), partly)
		}
		if err := pause(ctx, changed); err != nil {
			return 0, told(err, partly)
		}
	}
	return 0, told(fmt.Errorf("%w, %d times: try again", store.ErrConflict, attempts), partly)
}

// confirm returns store.ErrConflict if the fleet is not that of a snapshot any more.
func (d *Desired) confirm(ctx context.Context, now *snapshot) error {
	_, err := d.store.Commit(ctx, []store.Document{{Key: historyKey, Revision: now.own[historyKey], Same: true}})
	return err
}

// carryOut commits one step after the other.
func (d *Desired) carryOut(ctx context.Context, now *snapshot, steps [][]store.Document, record recordedChange) (done int, revision uint64, err error) {
	history, guard := now.history, now.own[historyKey]
	for i, documents := range steps {
		record.Step, record.Time = i, time.Now().UTC().Truncate(time.Second)
		next := history.with(record)
		value, err := json.Marshal(next)
		if err != nil {
			return done, revision, err
		}
		guarded := append(slices.Clone(documents), store.Document{Key: historyKey, Value: value, Revision: guard})
		at, err := d.store.Commit(ctx, guarded)
		if errors.Is(err, store.ErrConflict) && errors.Is(err, store.ErrUnknown) {
			at, err = d.settle(ctx, record, &history)
		}
		if err != nil {
			return done, revision, err
		}
		done, revision, guard, history = done+1, at, at, next
	}
	return done, revision, nil
}

// settle finds out whether a step was carried out that an attempt has not been answered for, and no other attempt can be any more.
func (d *Desired) settle(ctx context.Context, record recordedChange, before *historyDocument) (revision uint64, err error) {
	for range attempts {
		now, changed := d.next()
		if err := d.confirm(ctx, now); err == nil {
			switch done, known := now.history.has(record.ID, record.Step, before); {
			case done:
				return now.own[historyKey], nil
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

// steps divides what is changed into what there is room for at once. Whatever stops between two of them must leave a fleet that makes sense.
func (s *snapshot) steps(documents []store.Document, most store.Limits) (steps [][]store.Document, err error) {
	most.Documents, most.Bytes = most.Documents-1, most.Bytes-2*historyBytes // room for the history
	for first := 0; first < len(documents); {
		end, size := first, 0
		for end < len(documents) && end-first < most.Documents {
			if size += len(documents[end].Key) + len(documents[end].Value); size > most.Bytes && end > first {
				break
			}
			end++
		}
		for end < len(documents) && end-first > 1 && documents[end-1].Value == nil { // what takes its place may follow
			end--
		}
		steps = append(steps, documents[first:end])
		first = end
	}
	if len(steps) < 2 {
		return steps, nil
	}
	between := s.clone()
	for i, step := range steps[:len(steps)-1] {
		for _, document := range step {
			if err := between.take(document, s.revision); err != nil {
				return nil, err
			}
		}
		fleet := between.fleet()
		if err := fleet.Validate(); err != nil {
			return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf(
				"the change is too large for one transaction of the store, and after %d of %d steps the fleet would contradict itself: %w: make it in parts, each of which makes sense",
				i+1, len(steps), err))
		}
	}
	return steps, nil
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

// told adds to an error that some steps were done.
func told(err error, partly bool) error {
	if err == nil || !partly {
		return err
	}
	return connect.NewError(connect.CodeUnknown, fmt.Errorf("a part was carried out, then: %w: look with `ballast ctl history list`, and repeat it", err))
}

// Change carries an edit out; see api.Desired.
func (d *Desired) Change(ctx context.Context, dryRun bool, edit node.Edit) (changes []string, revision uint64, err error) {
	record := recordOf(ctx)
	revision, err = d.commit(ctx, record, func(now *snapshot) ([]store.Document, error) {
		n := now.node()
		changes, err = n.Change(time.Now(), edit)
		if record.Changes = changes; err != nil || dryRun {
			return nil, d.whyBroken(err)
		}
		return now.changes(n)
	})
	if err != nil {
		d.log.Debug("a change was refused", "by", record.By, "error", err)
		return nil, 0, err
	}
	if !dryRun && len(changes) > 0 {
		d.log.Info("changed", "by", record.By, "revision", revision, "changes", summary(changes))
	}
	return changes, revision, nil
}

// whyBroken says of a refusal that it is not the change alone that makes no sense.
func (d *Desired) whyBroken(err error) error {
	var invalid *model.Invalid
	if errors.As(err, &invalid) && d.Broken() != nil {
		return fmt.Errorf("the fleet in the store contradicts itself, and would still: %w", err)
	}
	return err
}

// Forget gives up a removed server and its id; see api.Desired.
func (d *Desired) Forget(ctx context.Context, service, server string) (changes []string, revision uint64, err error) {
	record := recordOf(ctx)
	revision, err = d.commit(ctx, record, func(now *snapshot) ([]store.Document, error) {
		n := now.node()
		changes, err := n.Forget(service, server)
		if err != nil {
			return nil, connect.NewError(connect.CodeNotFound, err)
		}
		record.Changes = changes
		return now.changes(n)
	})
	if err != nil {
		d.log.Debug("a change was refused", "by", record.By, "error", err)
		return nil, 0, err
	}
	d.log.Info("changed", "by", record.By, "revision", revision, "changes", record.Changes)
	return record.Changes, revision, nil
}

func recordOf(ctx context.Context) *recordedChange {
	by, _ := api.CallerOf(ctx)
	return &recordedChange{By: by}
}

// SwitchOff ends the drain of a server whose deadline has passed: it gets no packets any more.
func (d *Desired) SwitchOff(ctx context.Context, service string, id uint16) error {
	_, _, err := d.Change(ctx, false, node.EndDrain(service, id, time.Now()))
	return err
}

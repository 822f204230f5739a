// Changes of the fleet by people, and by what checks find.
package desired

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store"
)

// Editor changes the fleet.
type Editor struct{ writer *Writer }

// NewEditor returns an editor that writes by w.
func NewEditor(w *Writer) Editor { return Editor{w} }

// Change carries an edit out; see api.Desired.
func (e Editor) Change(ctx context.Context, dryRun bool, edit fleet.Edit) (changes []string, revision uint64, err error) {
	record := documents.ChangeBy(ctx)
	revision, err = e.writer.Commit(ctx, record, func(now *documents.Snapshot) ([]store.Document, error) {
		n := now.Node()
		changes, err = n.Change(time.Now(), edit)
		if record.Changes = changes; err != nil || dryRun {
			return nil, e.whyBroken(err)
		}
		return now.Changes(n)
	})
	if err != nil {
		e.writer.log.Debug("a change was refused", "by", record.By, "error", err)
		return nil, 0, err
	}
	if !dryRun && len(changes) > 0 {
		e.writer.log.Info("changed", "by", record.By, "revision", revision, "changes", documents.Summary(changes))
	}
	return changes, revision, nil
}

// whyBroken says of a refusal that it is not the change alone that makes no sense.
func (e Editor) whyBroken(err error) error {
	var invalid *model.Invalid
	if errors.As(err, &invalid) && e.writer.mirror.Broken() != nil {
		return fmt.Errorf("the fleet in the store contradicts itself, and would still: %w", err)
	}
	return err
}

// Forget gives up a removed server and its id; see api.Desired.
func (e Editor) Forget(ctx context.Context, dryRun bool, service, server string) (changes []string, revision uint64, err error) {
	return e.writer.Record(ctx, dryRun, func(now *documents.Snapshot) (changes []string, wanted []store.Document, err error) {
		n := now.Node()
		if changes, err = n.Forget(service, server); err != nil {
			return nil, nil, connect.NewError(connect.CodeNotFound, err)
		}
		wanted, err = now.Changes(n)
		return changes, wanted, err
	})
}

// SwitchOff ends the drain of a server whose deadline has passed: it gets no packets any more.
func (e Editor) SwitchOff(ctx context.Context, service string, id uint16) error {
	_, _, err := e.Change(ctx, false, fleet.EndDrain(service, id, time.Now()))
	return err
}

// SetHealth writes down who is unhealthy, of several services at once. Services that are gone are left out.
func (e Editor) SetHealth(ctx context.Context, found map[string]fleet.Unhealthy) error {
	const perService = 2 // documents
	for names := range slices.Chunk(slices.Sorted(maps.Keys(found)), max(1, e.writer.store.Limits().Documents/perService)) {
		err := e.writer.Update(ctx, func(now *documents.Snapshot) (all []store.Document, err error) {
			for _, name := range names {
				changed, err := judged(now, name, found[name])
				if err != nil {
					return nil, err
				}
				all = append(all, changed...)
			}
			return all, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// judged returns what writes down who of a service is unhealthy, if that is news.
func judged(now *documents.Snapshot, name string, health fleet.Unhealthy) ([]store.Document, error) {
	before := cmp.Or(now.Health[name], &fleet.Unhealthy{})
	if !now.Judges(name) || before.Equal(health) {
		return nil, nil
	}
	var value []byte // nobody is: no document
	if !health.None() {
		var err error
		if value, err = json.Marshal(health); err != nil {
			return nil, err
		}
	}
	key, of := documents.HealthPrefix+name, documents.ServicesPrefix+name
	if name == model.SecondTierName {
		of = documents.NodesKey
	}
	return []store.Document{{Key: key, Value: value, Revision: now.Revisions[key]}, {Key: of, Revision: now.Revisions[of], Same: true}}, nil // of what is there still
}

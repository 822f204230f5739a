// What undoes the last changes: each step writes down what it changes of the fleet as it was before.
package documents

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store"
)

// Implementation constants.
const (
	undoBytes    = 256 << 10 // of one document, compressed
	allUndoBytes = 8 << 20
	undoneBytes  = 64 << 20 // that one document unfolds to
)

// undo is what was before a step, of what it changed. Services with an owner are left out: who keeps them says what they are.
type undo struct {
	Services map[string]*model.Service `json:"services,omitempty"` // nil: there was none of that name
	Nodes    *Nodes                    `json:"nodes,omitempty"`
}

func undoKey(id string, step int) string { return UndoPrefix + mark(id, step) }

// Undoing returns the document that undoes a step which the state s has before it, and notes it in the record of the change. There is none where the
// step changes nothing of the fleet, or more than there is room for: the record says which.
func (s *Snapshot) Undoing(record *Change, step []store.Document) (documents []store.Document, err error) {
	before := undo{Services: map[string]*model.Service{}}
	for _, d := range step {
		if name, ok := strings.CutPrefix(d.Key, ServicesPrefix); ok && !d.Same {
			if before.Services[name] = nil; s.Services[name] != nil && s.Services[name].Service.Owner == "" {
				before.Services[name] = &s.Services[name].Service
			}
		} else if d.Key == NodesKey && !d.Same {
			nodes := s.Nodes
			nodes.File = nil
			before.Nodes = &nodes
		}
	}
	if record.Step == 0 {
		record.Kept = true
	}
	if len(before.Services) == 0 && before.Nodes == nil || len(record.Changes) == 0 { // which is not listed
		return nil, nil
	}
	packed, err := pack(&before)
	if err != nil {
		return nil, err
	}
	if len(packed) > undoBytes {
		record.Kept = false
		return nil, nil
	}
	record.Undo = append(slices.Clip(record.Undo), record.Step)
	return []store.Document{{Key: undoKey(record.ID, record.Step), Value: packed}}, nil
}

// Outdated returns what removes documents that undo changes: one of those that the history has no change for, and, if there are more than there is room
// for, the newest that does not fit, without which those before it are of no use.
func (s *Snapshot) Outdated(h *History) (documents []store.Document) {
	age := map[string]int{}
	for i := range h.Changes {
		age[h.Changes[i].ID] = i + 1
	}
	ageOf := func(key string) int {
		id, _, _ := strings.Cut(strings.TrimPrefix(key, UndoPrefix), "/")
		return age[id]
	}
	oldest := slices.SortedFunc(maps.Keys(s.Undos), func(a, b string) int { return cmp.Or(cmp.Compare(ageOf(a), ageOf(b)), cmp.Compare(a, b)) })
	if len(oldest) > 0 && ageOf(oldest[0]) == 0 {
		documents, oldest = append(documents, s.Delete(oldest[0])), oldest[1:]
	}
	size := 0
	for _, key := range slices.Backward(oldest) {
		if size += len(s.Undos[key]); size > allUndoBytes {
			return append(documents, s.Delete(key))
		}
	}
	return documents
}

// RevisionOf returns the store's revision after a change of the history; 0: an older version has not written it down.
func (s *Snapshot) RevisionOf(c *Change) uint64 {
	if c.Revision == 0 && c.isLast(&s.History) {
		return s.Revisions[HistoryKey]
	}
	return c.Revision
}

// KeptFrom returns the index in the history of the first change after which the fleet can be told.
func (s *Snapshot) KeptFrom() int {
	first := len(s.History.Changes)
	for i := first - 1; i >= 0; i-- {
		if s.RevisionOf(&s.History.Changes[i]) != 0 {
			first = i
		}
		if !s.undoes(&s.History.Changes[i]) {
			break
		}
	}
	return first
}

// undoes reports whether all is there that undoes a change.
func (s *Snapshot) undoes(c *Change) bool {
	return c.Kept && !slices.ContainsFunc(c.Undo, func(step int) bool { return s.Undos[undoKey(c.ID, step)] == nil })
}

// FleetAt returns the fleet as it was after the change that made a revision, without services of owners and with the keys of now. Who was draining
// until a time that has passed is off. Its errors are for clients.
func (s *Snapshot) FleetAt(revision uint64, now time.Time) (model.Fleet, error) {
	at := slices.IndexFunc(s.History.Changes, func(c Change) bool { return s.RevisionOf(&c) == revision })
	if at < 0 {
		return model.Fleet{}, connect.NewError(connect.CodeNotFound, fmt.Errorf("the history has no revision %d: see `ballast ctl history list`", revision))
	}
	if at < s.KeptFrom() {
		return model.Fleet{}, connect.NewError(connect.CodeNotFound, fmt.Errorf(
			"the fleet of revision %d is not kept any more: `ballast ctl history list` marks those that are", revision))
	}
	past := Snapshot{Keys: s.Keys, Nodes: s.Nodes, Services: maps.Clone(s.Services)}
	maps.DeleteFunc(past.Services, func(_ string, one *Service) bool { return one.Service.Owner != "" })
	for _, c := range slices.Backward(s.History.Changes[at+1:]) {
		for _, step := range slices.Backward(c.Undo) {
			before, err := unpack(s.Undos[undoKey(c.ID, step)])
			if err != nil {
				return model.Fleet{}, fmt.Errorf("document %s of the store: %w", undoKey(c.ID, step), err)
			}
			for name, service := range before.Services {
				if delete(past.Services, name); service != nil {
					past.Services[name] = &Service{Service: *service}
				}
			}
			if before.Nodes != nil {
				past.Nodes = *before.Nodes
			}
		}
	}
	shared := past.Fleet()
	fleet := shared.Clone()
	for i := range fleet.Services {
		for j := range fleet.Services[i].Servers {
			if server := &fleet.Services[i].Servers[j]; server.DrainEnded(now) {
				server.State = model.StateOff
			}
		}
	}
	return fleet, nil
}

func pack(before *undo) ([]byte, error) {
	text, err := json.Marshal(before)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, err = writer.Write(text)
	err = errors.Join(err, writer.Close())
	return packed.Bytes(), err
}

func unpack(packed []byte) (before undo, err error) {
	reader, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return before, err
	}
	text, err := io.ReadAll(io.LimitReader(reader, undoneBytes))
	if err != nil {
		return before, err
	}
	return before, json.Unmarshal(text, &before)
}

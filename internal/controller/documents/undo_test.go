package documents

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store"
)

// commit carries a change of documents out, as controllers do.
func commit(t *testing.T, s *Snapshot, record Change, changed ...store.Document) {
	t.Helper()
	at := s.Revision + 1
	undo, err := s.Undoing(&record, changed)
	fleettest.Require(t, err)
	next := s.History.With(record, s.Revisions[HistoryKey])
	outdated := s.Outdated(&next)
	value, err := json.Marshal(next)
	fleettest.Require(t, err)
	for _, list := range [][]store.Document{changed, undo, outdated, {{Key: HistoryKey, Value: value}}} {
		for _, d := range list {
			d.Revision = at
			fleettest.Require(t, s.Take(d, at))
		}
	}
	s.Revision = at
}

// weigh is a change of service web.
func weigh(t *testing.T, s *Snapshot, n int, servers ...int) (Change, store.Document) {
	t.Helper()
	service := fleettest.Service("web", servers...).Service
	service.Servers[0].Weight = uint16(n)
	document, err := s.Put(ServicesPrefix+"web", &Service{Service: service})
	fleettest.Require(t, err)
	return Change{ID: fmt.Sprintf("%016x", n), Changes: []string{fmt.Sprintf("weight %d", n)}, By: api.Caller{Name: "me"}}, document
}

// Promise: What undoes changes takes no more room than it may, and goes with what it undoes.
func TestWhatUndoesChangesIsBounded(t *testing.T) {
	s := New()
	for n := range historyLength + 10 {
		record, document := weigh(t, s, n, 1, 2)
		commit(t, s, record, document)
	}
	if len(s.History.Changes) != historyLength || len(s.Undos) != historyLength || s.KeptFrom() != 0 {
		t.Errorf("%d changes, %d undone, from %d", len(s.History.Changes), len(s.Undos), s.KeptFrom())
	}
	for i := range s.History.Changes {
		fleet, err := s.FleetAt(s.RevisionOf(&s.History.Changes[i]), time.Now())
		if err != nil || int(fleet.Services[0].Servers[0].Weight) != 10+i {
			t.Fatalf("change %d: %v %v", i, fleet.Services, err)
		}
	}
	large := make([]byte, allUndoBytes/10)
	for n := range 30 { // each is outdated by those that follow
		record, document := weigh(t, s, n, 1)
		record.ID = fmt.Sprintf("large%d", n)
		commit(t, s, record, document)
		s.Undos[undoKey(record.ID, 0)] = large
	}
	if s.KeptFrom() == 0 {
		t.Error("all are kept")
	}
	size := 0
	for _, value := range s.Undos {
		size += len(value)
	}
	if size > allUndoBytes+2*len(large) {
		t.Errorf("%d bytes are kept", size)
	}
}

func TestAFleetThatIsNotKeptIsNotMadeUp(t *testing.T) {
	s := New()
	var revisions []uint64
	for n := range 6 {
		record, document := weigh(t, s, n+1, 1, 2)
		commit(t, s, record, document)
		revisions = append(revisions, s.Revision)
	}
	old := s.Clone()
	old.History.Changes[3].Kept = false // a controller of an older version made it
	for i, revision := range revisions {
		if _, err := old.FleetAt(revision, time.Now()); (err == nil) != (i >= 3) {
			t.Errorf("revision %d of 6, the fourth of which is not kept: %v", i+1, err)
		}
	}
	old.History.Changes[3].Kept = true
	key := undoKey(old.History.Changes[4].ID, 0)
	lost := old.Undos[key]
	for what, value := range map[string][]byte{"lost": nil, "cut": lost[:len(lost)-9], "no gzip": []byte("{}"), "no JSON": zip(t, []byte("{")), "zeros without end": zip(t, make([]byte, undoneBytes+1))} {
		if old.Undos[key] = value; value == nil {
			delete(old.Undos, key)
		}
		if fleet, err := old.FleetAt(revisions[3], time.Now()); err == nil {
			t.Errorf("%s: %v", what, fleet.Services)
		}
		if _, err := old.FleetAt(revisions[4], time.Now()); err != nil {
			t.Errorf("%s: the revision after it: %v", what, err)
		}
	}
	if _, err := s.FleetAt(revisions[0]-1, time.Now()); err == nil || !strings.Contains(err.Error(), "no revision") {
		t.Errorf("before all: %v", err)
	}
	large := fleettest.Service("large", fleettest.ManyIDs(60_000)...).Service
	for i := range large.Servers {
		large.Servers[i].Name = fmt.Sprintf("%x", i*0x9e3779b1)
	}
	s.Services["large"] = &Service{Service: large}
	record := Change{ID: "gone", Changes: []string{"service large: removed"}}
	commit(t, s, record, s.Delete(ServicesPrefix+"large"))
	if last := s.History.Changes[len(s.History.Changes)-1]; last.Kept || len(last.Undo) > 0 || s.KeptFrom() != len(s.History.Changes)-1 {
		t.Errorf("more than there is room for: %+v, kept from %d", last, s.KeptFrom())
	}
	s.Services["owned"] = &Service{Service: model.Service{Name: "owned", Owner: "kube"}}
	if fleet, err := s.FleetAt(s.Revision, time.Now()); err != nil || fleet.Service("owned") != nil || len(fleet.Services) != 1 {
		t.Errorf("services of owners: %v %v", fleet.Services, err)
	}
}

func zip(t *testing.T, text []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, err := writer.Write(text)
	fleettest.Require(t, err)
	fleettest.Require(t, writer.Close())
	return packed.Bytes()
}

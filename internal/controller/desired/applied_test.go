package desired_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/controller/desired/desiredtest"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// applyFile makes the fleet what a file says, and returns what that changes.
func applyFile(t *testing.T, d desiredtest.State, file model.Fleet) []string {
	t.Helper()
	changes, _, err := d.Change(context.Background(), false, func(next *fleet.Desired) error {
		file := file.Clone()
		file.ApplyDefaults()
		next.Apply(file)
		return nil
	})
	fleettest.Require(t, err)
	return changes
}

// drain drains server s1 of service web.
func drain(f *model.Fleet) { f.Service("web").Server("s1").State = model.StateDraining }

// written is the document of service web.
func written(t *testing.T, s *storetest.Store) store.Document {
	t.Helper()
	stored, _, err := s.Load(t.Context())
	fleettest.Require(t, err)
	return stored[slices.IndexFunc(stored, func(d store.Document) bool { return d.Key == documents.ServicesPrefix+"web" })]
}

func TestADrainSurvivesAnApplyThroughAnotherController(t *testing.T) {
	s := storetest.Open(t)
	d := desiredtest.Following(t, s)
	var file model.Fleet
	desiredtest.AddService(fleettest.Service("web", 1, 2, 3))(&file)
	file.Nodes = []model.Node{{Name: "lb1", Tier: model.TierFirst}}
	applyFile(t, d, file)
	before := written(t, s)
	desiredtest.Change(t, d, drain)
	desiredtest.Change(t, d, desiredtest.RemoveServer("web", 3))
	fleettest.Require(t, d.SetHealth(t.Context(), map[string]fleet.Unhealthy{"web": {Down: []uint16{1}}}))
	fleettest.Require(t, d.Age(t.Context(), time.Now(), func(string) bool { return true }, func(string, uint16) uint64 { return 1 }))

	another := desiredtest.Following(t, s)
	file.Services[0].TableSlots = 251
	desiredtest.RemoveServer("web", 3)(&file)
	if changes := applyFile(t, another, file); !slices.Equal(changes, []string{"service web: table_slots 4093 -> 251"}) {
		t.Errorf("an edit elsewhere does %q", changes)
	}
	desiredtest.Change(t, another, func(f *model.Fleet) { f.Service("web").Server("s1").State = model.StateActive })
	if strings.Contains(string(before.Value)+string(written(t, s).Value), `"file"`) {
		t.Errorf("nothing is drained, and yet the store has %s", written(t, s).Value)
	}
}

// A store that an earlier version has written says nothing of the file that was applied last: what it has counts as that.
func TestAStoreOfAnEarlierVersionKnowsNoFile(t *testing.T) {
	s := storetest.Open(t)
	d := desiredtest.Following(t, s)
	var file model.Fleet
	desiredtest.AddService(fleettest.Service("web", 1, 2))(&file)
	applyFile(t, d, file)
	desiredtest.Change(t, d, func(f *model.Fleet) { f.Service("web").Server("s1").Weight = 7 })
	document := written(t, s)
	from, to := []byte(`,"file":[`), []byte(`,"ignored":[`)
	if !strings.Contains(string(document.Value), string(from)) {
		t.Fatalf("the document says nothing of a file: %s", document.Value)
	}
	document.Value = []byte(strings.Replace(string(document.Value), string(from), string(to), 1))
	_, err := s.Commit(t.Context(), []store.Document{document})
	fleettest.Require(t, err)
	later := desiredtest.Following(t, s)
	if changes := applyFile(t, later, file); !slices.Equal(changes, []string{"service web: server s1: weight 7 -> 1"}) {
		t.Errorf("the first file does %q", changes)
	}
	desiredtest.Change(t, later, drain)
	if changes := applyFile(t, later, file); len(changes) != 0 {
		t.Errorf("the second one does %q", changes)
	}
}

func TestAServerWhoseDrainHasEndedStaysOffThoughTheFileSaysDraining(t *testing.T) {
	d := desiredtest.Following(t, storetest.Open(t))
	var file model.Fleet
	desiredtest.AddService(fleettest.Service("web", 1, 2))(&file)
	s1 := &file.Services[0].Servers[0]
	s1.State, s1.Deadline = model.StateDraining, time.Now().Add(-time.Minute).UTC().Truncate(time.Second)
	applyFile(t, d, file)
	fleettest.Require(t, d.SwitchOff(t.Context(), "web", 1))
	if changes := applyFile(t, d, file); len(changes) != 0 {
		t.Errorf("the same file again does %q", changes)
	}
}

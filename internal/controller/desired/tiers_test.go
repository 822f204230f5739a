package desired_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/controller/desired/desiredtest"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

func TestNodesWithATierSurviveARestartOfTheController(t *testing.T) {
	s := storetest.Open(t)
	first := desiredtest.Following(t, s)
	if changes := desiredtest.Change(t, first, fleettest.AddTiers); len(changes) < 3 {
		t.Errorf("changes %q", changes)
	}
	desiredtest.Change(t, first, func(f *model.Fleet) { f.Node("lb2").State = model.StateDraining })
	want := first.Now().Fleet()
	second := desiredtest.Following(t, s)
	if have := second.Now().Fleet(); !reflect.DeepEqual(have.Nodes, want.Nodes) || !reflect.DeepEqual(have.NodeHealth, want.NodeHealth) ||
		have.Nodes[1].State != model.StateDraining || have.NodeHealth.Interval == 0 {
		t.Errorf("have %+v, want %+v", have, want)
	}
	view, _ := second.View()
	if view.Second == nil || len(view.Second.Service.Servers) != 2 || len(view.Nodes) != 3 {
		t.Errorf("view %+v", view)
	}
}

func TestASecondTierThatIsRemovedLeavesNobodyDown(t *testing.T) {
	s := storetest.Open(t)
	d := desiredtest.Following(t, s)
	desiredtest.Change(t, d, fleettest.AddTiers)
	fleettest.Require(t, d.SetHealth(t.Context(), map[string]fleet.Unhealthy{model.SecondTierName: {Down: []uint16{2}}}))
	view, _ := d.View()
	if view.Second == nil || !slices.Equal(view.Second.Down, []uint16{2}) {
		t.Fatalf("nobody is down: %+v", view.Second)
	}
	before := view.Second.Revision
	desiredtest.Change(t, d, func(f *model.Fleet) { f.Node("lb3").State = model.StateOff })
	if view, _ = d.View(); view.Second.Revision == before {
		t.Error("the second tier has changed, its revision has not")
	}
	desiredtest.Change(t, d, func(f *model.Fleet) { f.Nodes, f.NodeHealth = f.Nodes[:1], model.Health{} })
	fleettest.Require(t, d.SetHealth(t.Context(), map[string]fleet.Unhealthy{model.SecondTierName: {Down: []uint16{1}}}))
	stored := desiredtest.Stored(t, s)
	if len(stored) != 2 || stored[0].Key != documents.HistoryKey || stored[1].Key != documents.NodesKey {
		t.Errorf("left in the store: %+v", stored)
	}
	if view, _ = d.View(); view.Second != nil || len(view.Nodes) != 1 {
		t.Errorf("view %+v", view)
	}
}

func TestWhyThereIsNoStateIsInPlainWords(t *testing.T) {
	d := desiredtest.New(t, storetest.Open(t))
	if why := d.Unknown(); why != "waiting for the first complete state of the store" {
		t.Errorf("before anything is read: %s", why)
	}
	broken := documents.New()
	broken.Services["web"] = &documents.Service{}
	d.Become(broken)
	if why := d.Unknown(); !strings.Contains(why, "the fleet in the store contradicts itself: ") {
		t.Errorf("with a fleet that contradicts itself: %s", why)
	}
	d.Become(documents.New())
	if why := d.Unknown(); why != "" {
		t.Errorf("with a fleet: %s", why)
	}
}

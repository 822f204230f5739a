package controller

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestNodesWithATierSurviveARestartOfTheController(t *testing.T) {
	s := newMemory(t)
	first := following(t, s)
	if changes := change(t, first, fleettest.AddTiers); len(changes) < 3 {
		t.Errorf("changes %q", changes)
	}
	change(t, first, func(f *model.Fleet) { f.Node("lb2").State = model.StateDraining })
	want := first.now().fleet()
	second := following(t, s)
	if have := second.now().fleet(); !reflect.DeepEqual(have.Nodes, want.Nodes) || !reflect.DeepEqual(have.NodeHealth, want.NodeHealth) ||
		have.Nodes[1].State != model.StateDraining || have.NodeHealth.Interval == 0 {
		t.Errorf("have %+v, want %+v", have, want)
	}
	view, _ := second.View()
	if view.Second == nil || len(view.Second.Service.Servers) != 2 || len(view.Nodes) != 3 {
		t.Errorf("view %+v", view)
	}
}

func TestASecondTierThatIsRemovedLeavesNobodyDown(t *testing.T) {
	s := newMemory(t)
	d := following(t, s)
	change(t, d, fleettest.AddTiers)
	fleettest.Require(t, d.SetHealth(t.Context(), map[string]node.Unhealthy{model.SecondTierName: {Down: []uint16{2}}}))
	view, _ := d.View()
	if view.Second == nil || !slices.Equal(view.Second.Down, []uint16{2}) {
		t.Fatalf("nobody is down: %+v", view.Second)
	}
	before := view.Second.Revision
	change(t, d, func(f *model.Fleet) { f.Node("lb3").State = model.StateOff })
	if view, _ = d.View(); view.Second.Revision == before {
		t.Error("the second tier has changed, its revision has not")
	}
	change(t, d, func(f *model.Fleet) { f.Nodes, f.NodeHealth = f.Nodes[:1], model.Health{} })
	fleettest.Require(t, d.SetHealth(t.Context(), map[string]node.Unhealthy{model.SecondTierName: {Down: []uint16{1}}}))
	documents, _, err := s.Load(t.Context())
	fleettest.Require(t, err)
	if len(documents) != 2 || documents[0].Key != historyKey || documents[1].Key != nodesKey {
		t.Errorf("left in the store: %+v", documents)
	}
	if view, _ = d.View(); view.Second != nil || len(view.Nodes) != 1 {
		t.Errorf("view %+v", view)
	}
}

func TestWhyThereIsNoStateIsInPlainWords(t *testing.T) {
	d := NewDesired(newMemory(t), node.Timing{}, fleettest.Log(t))
	if why := d.Unknown(); why != "waiting for the first complete state of the store" {
		t.Errorf("before anything is read: %s", why)
	}
	broken := newSnapshot()
	broken.services["web"] = &serviceDocument{}
	d.become(broken, true, func() {})
	if why := d.Unknown(); !strings.Contains(why, "the fleet in the store contradicts itself: ") {
		t.Errorf("with a fleet that contradicts itself: %s", why)
	}
	d.become(newSnapshot(), true, func() {})
	if why := d.Unknown(); why != "" {
		t.Errorf("with a fleet: %s", why)
	}
}

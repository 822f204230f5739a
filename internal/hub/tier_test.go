package hub

import (
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

func TestLoadBalancersAreToldOfNodesAndAgentsAreNot(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	web := fleettest.Service("web", 1)
	hub.Topics.SetState(fleettest.Tiered(1, []uint16{2}, web))
	lb, agent := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1")), fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	state := lb.State()
	if n := state.Nodes; len(n.GetNodes()) != 3 || n.Nodes[2].Name != "lb3" || n.Nodes[2].Id != 2 || n.Health.GetPort() != 9435 || !slices.Equal(n.Down, []uint32{2}) {
		t.Errorf("told %v", n)
	}
	if state := agent.State(); state.Nodes != nil {
		t.Errorf("an agent is told %v", state.Nodes)
	}
	expect := func(revision uint64, down ...uint32) {
		t.Helper()
		state := lb.State()
		expectState(t, state, revision, false, "", "")
		if !slices.Equal(state.Nodes.GetDown(), down) || state.Nodes == nil {
			t.Errorf("at %d told %v", revision, state.Nodes)
		}
	}
	hub.Topics.SetState(fleettest.Tiered(2, nil, web))
	expect(2)
	hub.Topics.SetState(fleettest.Tiered(3, nil, web)) // nothing to tell
	next := fleettest.Tiered(4, nil, web)              // but another controller has told something else in between
	next.Skipped = []string{model.SecondTierName}
	hub.Topics.SetState(next)
	expect(4)
	rejecting := fleettest.View(5, web)
	rejecting.Unserved = model.UnservedReject
	hub.Topics.SetState(rejecting)
	if state := lb.State(); state.Nodes.GetUnserved() != "reject" {
		t.Errorf("sent %v", state.Nodes)
	}
	hub.Topics.SetState(fleettest.View(6, web)) // nobody has a tier any more
	state = lb.State()
	if state.Nodes == nil || len(state.Nodes.Nodes) != 0 || state.Nodes.Unserved != "pass" {
		t.Errorf("told %v", state.Nodes)
	}
	changed := fleettest.Service("web", 1, 2)
	hub.Topics.SetState(fleettest.View(7, changed))
	expectState(t, agent.State(), 7, false, "web", "")
}

package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// tiered is a view with lb1 of the first tier, and lb2 and lb3 of the second, with ids 1 and 2.
func tiered(revision uint64, down []uint16, services ...ServiceView) *View {
	var fleet model.Fleet
	addTiers(&fleet)
	fleet.ApplyDefaults()
	v := view(revision, services...)
	v.Nodes, v.NodeHealth = fleet.Nodes, fleet.NodeHealth
	v.Second = &ServiceView{Service: *fleet.SecondTier(), Down: down}
	return v
}

// Whose way to a server is that of its traffic, may judge it.
func TestWhoSendsToServersChecksThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		table, web := testService("table", 1), testService("web", 1)
		table.Service.Affinity = model.AffinityTable
		for _, v := range []*ServiceView{&table, &web} {
			v.Service.Health.Check = model.CheckTCP
		}
		e := startEngine(t, &d, tiered(1, nil, table, web))
		e.SetLoadBalancers([]string{"lb1", "lb2", "lb3"})
		have := fmt.Sprint(d.take().checks)
		if want := "map[lb1:[@second-tier web] lb2:[table web] lb3:[table web]]"; have != want {
			t.Errorf("checks %s, not %s", have, want)
		}
		plain := view(2, table, web)
		e.SetState(plain)
		have = fmt.Sprint(d.take().checks)
		if want := "map[lb1:[table web] lb2:[table web] lb3:[table web]]"; have != want {
			t.Errorf("without tiers checks %s, not %s", have, want)
		}
		for _, s := range e.Servers("") {
			if s.Service == model.SecondTierName {
				t.Error("the second tier is among the services")
			}
		}
	})
}

func TestADeadNodeIsToldAtOnceAndSoIsItsReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		e := startEngine(t, &d, tiered(1, nil))
		e.SetLoadBalancers([]string{"lb1"})
		report := func(healthy bool) (after time.Duration) {
			d.take()
			began := time.Now()
			e.Health("lb1", &ballastv1.HealthReport{Servers: []*ballastv1.ServerHealth{
				{Service: model.SecondTierName, Id: 1, Healthy: true}, {Service: model.SecondTierName, Id: 2, Healthy: healthy, Detail: "refused"}}})
			synctest.Wait()
			return time.Since(began)
		}
		after := report(false)
		if down := d.take().down; !slices.Equal(down, []string{"@second-tier[2] []"}) || after > 0 {
			t.Errorf("told %q after %v", down, after)
		}
		e.SetState(tiered(2, []uint16{2}))
		for _, s := range e.Servers(model.SecondTierName) {
			if want := map[string]string{"lb2": "healthy", "lb3": "unhealthy"}[s.Server.Name]; s.Health != want {
				t.Errorf("%s is %s, %s", s.Server.Name, s.Health, s.HealthDetail)
			}
		}
		after = report(true)
		if down := d.take().down; !slices.Equal(down, []string{"@second-tier[] []"}) || after > 0 {
			t.Errorf("told %q after %v", down, after)
		}
	})
}

func TestLoadBalancersAreToldOfNodesAndAgentsAreNot(t *testing.T) {
	ca, hub := newAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.issue(pki.Controller, "c1").Server())
	web := testService("web", 1)
	hub.SetState(tiered(1, []uint16{2}, web))
	lb, agent := join(t, address, ca.issue(pki.LB, "lb1")), join(t, address, ca.issue(pki.Agent, "s1"))
	state := lb.state()
	if n := state.Nodes; len(n.GetNodes()) != 3 || n.Nodes[2].Name != "lb3" || n.Nodes[2].Id != 2 || n.Health.GetPort() != 9435 || !slices.Equal(n.Down, []uint32{2}) {
		t.Errorf("told %v", n)
	}
	if state := agent.state(); state.Nodes != nil {
		t.Errorf("an agent is told %v", state.Nodes)
	}
	expect := func(revision uint64, down ...uint32) {
		t.Helper()
		state := lb.state()
		expectState(t, state, revision, false, "", "")
		if !slices.Equal(state.Nodes.GetDown(), down) || state.Nodes == nil {
			t.Errorf("at %d told %v", revision, state.Nodes)
		}
	}
	hub.SetState(tiered(2, nil, web))
	expect(2)
	hub.SetState(tiered(3, nil, web)) // nothing to tell
	next := tiered(4, nil, web)       // but another controller has told something else in between
	next.Skipped = []string{model.SecondTierName}
	hub.SetState(next)
	expect(4)
	hub.SetState(view(5, web)) // nobody has a tier any more
	state = lb.state()
	if state.Nodes == nil || len(state.Nodes.Nodes) != 0 {
		t.Errorf("told %v", state.Nodes)
	}
	changed := testService("web", 1, 2)
	hub.SetState(view(6, changed))
	expectState(t, agent.state(), 6, false, "web", "")
}

// The whole way: what a load balancer of the first tier sees is in the store, told to all, and survives the controller.
func TestANodeThatFailsChecksIsUnhealthyForEverybody(t *testing.T) {
	ca, s := newAuthority(t), newMemory(t)
	c := startController(t, ca, "c1", freeAddress(t), s, nil)
	operator := ca.issue(pki.Ctl, "me")
	change(t, following(t, s), addTiers)
	first := joinAll(t, ca.issue(pki.LB, "lb1"), c)
	second := joinAll(t, ca.issue(pki.LB, "lb2"), c)
	await(t, "lb1 is to check the others", func() bool {
		return first.locked(func() bool { return slices.Equal(first.checks[c.address], []string{model.SecondTierName}) })
	})
	down := func(n *fleetNode, healthy bool, want ...uint32) {
		t.Helper()
		await(t, fmt.Sprint("down is ", want), func() bool {
			first.joined.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Health{Health: &ballastv1.HealthReport{Servers: []*ballastv1.ServerHealth{
				{Service: model.SecondTierName, Id: 2, Healthy: healthy, Detail: "refused"}}}}})
			return n.locked(func() bool { return n.nodes != nil && slices.Equal(n.nodes.Down, want) })
		})
	}
	down(second, false, 2)
	answer, err := c.client(operator).ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
	require(t, err)
	known := map[string]string{}
	for _, n := range answer.Nodes {
		known[n.Name] = fmt.Sprint(n.Node.GetTier(), " ", n.Health, " ", strings.Join(n.Problems, ", "))
	}
	if known["lb1"] != "first  " || known["lb2"] != "second unknown " || known["lb3"] != "second unhealthy not connected" {
		t.Errorf("nodes %q", known)
	}
	if _, err := c.client(operator).DrainNode(t.Context(), &ballastv1.NodeRequest{Node: "lb2"}); err == nil || !strings.Contains(err.Error(), "no healthy one of the second tier") {
		t.Errorf("drain of the last that is not unhealthy: %v", err)
	}
	c.stop()
	c = startController(t, ca, "c1", c.address, s, nil)
	late := joinAll(t, ca.issue(pki.LB, "late"), c)
	await(t, "a new load balancer knows", func() bool {
		return late.locked(func() bool { return late.nodes != nil && slices.Equal(late.nodes.Down, []uint32{2}) })
	})
	down(late, true)
}

package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired/desiredtest"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// The whole way: what a load balancer of the first tier sees is in the store, told to all, and survives the controller.
//
// Promise: A controller that takes over the judgement of nodes continues from what was known.
func TestANodeThatFailsChecksIsUnhealthyForEverybody(t *testing.T) {
	ca, s := fleettest.NewAuthority(t), storetest.Open(t)
	c := startController(t, ca, "c1", freeAddress(t), s, nil)
	operator := ca.Issue(pki.Ctl, "me")
	desiredtest.Change(t, desiredtest.Following(t, s), fleettest.AddTiers)
	first := joinAll(t, ca.Issue(pki.LB, "lb1"), c)
	second := joinAll(t, ca.Issue(pki.LB, "lb2"), c)
	fleettest.Await(t, "lb1 is to check the others", func() bool {
		return first.locked(func() bool { return slices.Equal(first.checks[c.address], []string{model.SecondTierName}) })
	})
	down := func(n *fleetNode, healthy bool, want ...uint32) {
		t.Helper()
		fleettest.Await(t, fmt.Sprint("down is ", want), func() bool {
			first.joined.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Health{Health: &ballastv1.HealthReport{Servers: []*ballastv1.ServerHealth{
				{Service: model.SecondTierName, Id: 2, Healthy: healthy, Detail: "refused"}}}}})
			return n.locked(func() bool { return n.nodes != nil && slices.Equal(n.nodes.Down, want) })
		})
	}
	down(second, false, 2)
	answer, err := c.client(operator).ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
	fleettest.Require(t, err)
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
	late := joinAll(t, ca.Issue(pki.LB, "late"), c)
	fleettest.Await(t, "a new load balancer knows", func() bool {
		return late.locked(func() bool { return late.nodes != nil && slices.Equal(late.nodes.Down, []uint32{2}) })
	})
	down(late, true)
}

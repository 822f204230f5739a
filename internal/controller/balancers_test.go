package controller

import (
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// A load balancer that is cut off forwards on with the keys that it had, whatever has become of the controllers that knew it.
//
// Promise: A load balancer that does not return after a restart of the controllers is listed as lost, until `node
// forget`.
// Also held by TestALostNodeIsForgottenByAllControllersThatLive.
func TestALoadBalancerThatDoesNotComeBackAfterARestartOfTheControllersIsLost(t *testing.T) {
	ca, s := fleettest.NewAuthority(t), storetest.New()
	listed := func(want string) {
		t.Helper()
		fleettest.Await(t, "the list "+want, func() bool {
			stored, _, err := s.Load(t.Context())
			fleettest.Require(t, err)
			return slices.ContainsFunc(stored, func(d store.Document) bool { return d.Key == documents.BalancersKey && string(d.Value) == want })
		})
	}
	before := []*running{startController(t, ca, "c1", "127.0.0.1:0", s, nil), startController(t, ca, "c2", "127.0.0.1:0", s, nil)}
	apply(t, before[0].client(ca.Issue(pki.Ctl, "alice")), fleettest.Service("web", 1))
	fleettest.Join(t, before[0].address, ca.Issue(pki.LB, "lb2"))
	fleettest.Join(t, before[1].address, ca.Issue(pki.LB, "lb1"))
	listed(`{"names":["lb1","lb2"]}`)
	for _, c := range before {
		c.stop()
	}

	c := startController(t, ca, "c1", "127.0.0.1:0", s, nil)
	client := c.client(ca.Issue(pki.Ctl, "alice"))
	lost := func() (names []string) {
		answer, err := client.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		for _, n := range answer.Nodes {
			if n.Ready == hub.ReadyLost && n.Role == string(pki.LB) {
				names = append(names, n.Name)
			}
		}
		return names
	}
	fleettest.Await(t, "both to be lost", func() bool { return slices.Equal(lost(), []string{"lb1", "lb2"}) })
	lb1, agent := fleettest.Join(t, c.address, ca.Issue(pki.LB, "lb1")), fleettest.Join(t, c.address, ca.Issue(pki.Agent, "s1"))
	fleettest.Await(t, "one to be lost", func() bool { return slices.Equal(lost(), []string{"lb2"}) })
	unheard := func(when string, want ...string) {
		t.Helper()
		answer, err := client.ListServers(t.Context(), &ballastv1.ListServersRequest{})
		fleettest.Require(t, err)
		if len(answer.Servers) == 0 || !slices.Equal(answer.Lost, want) {
			t.Errorf("%s: %d servers, of which %q may still send to; want %q", when, len(answer.Servers), answer.Lost, want)
		}
	}
	unheard("with one lost", "lb2")
	_, err := client.AddKey(t.Context(), &ballastv1.AddKeyRequest{})
	fleettest.Require(t, err)
	agent.Send(says([]uint32{1, 2}, 1, nil))
	lb1.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{Revision: 1 << 40}}})
	use := func() error {
		_, err := client.UseKey(t.Context(), &ballastv1.KeyRequest{Epoch: 2})
		return err
	}
	fleettest.Await(t, "the lost one to be all that is waited for", func() bool {
		err := use()
		if connect.CodeOf(err) != connect.CodeFailedPrecondition {
			t.Fatalf("use of a key that a lost load balancer does not have: %v", err)
		}
		return strings.Contains(err.Error(), "load balancer lb2 is lost") && !strings.Contains(err.Error(), "lb1") && !strings.Contains(err.Error(), "s1")
	})
	_, err = client.ForgetNode(t.Context(), &ballastv1.NodeRequest{Node: "lb2"})
	fleettest.Require(t, err)
	fleettest.Require(t, use())
	unheard("after it was forgotten")
	listed(`{"names":["lb1"]}`)
	if names := lost(); len(names) > 0 {
		t.Errorf("lost after it was forgotten: %q", names)
	}
}

func TestALostNodeIsForgottenByAllControllersThatLive(t *testing.T) {
	ca, s := fleettest.NewAuthority(t), storetest.New()
	var controllers []*running
	for _, name := range []string{"c1", "c2", "c3"} {
		controllers = append(controllers, startController(t, ca, name, "127.0.0.1:0", s, nil))
	}
	operator := ca.Issue(pki.Ctl, "alice")
	client := controllers[0].client(operator)
	apply(t, client, fleettest.Service("web", 1))
	lists := func(c *running, ready string) bool {
		answer, err := c.client(operator).ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		return slices.ContainsFunc(answer.Nodes, func(n *ballastv1.NodeStatus) bool {
			return n.Role == string(pki.Agent) && n.Name == "s1" && n.Ready == ready
		})
	}
	agent := ca.Issue(pki.Agent, "s1")
	for _, c := range controllers[1:] { // the first never heard of it
		fleettest.Join(t, c.address, agent).Stream.CloseRequest()
	}
	fleettest.Await(t, "it is lost", func() bool { return lists(controllers[1], hub.ReadyLost) && lists(controllers[2], hub.ReadyLost) })
	fleettest.Await(t, "the first knows the others", func() bool {
		answer, err := client.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		return len(answer.Nodes) == 3
	})
	for _, dryRun := range []bool{true, true, false} {
		done, err := client.ForgetNode(t.Context(), &ballastv1.NodeRequest{Node: "s1", DryRun: dryRun})
		fleettest.Require(t, err)
		if want := []string{"c2: agent s1: forgotten", "c3: agent s1: forgotten"}; !slices.Equal(done.Changes, want) {
			t.Errorf("dry run %v: %q, want %q", dryRun, done.Changes, want)
		}
	}
	for i, c := range controllers {
		if lists(c, hub.ReadyLost) {
			t.Errorf("controller %d still lists it", i+1)
		}
	}
	if _, err := client.ForgetNode(t.Context(), &ballastv1.NodeRequest{Node: "s1"}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("forgotten again: %v", err)
	}

	fleettest.Join(t, controllers[1].address, agent)
	fleettest.Join(t, controllers[2].address, agent).Stream.CloseRequest()
	fleettest.Await(t, "it is lost at one", func() bool { return lists(controllers[2], hub.ReadyLost) })
	_, err := client.ForgetNode(t.Context(), &ballastv1.NodeRequest{Node: "s1"})
	if connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "controller c2 still remembers s1: ") ||
		!strings.Contains(err.Error(), "is connected from") || !strings.Contains(err.Error(), "c3: agent s1: forgotten") {
		t.Errorf("one that is connected elsewhere: %v", err)
	}
}

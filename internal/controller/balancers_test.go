package controller

import (
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// A load balancer that is cut off forwards on with the keys that it had, whatever has become of the controllers that knew it.
func TestALoadBalancerThatDoesNotComeBackAfterARestartOfTheControllersIsLost(t *testing.T) {
	ca, s := fleettest.NewAuthority(t), storetest.New()
	listed := func(want string) {
		t.Helper()
		fleettest.Await(t, "the list "+want, func() bool {
			documents, _, err := s.Load(t.Context())
			fleettest.Require(t, err)
			return slices.ContainsFunc(documents, func(d store.Document) bool { return d.Key == balancersKey && string(d.Value) == want })
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
	listed(`{"names":["lb1"]}`)
	if names := lost(); len(names) > 0 {
		t.Errorf("lost after it was forgotten: %q", names)
	}
}

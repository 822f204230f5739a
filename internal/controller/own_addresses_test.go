package controller

import (
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// Load balancers would take what is said to a controller or a node for a service's packets.
//
// Promise: A VIP that is an address of the fleet, of `--listen` or of `--metrics` is refused, or makes its load
// balancer not ready.
// Also held by TestALoadBalancerWhoseOwnAddressIsAVIPIsNotReady and
// TestAServiceTakesNothingThatIsForTheDaemonItself.
func TestAVIPIsNoAddressOfTheFleetItself(t *testing.T) {
	ca, s := fleettest.NewAuthority(t), storetest.New()
	ca.Issue(pki.Controller, "c1", "127.0.0.1", "203.0.113.1")
	c := startController(t, ca, "c1", "127.0.0.1:0", s, nil)
	client := c.client(ca.Issue(pki.Ctl, "alice"))
	apply(t, client, fleettest.Service("web", 1)) // 198.51.100.1
	ca.Issue(pki.Controller, "c2", "2001:db8::2", "198.51.100.1")
	startController(t, ca, "c2", "127.0.0.1:0", s, nil)
	lb := fleettest.Join(t, c.address, ca.Issue(pki.LB, "lb1"))
	fleettest.Require(t, lb.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: &ballastv1.Condition{
		Addresses: []string{"2001:db8::11", "203.0.113.2"}, Own: []string{"2001:db8::11"}}}})) // it has joined by the other family
	fleettest.Join(t, c.address, ca.Issue(pki.Agent, "s1", "10.0.0.1", "2001:db8::21"))
	fleettest.Await(t, "the first controller to know of the second and of the load balancer", func() bool {
		answer, err := client.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		return len(answer.Nodes) == 4 && slices.ContainsFunc(answer.Nodes, func(n *ballastv1.NodeStatus) bool { return n.Name == "lb1" && n.Ready == "no" })
	})
	put := func(vip string) error {
		view := fleettest.Service("other")
		service := api.ServiceToProto(&view.Service)
		service.Vip = vip
		_, err := client.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: service})
		return err
	}
	for vip, owner := range map[string]string{"203.0.113.1": "controller c1", "2001:db8::2": "controller c2", "127.0.0.1": "" /* both nodes */, "2001:db8::11": "load balancer lb1", "2001:db8::21": "agent s1"} {
		if err := put(vip); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "services.other.vip: "+vip+" is the address of "+owner) {
			t.Errorf("%s: %v, want a refusal", vip, err)
		}
	}
	fleettest.Require(t, put("203.0.113.2"))
	// What was there before a controller had the address does not keep others from being changed.
	fleettest.Require(t, put("203.0.113.3"))
}

package controller

import (
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/enrol"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// states are those of a service's servers, by name.
func states(t *testing.T, c *running, operator *pki.Credentials) map[string]string {
	t.Helper()
	answer, err := c.client(operator).ListServers(t.Context(), &ballastv1.ListServersRequest{})
	fleettest.Require(t, err)
	found := map[string]string{}
	for _, s := range answer.Servers {
		found[s.Service+"/"+s.Server.Name] = s.Server.State
	}
	return found
}

// Promise: A node drains, by its certificate, what it is itself, and nothing else; to look changes nothing; to repeat it changes nothing more.
func TestANodeDrainsItselfAlone(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), nil)
	me := ca.Issue(pki.Ctl, "me")
	web, shop := fleettest.Service("web", 1, 2), fleettest.Service("shop", 1, 2)
	shop.Service.VIP = netip.MustParseAddr("198.51.100.77")
	names := web.Service.Servers
	apply(t, c.client(me), web, shop)
	own := names[0]
	agent := api.NewLeavingClient([]string{c.address}, ca.Issue(pki.Agent, own.Name, own.Address.String()).Client())
	stranger := api.NewLeavingClient([]string{c.address}, ca.Issue(pki.Agent, "stranger", "192.0.2.9").Client())
	for _, role := range []pki.Role{pki.Ctl, pki.Controller} {
		other := api.NewLeavingClient([]string{c.address}, ca.Issue(role, "someone").Client())
		if _, err := other.Drain(t.Context(), &ballastv1.LeavingDrainRequest{}); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("role %s drains: %v", role, err)
		}
		if _, err := other.Leave(t.Context(), &ballastv1.LeaveRequest{}); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("role %s leaves: %v", role, err)
		}
	}
	var look *ballastv1.LeavingDrainResponse
	fleettest.Await(t, "the agent's servers are known", func() bool {
		var err error
		look, err = agent.Drain(t.Context(), &ballastv1.LeavingDrainRequest{Look: true})
		fleettest.Require(t, err)
		return len(look.Servers) == 2
	})
	before := states(t, c, me)
	if answer, err := stranger.Drain(t.Context(), &ballastv1.LeavingDrainRequest{Force: true}); err != nil || len(answer.Changes)+len(answer.Servers) > 0 {
		t.Errorf("an agent that speaks for no server drains %v, %v", answer, err)
	}
	for key, state := range before {
		if state != "active" || len(look.Changes) > 0 {
			t.Errorf("after a look %s is %s (%v)", key, state, look.Changes)
		}
	}
	done, err := agent.Drain(t.Context(), &ballastv1.LeavingDrainRequest{})
	if err != nil || len(done.Changes) != 2 || len(done.Servers) != 2 {
		t.Fatalf("it drains %v, %v", done, err)
	}
	fleettest.Await(t, "its servers drain, and no other", func() bool {
		now := states(t, c, me)
		for key, state := range now {
			if wanted := strings.HasSuffix(key, "/"+own.Name); (state == "draining") != wanted {
				return false
			}
		}
		return len(now) == 4
	})
	if again, err := agent.Drain(t.Context(), &ballastv1.LeavingDrainRequest{}); err != nil || len(again.Changes) != 0 || len(again.Servers) != 2 || again.Servers[0].Server.State != "draining" {
		t.Errorf("once more: %v, %v", again, err)
	}
	last := api.NewLeavingClient([]string{c.address}, ca.Issue(pki.Agent, names[1].Name).Client())
	if _, err := last.Drain(t.Context(), &ballastv1.LeavingDrainRequest{}); len(api.WarningsOf(err)) == 0 {
		t.Errorf("nobody is left to take new connections, and it drains: %v", err)
	}
	if _, err := last.Drain(t.Context(), &ballastv1.LeavingDrainRequest{Force: true}); err != nil {
		t.Errorf("if that is meant: %v", err)
	}
	if changes, err := c.client(me).ListChanges(t.Context(), &ballastv1.ListChangesRequest{}); err != nil || !slices.ContainsFunc(changes.Changes, func(one *ballastv1.FleetChange) bool { return one.Name == own.Name && one.Role == "agent" }) {
		t.Errorf("the history does not say who it was: %v, %v", changes, err)
	}
}

// Promise: A load balancer of the configuration is drained by itself, another is not.
func TestALoadBalancerDrainsItselfAlone(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), nil)
	operator := c.client(ca.Issue(pki.Ctl, "me"))
	fleet := model.Fleet{Services: []model.Service{fleettest.Service("web", 1, 2).Service}, Nodes: []model.Node{{Name: "lb1", L2: model.L2{Interface: "eth0"}}, {Name: "lb2", L2: model.L2{Interface: "eth0"}}}}
	fleet.ApplyDefaults()
	fleettest.Await(t, "the controller has read its store", func() bool {
		_, err := operator.Apply(t.Context(), &ballastv1.ApplyRequest{Force: true, Services: []*ballastv1.Service{api.ServiceToProto(&fleet.Services[0])}, Nodes: api.NodesToProto(&fleet).Nodes})
		if connect.CodeOf(err) != connect.CodeUnavailable {
			fleettest.Require(t, err)
		}
		return err == nil
	})
	of := func(name string, r *ballastv1.LeavingDrainRequest) *ballastv1.LeavingDrainResponse {
		t.Helper()
		answer, err := api.NewLeavingClient([]string{c.address}, ca.Issue(pki.LB, name).Client()).Drain(t.Context(), r)
		fleettest.Require(t, err)
		return answer
	}
	if answer := of("lb3", &ballastv1.LeavingDrainRequest{}); answer.Node != nil || len(answer.Changes) > 0 || answer.OnRing {
		t.Errorf("one that the configuration does not name: %v", answer)
	}
	if answer := of("lb1", &ballastv1.LeavingDrainRequest{Look: true}); answer.Node.GetState() != "active" || len(answer.Changes) > 0 {
		t.Errorf("a look: %v", answer)
	}
	if answer := of("lb1", &ballastv1.LeavingDrainRequest{Force: true}); len(answer.Changes) != 1 {
		t.Errorf("it drains: %v", answer)
	}
	if answer := of("lb1", &ballastv1.LeavingDrainRequest{}); answer.Node.GetState() != "draining" || len(answer.Changes) > 0 {
		t.Errorf("once more: %v", answer)
	}
	if answer := of("lb2", &ballastv1.LeavingDrainRequest{Look: true}); answer.Node.GetState() != "active" {
		t.Errorf("the other: %v", answer)
	}
}

// Promise: A node that has left and joins again hears what of it is still drained, and the command that ends this.
func TestWhoJoinsHearsWhatOfItIsDrained(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c, client := inviting(t, ca, storetest.Open(t), io.Discard)
	operator := c.client(ca.Issue(pki.Ctl, "me"))
	web := fleettest.Service("web", 1, 2)
	own := web.Service.Servers[0].Name
	fleet := model.Fleet{Services: []model.Service{web.Service}, Nodes: []model.Node{{Name: "lb1", L2: model.L2{Interface: "eth0"}}, {Name: "lb2", L2: model.L2{Interface: "eth0"}}}}
	fleet.ApplyDefaults()
	_, err := operator.Apply(t.Context(), &ballastv1.ApplyRequest{Force: true, Services: []*ballastv1.Service{api.ServiceToProto(&fleet.Services[0])}, Nodes: api.NodesToProto(&fleet).Nodes})
	fleettest.Require(t, err)
	hears := func(role, name string) []string {
		t.Helper()
		key, err := pki.NextKey(t.TempDir(), name)
		fleettest.Require(t, err)
		joined, err := enrol.Join(t.Context(), c.address, invite(t, client, &ballastv1.InviteRequest{Role: role, Name: name}), name, key, "1.2.3")
		fleettest.Require(t, err)
		return joined.Drained
	}
	if lines := hears("lb", "lb2"); len(lines) > 0 {
		t.Errorf("a node that is active hears %q", lines)
	}
	_, err = operator.DrainNode(t.Context(), &ballastv1.NodeRequest{Node: "lb1"})
	fleettest.Require(t, err)
	if lines := hears("lb", "lb1"); !slices.Equal(lines, []string{"node lb1 is draining: `ballast ctl node undrain lb1`"}) {
		t.Errorf("a node that is drained hears %q", lines)
	}
	_, err = operator.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: own})
	fleettest.Require(t, err)
	fleettest.Await(t, "the engine knows it", func() bool { return states(t, c, ca.Issue(pki.Ctl, "me"))["web/"+own] == "draining" })
	if lines := hears("agent", own); !slices.Equal(lines, []string{"server " + own + " of web is draining: `ballast ctl server undrain web " + own + "`"}) {
		t.Errorf("the agent of a server that is drained hears %q", lines)
	}
}

// Promise: Who leaves ends its certificate, frees its name, and is forgotten; a copy of another certificate of the name ends itself alone.
func TestWhoLeavesFreesItsNameAndACopyDoesNot(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c, inviter := inviting(t, ca, storetest.Open(t), io.Discard)
	operator := c.client(ca.Issue(pki.Ctl, "me"))
	listed := func(name string) bool {
		nodes, err := operator.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		return slices.ContainsFunc(nodes.Nodes, func(n *ballastv1.NodeStatus) bool { return n.Name == name })
	}
	joined, err := enrolled(t, c.address, invite(t, inviter, &ballastv1.InviteRequest{Role: "agent"}), "s1")
	fleettest.Require(t, err)
	copied := ca.Issue(pki.Agent, "s1")
	answer, err := api.NewLeavingClient([]string{c.address}, copied.Client()).Leave(t.Context(), &ballastv1.LeaveRequest{})
	if err != nil || len(answer.Changes) != 1 || !strings.Contains(answer.Changes[0], pki.SerialOf(copied.Own())) || len(answer.Remains) != 1 || !strings.HasPrefix(answer.Remains[0], "s1 has a newer certificate as agent") {
		t.Fatalf("another certificate of the name: %v, %v", answer, err)
	}
	stream := fleettest.Join(t, c.address, joined)
	lost := func(role, name string) bool {
		nodes, err := operator.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		return slices.ContainsFunc(nodes.Nodes, func(n *ballastv1.NodeStatus) bool {
			return n.Role == role && n.Name == name && n.Ready == hub.ReadyLost
		})
	}
	leaving := api.NewLeavingClient([]string{c.address}, joined.Client())
	if answer, err := leaving.Drain(t.Context(), &ballastv1.LeavingDrainRequest{}); err != nil || len(answer.Changes) > 0 {
		t.Errorf("that has cut off the owner of the name: %v, %v", answer, err)
	}
	stream.Stream.CloseRequest()
	fleettest.Await(t, "it is lost", func() bool { return lost("agent", "s1") })
	another := api.NewLeavingClient([]string{c.address}, ca.Issue(pki.Agent, "s1").Client())
	if answer, err := another.Leave(t.Context(), &ballastv1.LeaveRequest{}); err != nil || len(answer.Changes) != 1 || !lost("agent", "s1") {
		t.Errorf("another certificate of the name, while the owner is lost: %v, %v", answer, err)
	}
	fleettest.Join(t, c.address, ca.Issue(pki.LB, "s1")).Stream.CloseRequest()
	fleettest.Await(t, "a load balancer of the name is lost", func() bool { return lost("lb", "s1") })
	answer, err = leaving.Leave(t.Context(), &ballastv1.LeaveRequest{})
	if err != nil || len(answer.Remains) > 0 {
		t.Fatalf("it leaves: %v, %v", answer, err)
	}
	if said := strings.Join(answer.Changes, "\n"); !strings.Contains(said, "agent s1: forgotten") || !strings.Contains(said, "revoked: the certificate of agent s1 with serial number "+pki.SerialOf(joined.Own())) || !strings.HasSuffix(said, ": it has left") {
		t.Errorf("it says %s", said)
	}
	list, err := operator.ListRevocations(t.Context(), &ballastv1.ListRevocationsRequest{})
	fleettest.Require(t, err)
	for _, r := range list.Revocations {
		if life := time.Until(r.Ends.AsTime()); r.Serial == pki.SerialOf(joined.Own()) && life > pki.DefaultEnrolledLife {
			t.Errorf("it is listed for %v", life)
		}
	}
	if lost("agent", "s1") || !lost("lb", "s1") {
		t.Error("it is listed still, or the load balancer of its name is not any more")
	}
	answer, err = api.NewLeavingClient([]string{c.address}, ca.Issue(pki.LB, "s1").Client()).Leave(t.Context(), &ballastv1.LeaveRequest{})
	if err != nil || !slices.Contains(answer.Changes, "lb s1: forgotten") || listed("s1") {
		t.Errorf("the load balancer, whose certificate is made by hand, leaves: %v, %v", answer, err)
	}
	if _, err := leaving.Leave(t.Context(), &ballastv1.LeaveRequest{}); err == nil {
		t.Error("it leaves twice")
	}
	fleettest.Await(t, "the name is free", func() bool {
		_, err := enrolled(t, c.address, invite(t, inviter, &ballastv1.InviteRequest{Role: "lb"}), "s1")
		return err == nil
	})
	// One that is connected, as a thief's may be, is not forgotten, but cut off.
	other, err := enrolled(t, c.address, invite(t, inviter, &ballastv1.InviteRequest{Role: "lb", Addresses: []string{"192.0.2.7"}}), "lb7")
	fleettest.Require(t, err)
	stream = fleettest.Join(t, c.address, other)
	answer, err = api.NewLeavingClient([]string{c.address}, other.Client()).Leave(t.Context(), &ballastv1.LeaveRequest{})
	if err != nil || len(answer.Remains) != 1 || !strings.Contains(answer.Remains[0], "lb lb7 is connected from") {
		t.Errorf("while it is connected: %v, %v", answer, err)
	}
	if why := stream.Ends(); why.Code() != connect.CodePermissionDenied {
		t.Errorf("its stream ends with %v", why)
	}
}

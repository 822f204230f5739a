package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

func says(epochs []uint32, current uint32, connections map[uint32]uint64) *ballastv1.FromNode {
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Keys{Keys: &ballastv1.KeyReport{Epochs: epochs, Current: current, Connections: connections}}}
}

// Two changes of keys in a row, each as soon as the controller lets it: never before every node has taken the one before.
//
// Promise: A key is not used before all nodes have it, and not dropped while clients echo it, unless forced.
// Also held by TestAFileThatTurnsKeysBackIsRefusedWithoutForceKeys and
// TestARotationOfKeysWaitsForSilentClientsAndLostNodes.
func TestKeysAreUsedAndDroppedOnlyWhenTheNodesOfTheFleetAreReady(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.New(), nil)
	client := c.client(ca.Issue(pki.Ctl, "alice"))
	apply(t, client, fleettest.Service("web", 1))
	lb, agent := fleettest.Join(t, c.address, ca.Issue(pki.LB, "lb1")), fleettest.Join(t, c.address, ca.Issue(pki.Agent, "s1"))
	applied := func() *ballastv1.FromNode {
		return &ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{Revision: lb.State().Revision}}}
	}
	lb.Send(applied())
	agent.State()
	refused := func(err error, why string) {
		t.Helper()
		if connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), why) {
			t.Fatalf("%v, want a refusal that says %q", err, why)
		}
	}
	use := func() error {
		_, err := client.UseKey(t.Context(), &ballastv1.KeyRequest{Epoch: 2})
		return err
	}
	drop := func() error {
		_, err := client.DropKey(t.Context(), &ballastv1.KeyRequest{Epoch: 1})
		return err
	}

	_, err := client.AddKey(t.Context(), &ballastv1.AddKeyRequest{})
	fleettest.Require(t, err)
	fleettest.Await(t, "the new key to be told", func() bool { return !strings.Contains(use().Error(), "nodes have not been sent") })
	refused(use(), "load balancer lb1 does not have the key of epoch 2 yet")
	refused(use(), "agent s1 has not reported which keys it has")
	hasKeys := func(want string) {
		t.Helper()
		list, err := client.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		have := ""
		for _, n := range list.Nodes {
			if n.Role != string(pki.Controller) {
				have += fmt.Sprintf("%s %v %d ", n.Name, n.Epochs, n.Epoch)
			}
		}
		if have != want {
			t.Errorf("nodes have keys %q, want %q", have, want)
		}
	}
	hasKeys("lb1 [] 0 s1 [] 0 ")
	agent.Send(says([]uint32{1}, 1, nil))
	fleettest.Await(t, "the agent's report", func() bool { return strings.Contains(use().Error(), "agent s1 does not have the key of epoch 2") })
	lb.Send(applied())
	fleettest.Await(t, "the load balancer to have the key", func() bool { return !strings.Contains(use().Error(), "load balancer") })
	hasKeys("lb1 [1 2] 1 s1 [1] 1 ")
	agent.Send(says([]uint32{1, 2}, 1, map[uint32]uint64{1: 4}))
	fleettest.Await(t, "all to have the key", func() bool { return use() == nil })

	fleettest.Await(t, "the turn to be told", func() bool { return !strings.Contains(drop().Error(), "nodes have not been sent") })
	refused(drop(), "load balancer lb1 does not have the keys as they are now yet")
	lb.Send(applied())
	agent.Send(says([]uint32{1, 2}, 2, map[uint32]uint64{1: 4, 2: 1}))
	fleettest.Await(t, "both to have the new key in use", func() bool {
		why := drop().Error()
		return !strings.Contains(why, "still writes") && !strings.Contains(why, "load balancer")
	})
	refused(drop(), "agent s1 has 4 living connections whose clients still echo epoch 1")
	keys, err := client.ListKeys(t.Context(), &ballastv1.ListKeysRequest{})
	fleettest.Require(t, err)
	if len(keys.Keys) != 2 || keys.Keys[0].Connections != 4 || len(keys.Keys[0].DropRefused) != 1 || keys.Keys[1].Connections != 1 || keys.OldestReport == nil {
		t.Errorf("keys %v", keys)
	}
	agent.Send(says([]uint32{1, 2}, 2, map[uint32]uint64{2: 5}))
	fleettest.Await(t, "nobody to echo the old key", func() bool { return drop() == nil })
}

// What a lost load balancer has pinned goes on with the keys that it had.
func TestALostLoadBalancerHoldsARotationUpUntilItIsBackOrItIsForced(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.New(), nil)
	client := c.client(ca.Issue(pki.Ctl, "alice"))
	apply(t, client, fleettest.Service("web", 1))
	lb1, lb2, agent := fleettest.Join(t, c.address, ca.Issue(pki.LB, "lb1")), fleettest.Join(t, c.address, ca.Issue(pki.LB, "lb2")), fleettest.Join(t, c.address, ca.Issue(pki.Agent, "s1"))
	takes := func(lb *fleettest.Conversation) {
		lb.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{Revision: lb.State().Revision}}})
	}
	takes(lb1)
	takes(lb2)
	agent.State()
	lb2.Stream.CloseRequest()
	fleettest.Await(t, "the loss", func() bool {
		answer, err := client.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		fleettest.Require(t, err)
		return slices.ContainsFunc(answer.Nodes, func(n *ballastv1.NodeStatus) bool { return n.Name == "lb2" && n.Ready == hub.ReadyLost })
	})
	_, err := client.AddKey(t.Context(), &ballastv1.AddKeyRequest{})
	fleettest.Require(t, err)
	takes(lb1)
	agent.Send(says([]uint32{1, 2}, 1, nil))
	refusedFor := func() string {
		keys, err := client.ListKeys(t.Context(), &ballastv1.ListKeysRequest{})
		fleettest.Require(t, err)
		return strings.Join(append(keys.Keys[1].UseRefused, keys.Keys[0].DropRefused...), "; ")
	}
	fleettest.Await(t, "the others to have the key", func() bool { why := refusedFor(); return !strings.Contains(why, "s1") && !strings.Contains(why, "lb1") })
	if _, err = client.UseKey(t.Context(), &ballastv1.KeyRequest{Epoch: 2}); connect.CodeOf(err) != connect.CodeFailedPrecondition ||
		!strings.Contains(err.Error(), "load balancer lb2 is lost") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("use while lb2 is lost: %v", err)
	}
	takes(fleettest.Join(t, c.address, ca.Issue(pki.LB, "lb2")))
	fleettest.Await(t, "lb2 to be back with the key", func() bool { return refusedFor() == "" })
	_, err = client.UseKey(t.Context(), &ballastv1.KeyRequest{Epoch: 2})
	fleettest.Require(t, err)

	takes(lb1)
	agent.Send(says([]uint32{1, 2}, 2, nil))
	lb1.Stream.CloseRequest()
	drop := func(force bool) error {
		_, err := client.DropKey(t.Context(), &ballastv1.KeyRequest{Epoch: 1, Force: force})
		return err
	}
	fleettest.Await(t, "the loss of lb1", func() bool {
		err := drop(false)
		return err == nil || strings.Contains(err.Error(), "load balancer lb1 is lost")
	})
	fleettest.Require(t, drop(true))
}

// Nodes go on with the keys of a store that was lost.
//
// Promise: An emptied store is not given other keys than living connections carry without `--force-keys`, while
// connected agents report them.
// Also held by TestKeysThatLackThoseOfLivingConnectionsAreARisk.
func TestAnEmptyStoreGetsNoNewKeysWhileAgentsCountConnections(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.New(), nil)
	client := c.client(ca.Issue(pki.Ctl, "alice"))
	agent := fleettest.Join(t, c.address, ca.Issue(pki.Agent, "s1"))
	agent.Send(says([]uint32{2}, 2, map[uint32]uint64{2: 5}))
	view := fleettest.Service("web", 1)
	service := api.ServiceToProto(&view.Service)
	service.Vip = "198.51.100.1"
	request := &ballastv1.ApplyRequest{Services: []*ballastv1.Service{service}, Force: true, DryRun: true}
	fleettest.Await(t, "the risk", func() bool {
		answer, err := client.Apply(t.Context(), request)
		return err == nil && strings.Contains(strings.Join(answer.KeyRisks, "\n"), "5 living connections carry keys that the store does not have")
	})
	request.DryRun = false
	if _, err := client.Apply(t.Context(), request); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("new keys: %v", err)
	}
	wrong, right := [16]byte{1}, [16]byte{2}
	request.Keys = &ballastv1.Keys{Placement: wrong[:], Current: 1, Cookie: map[uint32][]byte{1: wrong[:]}}
	if _, err := client.Apply(t.Context(), request); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "5 living connections carry a key of epoch 2") ||
		!strings.Contains(err.Error(), "Backup and restore") {
		t.Errorf("the keys of an older file: %v", err)
	}
	report := says([]uint32{2}, 2, map[uint32]uint64{2: 5})
	report.GetKeys().Fingerprints = map[uint32][]byte{2: rotation.Fingerprint(right), 3: {1}}
	agent.Send(report)
	request.Keys.Current, request.Keys.Cookie = 2, map[uint32][]byte{2: wrong[:]}
	fleettest.Await(t, "the fingerprint", func() bool {
		request.DryRun = true
		answer, err := client.Apply(t.Context(), request)
		return err == nil && strings.Contains(strings.Join(answer.KeyRisks, "\n"), "5 living connections carry another key of epoch 2")
	})
	request.Keys.Cookie[2] = right[:]
	if answer, err := client.Apply(t.Context(), request); err != nil || len(answer.KeyRisks) > 0 {
		t.Errorf("the right key: %v, %v", answer, err)
	}
	request.Keys, request.DryRun = nil, false
	request.ForceKeys = true
	_, err := client.Apply(t.Context(), request)
	fleettest.Require(t, err)
}

package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/memory"
)

func says(epochs []uint32, current uint32, connections map[uint32]uint64) *ballastv1.FromNode {
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Keys{Keys: &ballastv1.KeyReport{Epochs: epochs, Current: current, Connections: connections}}}
}

// Two changes of keys in a row, each as soon as the controller lets it: never before every node has taken the one before.
func TestKeysAreUsedAndDroppedOnlyWhenTheNodesOfTheFleetAreReady(t *testing.T) {
	ca := newAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", memory.New(), nil)
	client := c.client(ca.issue(pki.Ctl, "alice"))
	apply(t, client, testService("web", 1))
	lb, agent := join(t, c.address, ca.issue(pki.LB, "lb1")), join(t, c.address, ca.issue(pki.Agent, "s1"))
	applied := func() *ballastv1.FromNode {
		return &ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{Revision: lb.state().Revision}}}
	}
	lb.send(applied())
	agent.state()
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
	require(t, err)
	await(t, "the new key to be told", func() bool { return !strings.Contains(use().Error(), "nodes have not been told") })
	refused(use(), "load balancer lb1 does not have the key of epoch 2 yet")
	refused(use(), "agent s1 has not reported which keys it has")
	hasKeys := func(want string) {
		t.Helper()
		list, err := client.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		require(t, err)
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
	agent.send(says([]uint32{1}, 1, nil))
	await(t, "the agent's report", func() bool { return strings.Contains(use().Error(), "agent s1 does not have the key of epoch 2") })
	lb.send(applied())
	await(t, "the load balancer to have the key", func() bool { return !strings.Contains(use().Error(), "load balancer") })
	hasKeys("lb1 [1 2] 1 s1 [1] 1 ")
	agent.send(says([]uint32{1, 2}, 1, map[uint32]uint64{1: 4}))
	await(t, "all to have the key", func() bool { return use() == nil })

	await(t, "the turn to be told", func() bool { return !strings.Contains(drop().Error(), "nodes have not been told") })
	refused(drop(), "load balancer lb1 does not have the keys as they are now yet")
	lb.send(applied())
	agent.send(says([]uint32{1, 2}, 2, map[uint32]uint64{1: 4, 2: 1}))
	await(t, "the agent to write the new key", func() bool { return !strings.Contains(drop().Error(), "still writes") })
	refused(drop(), "agent s1 has 4 living connections whose clients still echo epoch 1")
	keys, err := client.ListKeys(t.Context(), &ballastv1.ListKeysRequest{})
	require(t, err)
	if len(keys.Keys) != 2 || keys.Keys[0].Connections != 4 || len(keys.Keys[0].DropRefused) != 1 || keys.Keys[1].Connections != 1 || keys.OldestReport == nil {
		t.Errorf("keys %v", keys)
	}
	agent.send(says([]uint32{1, 2}, 2, map[uint32]uint64{2: 5}))
	await(t, "nobody to echo the old key", func() bool { return drop() == nil })
}

// What a lost load balancer has pinned goes on with the keys that it had.
func TestALostLoadBalancerHoldsARotationUpUntilItIsBackOrItIsForced(t *testing.T) {
	ca := newAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", memory.New(), nil)
	client := c.client(ca.issue(pki.Ctl, "alice"))
	apply(t, client, testService("web", 1))
	lb1, lb2, agent := join(t, c.address, ca.issue(pki.LB, "lb1")), join(t, c.address, ca.issue(pki.LB, "lb2")), join(t, c.address, ca.issue(pki.Agent, "s1"))
	takes := func(lb *conversation) {
		lb.send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{Revision: lb.state().Revision}}})
	}
	takes(lb1)
	takes(lb2)
	agent.state()
	lb2.stream.CloseRequest()
	await(t, "the loss", func() bool {
		answer, err := client.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
		require(t, err)
		return slices.ContainsFunc(answer.Nodes, func(n *ballastv1.NodeStatus) bool { return n.Name == "lb2" && n.Ready == lost })
	})
	_, err := client.AddKey(t.Context(), &ballastv1.AddKeyRequest{})
	require(t, err)
	takes(lb1)
	agent.send(says([]uint32{1, 2}, 1, nil))
	refusedFor := func() string {
		keys, err := client.ListKeys(t.Context(), &ballastv1.ListKeysRequest{})
		require(t, err)
		return strings.Join(append(keys.Keys[1].UseRefused, keys.Keys[0].DropRefused...), "; ")
	}
	await(t, "the others to have the key", func() bool { why := refusedFor(); return !strings.Contains(why, "s1") && !strings.Contains(why, "lb1") })
	if _, err = client.UseKey(t.Context(), &ballastv1.KeyRequest{Epoch: 2}); connect.CodeOf(err) != connect.CodeFailedPrecondition ||
		!strings.Contains(err.Error(), "load balancer lb2 is lost") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("use while lb2 is lost: %v", err)
	}
	takes(join(t, c.address, ca.issue(pki.LB, "lb2")))
	await(t, "lb2 to be back with the key", func() bool { return refusedFor() == "" })
	_, err = client.UseKey(t.Context(), &ballastv1.KeyRequest{Epoch: 2})
	require(t, err)

	takes(lb1)
	agent.send(says([]uint32{1, 2}, 2, nil))
	lb1.stream.CloseRequest()
	drop := func(force bool) error {
		_, err := client.DropKey(t.Context(), &ballastv1.KeyRequest{Epoch: 1, Force: force})
		return err
	}
	await(t, "the loss of lb1", func() bool {
		err := drop(false)
		return err == nil || strings.Contains(err.Error(), "load balancer lb1 is lost")
	})
	require(t, drop(true))
}

func TestAReportOfKeysIsForAgentsAloneAndCutShort(t *testing.T) {
	ca, hub := newAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.issue(pki.Controller, "c1").Server())
	lb := join(t, address, ca.issue(pki.LB, "lb1"))
	lb.send(says([]uint32{1}, 1, nil))
	if why := lb.ends(); !strings.Contains(why.Message(), "not lb") {
		t.Errorf("a load balancer's report of keys: %v", why)
	}
	many := map[uint32]uint64{}
	var epochs []uint32
	for i := range uint32(1000) {
		many[i], epochs = 1, append(epochs, i)
	}
	agent := join(t, address, ca.issue(pki.Agent, "s1"))
	agent.send(says(epochs, 1, many))
	await(t, "the report", func() bool {
		for _, n := range hub.keyNodes().List {
			if n.Report != nil {
				return len(n.Report.Epochs) <= reportedEpochs && len(n.Report.Connections) <= reportedEpochs
			}
		}
		return false
	})
}

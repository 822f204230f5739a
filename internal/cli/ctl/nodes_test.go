package ctl_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

const tieredFile = `nodes:
  - {name: lb1, tier: first}
  - {name: lb2, tier: second, address: 192.0.2.2}
services:
  - name: web
    vip: 198.51.100.10
    ports: [80]
    affinity: table
    servers:
      - {name: s1, address: 10.0.0.1}
`

func TestTiersAreRunByCtl(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.memory.Members = []*ballastv1.NodeStatus{{Role: "agent", Name: "s1", Version: "1.0"}, {Role: "lb", Name: "lb2", Health: "unhealthy", HealthDetail: "refused"}}
		file := write(t, tieredFile)
		ctl.expect("apply -f "+file+" --yes", "+ node lb1: added with tier first", "+ node lb2: added with tier second, address 192.0.2.2, id 1, active")
		ctl.expect("node add lb3 --tier second --address 192.0.2.3", "node lb3: added with tier second, address 192.0.2.3, id 2, active")
		ctl.expect("--json node add lb4 --tier second --address 192.0.2.4", `"id": 3`)
		ctl.expect("node health --check http --check-port 9435 --check-path /metrics", "node_health: check none -> http", "node_health: port 0 -> 9435")
		ctl.expect("node drain lb3", "node lb3: state active -> draining")
		ctl.expect("nodes", "TIER", "lb2", "unhealthy: refused", "first", "draining")
		ctl.expect("--json nodes", `"tier": "second"`, `"address": "192.0.2.3"`, `"id": 2`, `"state": "draining"`, `"health": "unhealthy"`)
		ctl.expect("node undrain lb3", "node lb3: state draining -> active")
		ctl.expect("node remove lb4", "node lb4: removed")
		ctl.refuse("node drain lb4", `there is no node "lb4"`)
		ctl.refuse("node drain lb1", "only nodes of the second tier, or with bgp or l2, have one")
		ctl.refuse("node add lb5 --tier second --address 10.0.0.1", "the address of server s1 of service web")
		ctl.refuse("service set web --table-index-bits 5", "services.web.table.index_bits: living connections carry indices of another width: keep 6")
		ctl.expect("service set web --table-idle-timeout 1m", "service web: table.idle_timeout 5m0s -> 1m0s")

		// What is printed is a file that changes nothing.
		printed := write(t, ctl.must("fleet"))
		ctl.expect("apply -f "+printed+" --dry-run", "no changes")
		ctl.expect("fleet -o json", `"node_bits": 3`, `"node_health"`)
	})
}

func TestALoadBalancerWithBGPIsDrainedByCtl(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		const node = "nodes:\n  - name: edge1\n    bgp: {as: 64600, neighbors: [192.0.2.1 as 64512], password_file: /etc/ballast/bgp.password}\n"
		ctl.expect("apply -f "+write(t, node+"services: []\n")+" --yes", "+ node edge1: added with bgp, AS 64600, neighbors [192.0.2.1 as 64512]")
		ctl.expect("node drain edge1", "node edge1: state active -> draining")
		ctl.expect("nodes", "edge1", "draining", "AS 64600")
		ctl.expect("node undrain edge1", "node edge1: state draining -> active")
		printed := write(t, ctl.must("fleet"))
		ctl.expect("apply -f "+printed+" --dry-run", "no changes")
		ctl.refuse("apply -f "+write(t, node+"    tier: second\n    address: 192.0.2.9\nservices: []\n")+" --yes", "nodes of the second get what the first sends them")
		ctl.expect("node remove edge1", "node edge1: removed")
	})
}

func TestADrainOfTheRingEndsWhenOthersHaveEverything(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		lb := &ballastv1.ReplicaStatus{Name: "lb1", Number: 1, State: "on", Share: 0.25}
		ctl.memory.Ring = &ballastv1.ListReplicasResponse{Needed: true, Version: 3, Phase: "synced", Nodes: []*ballastv1.ReplicaStatus{lb}}
		ctl.refuseWaiting("replica drain lb1", "no longer waiting")
		ctl.memory.Set(func() { lb.State = "lost" })
		ctl.refuseWaiting("replica drain lb1", "no longer waiting")
		ctl.memory.Set(func() { lb.Share, ctl.memory.Ring.Phase = 0, "syncing" })
		ctl.refuseWaiting("replica drain lb1", "no longer waiting (drained, syncing)")
		ctl.memory.Set(func() { ctl.memory.Ring.Phase = "synced" })
		ctl.must("replica", "drain", "lb1", "--wait")
	})
}

func TestALostNodeIsForgotten(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.memory.Members = []*ballastv1.NodeStatus{{Role: "lb", Name: "lb7", Ready: "lost"}, {Role: "agent", Name: "s1", Epochs: []uint32{3, 4}, Epoch: 4, Silence: durationpb.New(64 * time.Second)}}
		ctl.expect("nodes", "REVISION  KEYS", "3,4*", "1m4s ago")
		ctl.expect("node list -o json", `"silence_seconds": 64`)
		ctl.expect("node forget lb7", "lb7: forgotten")
		ctl.refuse("node forget lb7", "not lost")
		ctl.refuse("node forget s1", "not lost")
	})
}

func TestALoadBalancerWithBGPIsAdded(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.refuse("node add lb4", "[tier bgp-as l2-interface]")
		ctl.refuse("node add lb4 --bgp-as 64600", "neighbors")
		out := ctl.must("node", "add", "lb4", "--bgp-as", "64600", "--bgp-neighbors", "10.20.4.1 as 64512, 10.20.4.2", "--bgp-neighbor-as", "64513",
			"--bgp-hold-time", "9s", "--bgp-bfd-interval", "200ms", "--bgp-communities", "64512:100,no-export", "--bgp-password-file", "/etc/ballast/bgp.password")
		if !strings.Contains(out, "node lb4: added") {
			t.Errorf("%q", out)
		}
		fleet, _, err := ctl.memory.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var want model.BGP
		want.AS, want.NeighborAS, want.PasswordFile = 64600, 64513, "/etc/ballast/bgp.password"
		for _, text := range []string{"10.20.4.1 as 64512", "10.20.4.2"} {
			neighbor, err := model.ParseNeighbor(text)
			if err != nil {
				t.Fatal(err)
			}
			want.Neighbors = append(want.Neighbors, neighbor)
		}
		have := fleet.Node("lb4").BGP
		if have.AS != want.AS || have.NeighborAS != want.NeighborAS || have.PasswordFile != want.PasswordFile || !slices.Equal(have.Neighbors, want.Neighbors) ||
			have.HoldTime != model.Duration(9*time.Second) || have.BFD.Interval != model.Duration(200*time.Millisecond) || len(have.Communities) != 2 {
			t.Errorf("it has %+v", have)
		}
		ctl.expect("nodes -o wide", "active, AS 64600")
		ctl.expect("node drain lb4 --yes", "node lb4: state active -> draining")
		ctl.expect("node remove lb4 --yes", "node lb4: removed")
	})
}

func TestWhatIsWrongWithNodesOfAFileIsSaidWithItsLine(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		file := write(t, tieredFile+"node_health:\n  check: tcp\n")
		ctl.refuse("apply -f "+file+" --dry-run", file+":11: node_health.port: missing")
	})
}

// A load balancer without a controller goes on by the state that it was sent last, and reports nothing.
func TestALostLoadBalancerLeavesNoServerDrained(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		ctl.memory.Live = func(uint16) uint64 { return 0 }
		ctl.must("apply", "--yes", "-f", write(t, fleetFile))
		ctl.memory.Set(func() {
			ctl.memory.Members = []*ballastv1.NodeStatus{{Role: "lb", Name: "lb1", Ready: "yes"}, {Role: "lb", Name: "lb7", Ready: "lost"}, {Role: "agent", Name: "s9", Ready: "lost"}}
		})
		ctl.expect("servers", " 1?   0.0   0\n", "? load balancer lb7 is lost, and may still send connections: figures with ? do not include them\n") // agents count them
		ctl.expect("--json servers", `"lost_load_balancers": [`)
		ctl.memory.Set(func() { ctl.memory.Estimated = true })
		ctl.expect("servers", " 1?   0.0   ~0?\n")
		ctl.memory.Set(func() { ctl.memory.Estimated = false })

		ctl.refuse("server drain web s1 --wait --timeout 5s", "0 connections remain; load balancer lb7 is lost and may still send new ones: "+
			"connect it again or, once it is stopped, `ballast ctl node forget NAME`: server s1 of web goes on draining")
		ctl.must("node", "forget", "lb7")
		if out := ctl.must("servers"); strings.Contains(out, "?") {
			t.Errorf("lost after it was forgotten: %s", out)
		}
		ctl.expect("server drain web s1 --wait", "server s1 is drained: no connection is left\n")
	})
}

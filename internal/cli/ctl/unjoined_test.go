package ctl_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/cli/ctl/ask"
)

// Promise: `apply` names load balancers and servers of a file that nobody has joined by: a misspelt name waits for ever.
func TestApplyNamesWhoHasNeverJoined(t *testing.T) {
	byEveryWay(t, func(t *testing.T, ctl *terminal) {
		const (
			noNode   = "node lb9: no load balancer of that name has joined: start it, or correct the name"
			noAgents = "service web: no agent has joined of server s3, s4, s5, s6, s7, 2 more: connections there carry no cookie until one has"
		)
		file := "nodes:\n  - {name: lb1, bgp: {as: 64600, neighbors: [192.0.2.1 as 64512]}}\n  - {name: lb9, bgp: {as: 64600, neighbors: [192.0.2.1 as 64512]}}\n" + fleetFile
		for _, name := range []string{"3", "4", "5", "6", "7", "8", "9"} {
			file += "      - {name: s" + name + ", address: 10.0.0." + name + "}\n"
		}
		path := write(t, file+"      - {name: away, address: 10.0.0.10, state: off}\n"+
			"  - {name: hashed, vip: 198.51.100.11, ports: [80], affinity: hash, servers: [{name: h1, address: 10.0.0.11}]}\n")
		plan := func() string {
			said, err := ctl.try("apply", "--dry-run", "-f", path)
			if !errors.Is(err, ask.ChangesWouldBeMade) {
				t.Errorf("%v: %s", err, said)
			}
			return said
		}
		if said := plan(); strings.Contains(said, "joined") { // of a load balancer that knows of itself alone
			t.Errorf("of what nobody knows: %s", said)
		}
		ctl.memory.Members = []*ballastv1.NodeStatus{
			{Role: "controller", Name: "c1", Ready: "yes"}, {Role: "lb", Name: "lb1", Ready: "lost"}, {Role: "lb", Name: "lb9", Problems: []string{"not connected"}},
			{Role: "agent", Name: "s1", Ready: "yes"}, {Role: "agent", Name: "host7", Address: "10.0.0.2:4711", Ready: "no"},
		}
		if said := plan(); strings.Count(said, "joined") != 2 || !strings.Contains(said, noNode) || !strings.Contains(said, noAgents) {
			t.Errorf("the plan says %s", said)
		}
		said, err := ctl.try("apply", "--yes", "-o", "json", "-f", path)
		if err != nil || !strings.Contains(said, `"notes": [`) || !strings.Contains(said, noNode) || !strings.Contains(said, noAgents) {
			t.Errorf("%v: %s", err, said)
		}
	})
}

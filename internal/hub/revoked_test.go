package hub

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

func revocationsOf(from, to int) (list []pki.Revocation) {
	for i := from; i < to; i++ {
		list = append(list, pki.Revocation{Serial: fmt.Sprintf("%040x", i), At: time.Now(), Ends: time.Now().Add(time.Hour)})
	}
	return list
}

// Who joins is told of all, before it is told anything that it might believe; who is there, of what is new.
func TestNodesAreToldWhoIsRevokedBeforeAnythingElse(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	first := revocationsOf(0, revocationsMax+1)
	hub.Topics.SetRevoked(first, first)
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1)))
	lb := ca.Issue(pki.LB, "lb1")
	hello := fleettest.Hello(lb)
	hello.TakesRevocations = true
	c := fleettest.Converse(t, address, lb, hello)
	c.Next() // the welcome
	for _, wanted := range []int{revocationsMax, 1} {
		if told := len(c.Next().GetRevocations().GetRevocations()); told != wanted {
			t.Fatalf("told of %d, want %d", told, wanted)
		}
	}
	c.State()
	all := revocationsOf(0, revocationsMax+3)
	hub.Topics.SetRevoked(all, all[len(first):])
	if told := c.Next().GetRevocations().GetRevocations(); len(told) != 2 || told[0].Serial != all[len(first)].Serial {
		t.Errorf("told of %v", told)
	}
}

// An older node is not told what it does not know, and operators are told that.
func TestNodesThatKnowNoRevocationsAreNamed(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1)))
	c := fleettest.Join(t, address, ca.Issue(pki.LB, "old"))
	c.State()
	named := func() bool { return strings.Contains(fmt.Sprint(hub.Nodes.List()), "it accepts revoked certificates") }
	if named() {
		t.Error("it is named, and nothing is revoked")
	}
	list := revocationsOf(0, 1)
	hub.Topics.SetRevoked(list, list)
	hub.Topics.SetState(fleettest.View(2, fleettest.Service("web", 2)))
	c.State() // the next that it is told
	if !named() {
		t.Error("it is not named")
	}
}

// Promise: A certificate that expires ends no stream; its owner is refused when it joins again.
func TestACertificateThatExpiresEndsNoStream(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1)))
	fleettest.Require(t, pki.Issue(ca.Dir, pki.Request{Role: pki.Agent, Name: "s1", Life: 3 * time.Second}))
	agent, err := pki.Load(ca.Dir, "s1", pki.Agent)
	fleettest.Require(t, err)
	c := fleettest.Join(t, address, agent)
	c.State()
	fleettest.Await(t, "the certificate has expired", func() bool { return time.Now().After(agent.Own().NotAfter) })
	hub.Topics.SetState(fleettest.View(2, fleettest.Service("web", 1, 2)))
	if s := c.State(); s.Revision != 2 {
		t.Errorf("it is sent revision %d", s.Revision)
	}
	if nodes := hub.Nodes.List(); len(nodes) != 1 || nodes[0].Name != "s1" {
		t.Errorf("connected: %v", nodes)
	}
	again := fleettest.Converse(t, address, agent, fleettest.Hello(agent))
	if _, err := again.Receive(); err == nil {
		t.Error("it joins again")
	}
	if warnings := agent.Warnings(time.Now()); !strings.Contains(fmt.Sprint(warnings), "has expired") {
		t.Errorf("its status says %v", warnings)
	}
}

package hub

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

// hasSources reports whether agents are told these addresses of load balancers, and these that have none.
func hasSources(addresses, silent string) func(*ballastv1.TunnelSources) bool {
	return func(list *ballastv1.TunnelSources) bool {
		return strings.Join(list.Addresses, " ") == addresses && strings.Join(list.Silent, " ") == silent
	}
}

// joinFrom joins with addresses.
func joinFrom(t *testing.T, address string, credentials *pki.Credentials, from ...string) *fleettest.Conversation {
	t.Helper()
	greeting := fleettest.Hello(credentials)
	greeting.Addresses = from
	c := fleettest.Converse(t, address, credentials, greeting)
	if c.Next().GetWelcome() == nil {
		t.Fatal("no welcome")
	}
	return c
}

func conditionAt(addresses ...string) *ballastv1.FromNode {
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: &ballastv1.Condition{Ready: true, Addresses: addresses}}}
}

func TestAgentsAreToldWhereTunnelsComeFrom(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	agent := fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	agent.Sources("before there is a state", func(list *ballastv1.TunnelSources) bool {
		return hasSources("", "")(list) && list.Controller == "c1" && len(list.Alive) == 0
	})
	hub.Topics.SetControllers([]string{"c1", "c2"})
	agent.Sources("who lives", func(list *ballastv1.TunnelSources) bool { return slices.Equal(list.Alive, []string{"c1", "c2"}) })
	lb1 := joinFrom(t, address, ca.Issue(pki.LB, "lb1"), "2001:db8::11", "10.0.0.11")
	agent.Sources("the first", hasSources("10.0.0.11 2001:db8::11", ""))
	old := fleettest.Join(t, address, ca.Issue(pki.LB, "lb2")) // tells no address
	agent.Sources("one that tells none", hasSources("10.0.0.11 2001:db8::11", "lb2"))
	lb1.Send(conditionAt("10.0.0.11", "10.0.0.19"))
	agent.Sources("another address", hasSources("10.0.0.11 10.0.0.19", "lb2"))
	old.Send(condition(true))
	lb1.Stream.CloseRequest() // may forward without controllers
	old.Stream.CloseRequest()
	fleettest.Await(t, "the loss", func() bool { return len(hub.Nodes.Lost()) == 2 })
	late := fleettest.Join(t, address, ca.Issue(pki.Agent, "s2"))
	late.Sources("those that were here", hasSources("10.0.0.11 10.0.0.19", "lb2"))
	joinFrom(t, address, ca.Issue(pki.LB, "lb2"), "10.0.0.12")
	late.Sources("one is upgraded", hasSources("10.0.0.11 10.0.0.12 10.0.0.19", ""))
	hub.Topics.mutex.Lock()
	gone := hub.Topics.sources.of["lb1"]
	gone.left = time.Now().Add(-LostLife - time.Second)
	hub.Topics.sources.of["lb1"] = gone
	hub.Topics.mutex.Unlock()
	joinFrom(t, address, ca.Issue(pki.LB, "lb3"), "10.0.0.13")
	late.Sources("a day later", hasSources("10.0.0.12 10.0.0.13", ""))
}

// Whoever adds an address can send to servers past the routers: it takes the certificate of a load balancer.
func TestOnlyLoadBalancersSayWhereTunnelsComeFrom(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	watcher := fleettest.Join(t, address, ca.Issue(pki.Agent, "watcher"))
	forger := joinFrom(t, address, ca.Issue(pki.Agent, "forger"), "203.0.113.1")
	forger.Send(conditionAt("203.0.113.2"))
	credentials := ca.Issue(pki.Agent, "other")
	lie := fleettest.Hello(credentials)
	lie.Role, lie.Addresses = string(pki.LB), []string{"203.0.113.3"}
	if why := fleettest.Converse(t, address, credentials, lie).Ends(); !strings.Contains(why.Message(), "is for role agent, not lb") {
		t.Errorf("refused with %v", why)
	}
	lie = fleettest.Hello(ca.Issue(pki.LB, "lb1"))
	lie.Name, lie.Addresses = "lb9", []string{"203.0.113.4"}
	fleettest.Converse(t, address, ca.Issue(pki.LB, "lb1"), lie).Ends()
	fleettest.Await(t, "the forger's word", func() bool { return len(hub.Nodes.List()) == 2 && hub.Nodes.List()[0].Ready == "yes" })
	joinFrom(t, address, ca.Issue(pki.LB, "lb1"), "10.0.0.11")
	watcher.Sources("a load balancer's", func(list *ballastv1.TunnelSources) bool {
		if strings.Contains(fmt.Sprint(list.Addresses, list.Silent), "203.0.113") || len(list.Silent) > 0 {
			t.Fatalf("forged: %v", list)
		}
		return hasSources("10.0.0.11", "")(list)
	})
}

func TestOnlyAddressesOfHostsAreTakenAndNotWithoutEnd(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	agent := fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	lb := joinFrom(t, address, ca.Issue(pki.LB, "lb1"), "0.0.0.0", "::", "224.0.0.1", "ff02::1", "127.0.0.1", "::1", "fe80::1", "fe80::1%eth0", "10.0.0.0/8", "lb1", "", "::ffff:10.0.0.11")
	agent.Sources("what makes sense", hasSources("10.0.0.11", ""))
	var many []string
	for i := range 2 * sourcesOfOne {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i>>8, i&255))
	}
	lb.Send(conditionAt(many...))
	agent.Sources("many", func(list *ballastv1.TunnelSources) bool { return len(list.Addresses) == sourcesOfOne-1 }) // 10.0.0.11 counts for a day
	lb.Send(conditionAt("10.2.0.1", "10.1.0.7"))
	agent.Sources("others the same day", hasSources("10.1.0.7", ""))
	hub.Topics.mutex.Lock()
	for known := range hub.Topics.sources.of["lb1"].known {
		hub.Topics.sources.of["lb1"].known[known] = time.Now().Add(-LostLife - time.Second)
	}
	hub.Topics.mutex.Unlock()
	lb.Send(conditionAt("10.2.0.1", "10.1.0.7"))
	agent.Sources("a day later", hasSources("10.1.0.7 10.2.0.1", ""))
	lb.Stream.CloseRequest()
	fleettest.Await(t, "the loss", func() bool { return len(hub.Nodes.Lost()) == 1 })
	if _, err := hub.Nodes.Forget(false, "lb1", ""); err != nil {
		t.Fatal(err)
	}
	agent.Sources("forgotten", hasSources("", ""))
}

// Of two streams of one name the newer one speaks.
func TestAStreamThatWasReplacedSaysNothingOfAddresses(t *testing.T) {
	hub := testHub(t, nil)
	join := func(addresses ...string) *peer {
		p := newPeer(pki.Identity{Role: pki.LB, Name: "lb1"}, &ballastv1.Hello{Addresses: addresses}, &call{request: httptest.NewRequest("POST", "/", nil)}, &DefaultLimits)
		hub.enter(p)
		return p
	}
	before, now := join("10.0.0.10"), join("10.0.0.11")
	for p, address := range map[*peer]string{now: "10.0.0.11", before: "203.0.113.1"} {
		fleettest.Require(t, hub.report(p, conditionAt(address)))
	}
	if list := hub.Topics.sources.list; !hasSources("10.0.0.11", "")(list) {
		t.Errorf("sent is %v", list)
	}
}

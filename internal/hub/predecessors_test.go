package hub

import (
	"net"
	"net/http"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

func TestOnlyConnectedLoadBalancersCountWhatGoesToPredecessors(t *testing.T) {
	hub := testHub(t, func(*Options) {})
	join := func(role pki.Role, name, address string) *peer {
		p := newPeer(pki.Identity{Role: role, Name: name}, &ballastv1.Hello{Addresses: []string{address}},
			&call{request: &http.Request{RemoteAddr: net.JoinHostPort(address, "40000")}}, &hub.options.Limits)
		hub.enter(p)
		return p
	}
	tell := func(p *peer, counts map[string]uint64) {
		t.Helper()
		fleettest.Require(t, hub.report(p, &ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: &ballastv1.Condition{Predecessors: counts}}}))
	}
	expect := func(when string, count uint64, known bool) {
		t.Helper()
		if have, tells := hub.Nodes.PredecessorConnections("web", func(name string) bool { return name == "first" }); have != count || tells != known {
			t.Errorf("%s: %d, %v; want %d, %v", when, have, tells, count, known)
		}
	}
	expect("nobody is there", 0, false)
	tell(join(pki.Agent, "s1", "10.0.0.11"), map[string]uint64{"web": 9})
	expect("an agent tells", 0, false)
	lb1, lb2 := join(pki.LB, "lb1", "10.0.0.1"), join(pki.LB, "lb2", "10.0.0.2")
	join(pki.LB, "first", "10.0.0.3")
	tell(lb1, map[string]uint64{"web": 0})
	expect("one tells that there are none, and one nothing", 0, false)
	tell(lb2, map[string]uint64{"web": 3, "dns": 5})
	expect("the other has some", 3, true)
	tell(lb1, map[string]uint64{"web": 4})
	expect("both have", 7, true)
	hub.Nodes.leave(lb2)
	expect("one has gone", 4, true)
	tell(lb1, map[string]uint64{"dns": 1})
	expect("it counts no more", 0, false)
}

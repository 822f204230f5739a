package hub

import (
	"bytes"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/pki"
)

func replicaReportOf(r *ballastv1.ReplicaReport) *ballastv1.FromNode {
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Replica{Replica: r}}
}

// nextRing skips what else a load balancer is told.
func nextRing(t *testing.T, c *fleettest.Conversation) *ballastv1.ReplicaView {
	t.Helper()
	for {
		if view := c.Next().GetReplicas(); view != nil {
			return view
		}
	}
}

func TestLoadBalancersAreToldTheRingAsItIsNowAndTheSyncsThatTheyLead(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1))
	view := func(version uint32) *ballastv1.ReplicaView {
		return &ballastv1.ReplicaView{Revision: uint64(version), Version: version, Chain: 2, Nodes: []*ballastv1.ReplicaNode{{Number: 1, Name: "lb1"}}}
	}
	hub.Topics.SetReplicas(view(1), nil)
	one, two := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1")), fleettest.Join(t, address, ca.Issue(pki.LB, "lb2"))
	for _, c := range []*fleettest.Conversation{one, two} {
		if told := nextRing(t, c); told.Version != 1 || len(told.Starts) != 0 {
			t.Fatalf("who joins is told %v", told)
		}
	}
	hub.Topics.SetReplicas(view(2), map[string][]*ballastv1.ReplicaSync{"lb2": {{Id: 7, Low: 1, High: 2}}})
	if told := nextRing(t, one); told.Version != 2 || len(told.Starts) != 0 {
		t.Errorf("lb1 is told %v", told)
	}
	if told := nextRing(t, two); told.Version != 2 || len(told.Starts) != 1 || told.Starts[0].Id != 7 {
		t.Errorf("lb2 is told %v", told)
	}
	hub.Topics.SetReplicas(view(2), map[string][]*ballastv1.ReplicaSync{"lb1": {{Id: 8}}})
	if told := nextRing(t, one); told.Starts[0].Id != 8 {
		t.Errorf("a sync alone: %v", told)
	}
}

// A load balancer of an earlier version would copy its share to the whole chain.
func TestASharedSyncIsSentWhereEarlierVersionsDoNotSeeIt(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	credentials := ca.Issue(pki.Controller, "c1")
	hub := testHub(t, func(o *Options) { o.Credentials = credentials })
	address, _ := serveHub(t, hub, credentials)
	hub.Topics.SetState(fleettest.View(1))
	share := &ballastv1.ReplicaSync{Id: 8, Low: 1, High: 2, First: 1, After: 2}
	hub.Topics.SetReplicas(&ballastv1.ReplicaView{Revision: 1, Version: 1, Chain: 2}, map[string][]*ballastv1.ReplicaSync{"lb1": {{Id: 7}, share}})
	told := nextRing(t, fleettest.Join(t, address, ca.Issue(pki.LB, "lb1")))
	if len(told.Starts) != 1 || told.Starts[0].Id != 7 || len(told.Shares) != 1 || !proto.Equal(told.Shares[0], share) {
		t.Errorf("told is %v", told)
	}
}

// Load balancers pass the ring on to those that hear no controller, long after the controller has had another certificate.
func TestTheRingIsSignedWithTheCertificateThatTheControllerHasNow(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	credentials, lb := ca.Issue(pki.Controller, "c1"), ca.Issue(pki.LB, "lb1")
	hub := testHub(t, func(o *Options) { o.Credentials = credentials })
	address, _ := serveHub(t, hub, credentials)
	hub.Topics.SetState(fleettest.View(1))
	view := &ballastv1.ReplicaView{Revision: 1, Version: 1, Chain: 2, Nodes: []*ballastv1.ReplicaNode{{Number: 1, Name: "lb1"}}}
	starts := map[string][]*ballastv1.ReplicaSync{"lb1": {{Id: 7}}}
	hub.Topics.SetReplicas(view, starts)
	one := fleettest.Join(t, address, lb)
	first := nextRing(t, one)
	check := func(told *ballastv1.ReplicaView) {
		t.Helper()
		signed, without := &ballastv1.ReplicaView{}, proto.CloneOf(told)
		without.Starts, without.Signed = nil, nil
		who, err := lb.SignedBy(pki.Controller, replica.SignedRing, pki.Signed{Text: told.Signed.GetView(), Certificate: told.Signed.GetCertificate(), Signature: told.Signed.GetSignature()}, time.Now())
		if err != nil || who.Name != "c1" {
			t.Fatal(who, err)
		}
		fleettest.Require(t, proto.Unmarshal(told.Signed.View, signed))
		if len(told.Starts) != 1 || !proto.Equal(signed, without) {
			t.Errorf("told is %v, signed %v", told, signed)
		}
	}
	check(first)
	hub.Topics.SetReplicas(view, starts)
	ca.Issue(pki.Controller, "c1")
	hub.Topics.SetReplicas(view, starts)
	second := nextRing(t, one)
	check(second)
	if bytes.Equal(second.Signed.Certificate, first.Signed.Certificate) {
		t.Error("it is told twice, signed with the same certificate")
	}
}

func TestWhatLoadBalancersSayOfTheRingIsKeptAndCutShort(t *testing.T) {
	said := make(chan struct{}, 100)
	ca, hub := fleettest.NewAuthority(t), testHub(t, func(o *Options) { o.Replicated = func() { said <- struct{}{} } })
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1))
	lb := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	many := slices.Repeat([]uint32{9}, 100_000)
	lb.Send(replicaReportOf(&ballastv1.ReplicaReport{Address: "10.0.0.1:7475", Incarnation: 3, View: 4, Synced: 2, Done: many, Heard: append([]uint32{1, 1 << 20}, many...), Silent: many}))
	<-said
	reports := hub.Nodes.ReplicaReports()
	if len(reports) != 1 {
		t.Fatal(reports)
	}
	r := reports[0]
	if r.Name != "lb1" || r.Address != netip.MustParseAddrPort("10.0.0.1:7475") || r.Incarnation != 3 || r.View != 4 || r.Synced != 2 || r.Heard[0] != 1 ||
		len(r.Heard) > replica.NodesMax || len(r.Silent) > replica.NodesMax || len(r.Done) > syncsMax || slices.Max(r.Heard) > replica.NodesMax {
		t.Errorf("%+v", r)
	}
	for _, nowhere := range []string{"", "10.0.0.1", "example.org:1", "[fe80::1%eth0]:7475", "224.0.0.1:7475", "127.0.0.1:7475", "0.0.0.0:1"} {
		lb.Send(replicaReportOf(&ballastv1.ReplicaReport{Address: nowhere, Incarnation: 3}))
		<-said
		if r := hub.Nodes.ReplicaReports()[0]; r.Address.IsValid() {
			t.Errorf("%q is taken for %v", nowhere, r.Address)
		}
	}
	lb.Send(replicaReportOf(&ballastv1.ReplicaReport{Address: "10.0.0.1:7475"}))
	<-said
	if r := hub.Nodes.ReplicaReports()[0]; r.Address.IsValid() {
		t.Error("a load balancer without entries of its own may come onto the ring")
	}
	again := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	again.Send(replicaReportOf(&ballastv1.ReplicaReport{Address: "10.0.0.2:7475", Incarnation: 5}))
	<-said
	if r := hub.Nodes.ReplicaReports(); len(r) != 1 || r[0].Incarnation != 5 {
		t.Errorf("after it has joined again: %+v", r)
	}
	again.Stream.CloseRequest()
	fleettest.Await(t, "the loss", func() bool { return len(hub.Nodes.Lost()) == 1 })
	if len(hub.Nodes.ReplicaReports()) != 1 {
		t.Error("what was said last is forgotten with the stream")
	}
	if _, err := hub.Nodes.Forget(false, "lb1", ""); err != nil || len(hub.Nodes.ReplicaReports()) != 0 {
		t.Errorf("forgotten: %v, %v", err, hub.Nodes.ReplicaReports())
	}
	agent := fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	agent.Send(replicaReportOf(&ballastv1.ReplicaReport{}))
	if err := agent.Ends(); err.Code() != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "role lb") {
		t.Errorf("an agent may speak of the ring: %v", err)
	}
}

// Each of two hosts with one certificate would lose the other's entries with every change of places.
func TestOfTwoLoadBalancersThatJoinAsOneNeitherSpeaksOfTheRing(t *testing.T) {
	hub := testHub(t, func(*Options) {})
	hub.Topics.SetState(fleettest.View(1))
	says := func(address string, incarnation uint64) *peer {
		p := newPeer(pki.Identity{Role: pki.LB, Name: "lb1"}, &ballastv1.Hello{Addresses: []string{address}}, &call{request: &http.Request{RemoteAddr: net.JoinHostPort(address, "40000")}}, &hub.options.Limits)
		hub.enter(p)
		fleettest.Require(t, hub.report(p, replicaReportOf(&ballastv1.ReplicaReport{Address: "10.0.0.1:7475", Incarnation: incarnation})))
		return p
	}
	expect := func(what string, want uint64) {
		t.Helper()
		if report, _ := hub.Nodes.ReplicaReport("lb1"); report.GetIncarnation() != want {
			t.Errorf("%s: %v, want incarnation %d", what, report, want)
		}
	}
	says("10.0.0.1", 1)
	says("10.0.0.1", 2)
	expect("the same host again", 2)
	says("10.0.0.9", 9)
	says("10.0.0.1", 2)
	last := says("10.0.0.9", 9)
	expect("two hosts in turn", 2)
	last.since = time.Now().Add(-rivalLife)
	fleettest.Require(t, hub.report(last, replicaReportOf(&ballastv1.ReplicaReport{Incarnation: 9})))
	expect("long after the first has gone", 9)
}

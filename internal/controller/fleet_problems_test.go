package controller

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/report"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

func TestTheStatusSaysWhatClientsNotice(t *testing.T) {
	ca, dir := fleettest.NewAuthority(t), t.TempDir()
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), func(o *Options) { o.RunDir = dir })
	client := api.NewClient(api.SocketPath(dir, "c1"))
	await := func(what string, wanted ...string) { // problems that begin so
		t.Helper()
		fleettest.Await(t, what, func() bool {
			var s report.Status
			fleettest.Require(t, client.Get(t.Context(), api.PathStatus, &s))
			return len(s.Problems) == len(wanted) && slices.EqualFunc(s.Problems, wanted, strings.HasPrefix)
		})
	}
	await("a fleet without services")
	apply(t, client.Fleet(), fleettest.Service("web", 1))
	await("nobody forwards", "no load balancer is connected")
	owner := ca.Issue(pki.LB, "lb1")
	lb := fleettest.Join(t, c.address, owner)
	await("a load balancer without BGP")

	node := model.Node{Name: "lb1", BGP: model.BGP{AS: 64600, NeighborAS: 64512, Neighbors: []model.Neighbor{{Address: netip.MustParseAddr("10.20.1.1")}}}}
	fleet := model.Fleet{Services: []model.Service{fleettest.Service("web", 1).Service}, Nodes: []model.Node{node}}
	fleet.ApplyDefaults()
	_, err := client.Fleet().Apply(t.Context(), &ballastv1.ApplyRequest{Force: true, Services: []*ballastv1.Service{api.ServiceToProto(&fleet.Services[0])}, Nodes: api.NodesToProto(&fleet).Nodes})
	fleettest.Require(t, err)
	say := func(told *ballastv1.Announcements) {
		t.Helper()
		fleettest.Require(t, lb.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: &ballastv1.Condition{Ready: true, Announcements: told}}}))
	}
	say(&ballastv1.Announcements{})
	await("no session is up", "VIP 198.51.100.1 is announced by no connected load balancer")
	say(&ballastv1.Announcements{Vips: []string{"198.51.100.1"}})
	await("it is announced")
	say(&ballastv1.Announcements{Vips: []string{"198.51.100.2"}})
	await("another VIP is", "VIP 198.51.100.1 is announced by no connected load balancer")
	fleet.Services[0].Announce = model.VIPOff
	put := func() {
		t.Helper()
		_, err := client.Fleet().Apply(t.Context(), &ballastv1.ApplyRequest{Force: true, Services: []*ballastv1.Service{api.ServiceToProto(&fleet.Services[0])}, Nodes: api.NodesToProto(&fleet).Nodes})
		fleettest.Require(t, err)
	}
	put()
	await("it is given up")
	fleet.Services[0].Announce = model.VIPAuto
	put()
	await("it is wanted again", "VIP 198.51.100.1 is announced by no connected load balancer")
	say(nil)
	await("an older version says nothing of it")
	misnamed := func(names ...string) {
		t.Helper()
		fleet.Nodes = nil
		for _, name := range names {
			one := node
			one.Name = name
			fleet.Nodes = append(fleet.Nodes, one)
		}
		fleet.ApplyDefaults()
		put()
	}
	misnamed("lb1", "lb3")
	say(&ballastv1.Announcements{Vips: []string{"198.51.100.1"}})
	await("one of two is misnamed", "node lb3 announces nothing")
	misnamed("lb3")
	await("the only one is", "node lb3 announces nothing", "VIP 198.51.100.1 is announced by no connected load balancer")
	misnamed("lb1")
	await("it is named as it is")

	_, err = client.Fleet().RevokeCertificate(t.Context(), &ballastv1.RevokeCertificateRequest{Name: "lb1", Force: true})
	fleettest.Require(t, err)
	await("it was cut off", "no load balancer is connected")
	nodes, err := client.Fleet().ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
	fleettest.Require(t, err)
	for _, n := range nodes.Nodes {
		if n.Name == "lb1" && (n.Ready != "lost" || !slices.Equal(n.Problems, []string{"its certificate is revoked"})) {
			t.Errorf("the cause is not named: %v", n)
		}
	}
}

// The agent of s1 knows its device, the load balancer its path: neither knows that packets are lost.
//
// Promise: A controller names servers whose device drops packets that load balancers send there.
func TestServersWhoseDeviceTakesLessThanIsSentAreNamed(t *testing.T) {
	ca, dir := fleettest.NewAuthority(t), t.TempDir()
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), func(o *Options) { o.RunDir = dir })
	client := api.NewClient(api.SocketPath(dir, "c1"))
	apply(t, client.Fleet(), fleettest.Service("web", 1, 2))
	lb, agent := fleettest.Join(t, c.address, ca.Issue(pki.LB, "lb1")), fleettest.Join(t, c.address, ca.Issue(pki.Agent, "s1"))
	await := func(what string, wanted ...string) {
		t.Helper()
		fleettest.Await(t, what, func() bool {
			var s report.Status
			fleettest.Require(t, client.Get(t.Context(), api.PathStatus, &s))
			return slices.EqualFunc(s.Problems, wanted, strings.HasPrefix)
		})
	}
	say := func(who *fleettest.Conversation, told *ballastv1.Condition) {
		t.Helper()
		fleettest.Require(t, who.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: told}}))
	}
	const lost = "clients of 1 server (s1) lose packets of more than"
	paths := func(most uint32, others map[string]uint32) {
		say(lb, &ballastv1.Condition{Ready: true, Paths: &ballastv1.PathMTUs{Most: most, Others: others}})
	}
	device := func(r *ballastv1.Receiver) { say(agent, &ballastv1.Condition{Ready: true, Receiver: r}) }
	paths(1500, nil)
	device(&ballastv1.Receiver{Device: "eth0", Mtu: 1400})
	await("the device takes less", lost)
	paths(1500, map[string]uint32{"10.0.0.1": 1400})
	await("the path to that server is as narrow")
	paths(1400, map[string]uint32{"10.0.0.1": 1500})
	await("it alone is wide", lost)
	device(&ballastv1.Receiver{Device: "eth0", Mtu: 1400, Segment: 1300})
	await("clients are told to send less")
	device(&ballastv1.Receiver{Device: "a name that is longer than any", Mtu: 1000})
	await("no such device can be")
	device(&ballastv1.Receiver{Device: "eth0", Mtu: 1400})
	await("it is as before", lost)
	paths(1500, map[string]uint32{"10.0.0.1": 0})
	await("packets to it pass no device")
	paths(1500, nil)
	await("they do again", lost)
	tooMany := map[string]uint32{}
	for i := range 300 {
		tooMany[string(rune(i))] = 9000
	}
	paths(1500, tooMany)
	await("more is told than is kept")
}

// Promise: A controller names tunnels that are dropped on the way to servers whose agents are connected as one problem.
func TestServersThatRunAndGetNoTunnelsAreOneProblem(t *testing.T) {
	ca, dir := fleettest.NewAuthority(t), t.TempDir()
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), func(o *Options) { o.RunDir = dir })
	client := api.NewClient(api.SocketPath(dir, "c1"))
	web := fleettest.Service("web", 1, 2, 3)
	web.Service.Health = model.Health{Check: model.CheckTCP}
	web.Service.ApplyDefaults()
	apply(t, client.Fleet(), web)
	lb := fleettest.Join(t, c.address, ca.Issue(pki.LB, "lb1"))
	views := func(unanswered ...uint32) {
		t.Helper()
		report := &ballastv1.HealthReport{}
		for id := range uint32(3) {
			silent := slices.Contains(unanswered, id+1)
			report.Servers = append(report.Servers, &ballastv1.ServerHealth{Service: "web", Id: id + 1, Healthy: !silent, Detail: "connect: timed out", Unanswered: silent})
		}
		fleettest.Require(t, lb.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Health{Health: report}}))
	}
	await := func(what string, wanted ...string) {
		t.Helper()
		fleettest.Await(t, what, func() bool {
			var s report.Status
			fleettest.Require(t, client.Get(t.Context(), api.PathStatus, &s))
			return slices.EqualFunc(s.Problems, wanted, strings.HasPrefix)
		})
	}
	views(1, 2, 3)
	await("no agent is connected: the servers may as well be down", "3 servers of service web (s1, s2, s3) fail health checks: connect: timed out")
	agents := map[string]*fleettest.Conversation{}
	for _, name := range []string{"s1", "s2"} {
		agents[name] = fleettest.Join(t, c.address, ca.Issue(pki.Agent, name))
	}
	const rest = "1 server of service web (s3) fails health checks: connect: timed out"
	await("two of the servers run", "2 servers (s1, s2) answer no packet that load balancer lb1 sends in tunnels: their agents are connected, most likely a firewall or the network drops IP protocol 4", rest)
	views(2, 3)
	await("one answers", "1 server (s2) answers no packet", rest)
	views()
	await("all answer")
	condition := func(c *ballastv1.Condition) {
		t.Helper()
		fleettest.Require(t, agents["s2"].Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: c}}))
	}
	condition(&ballastv1.Condition{Problems: []string{"198.51.100.10 is no address of this host", "another"}})
	await("its agent finds what is wrong", "agent s2 is not ready: 198.51.100.10 is no address of this host: run `ballast doctor` there")
	condition(&ballastv1.Condition{Ready: true, Problems: []string{"another"}})
	await("it is ready again")
}

// Promise: A controller's status names an agent or load balancer of the fleet that hangs after 3 s, with the time of its last message, until it is back.
func TestNodesThatHangStayNamedWhenTheirConnectionsEnd(t *testing.T) {
	ca, dir := fleettest.NewAuthority(t), t.TempDir()
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), func(o *Options) { o.RunDir = dir })
	client := api.NewClient(api.SocketPath(dir, "c1"))
	fleet := model.Fleet{Services: []model.Service{fleettest.Service("web", 1).Service}, Nodes: []model.Node{{Name: "lb1", Tier: model.TierFirst}}}
	fleet.ApplyDefaults()
	_, err := client.Fleet().Apply(t.Context(), &ballastv1.ApplyRequest{Force: true, Services: []*ballastv1.Service{api.ServiceToProto(&fleet.Services[0])}, Nodes: api.NodesToProto(&fleet).Nodes})
	fleettest.Require(t, err)
	problems := func() []string {
		var s report.Status
		fleettest.Require(t, client.Get(t.Context(), api.PathStatus, &s))
		return s.Problems
	}
	named := func(who string) (since string) {
		for _, problem := range problems() {
			if rest, is := strings.CutPrefix(problem, who+" has not reported since "); is {
				since, _, _ = strings.Cut(rest, " ")
			}
		}
		return since
	}
	join := func(role pki.Role, name string) *fleettest.Conversation {
		node := fleettest.Join(t, c.address, ca.Issue(role, name))
		for _, message := range []*ballastv1.FromNode{{Message: &ballastv1.FromNode_Alive{Alive: &ballastv1.Alive{}}}, {Message: &ballastv1.FromNode_Condition{Condition: &ballastv1.Condition{Ready: true}}}} {
			fleettest.Require(t, node.Send(message))
		}
		return node
	}
	conversations := map[string]*fleettest.Conversation{"lb lb1": join(pki.LB, "lb1"), "agent s1": join(pki.Agent, "s1")}
	for _, who := range []string{"agent s1", "lb lb1"} {
		var before string
		fleettest.Await(t, who+" hangs", func() bool { before = named(who); return before != "" })
		conversations[who].Stream.CloseRequest()
		fleettest.Await(t, who+" is lost", func() bool {
			nodes, err := client.Fleet().ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
			fleettest.Require(t, err)
			return slices.ContainsFunc(nodes.Nodes, func(n *ballastv1.NodeStatus) bool { return n.Role+" "+n.Name == who && n.Ready == "lost" })
		})
		if after := named(who); after != before {
			t.Errorf("%s was last heard at %q while it was connected, and %q after that", who, before, after)
		}
	}
	if first := problems()[0]; !strings.HasPrefix(first, "no load balancer is connected") {
		t.Errorf("first is said %q", first)
	}
	for who, role := range map[string]pki.Role{"lb lb1": pki.LB, "agent s1": pki.Agent} {
		join(role, strings.Fields(who)[1])
		fleettest.Await(t, who+" is back", func() bool { return named(who) == "" })
	}
}

package hub

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

func condition(ready bool, problems ...string) *ballastv1.FromNode {
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: &ballastv1.Condition{Ready: ready, Problems: problems}}}
}

func TestWhatNodesSayOfThemselvesIsListedUntilTheySayOtherwise(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1))
	agent := fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	told := func(ready string, problems ...string) func() bool {
		return func() bool {
			nodes := hub.Nodes.List()
			return len(nodes) == 1 && nodes[0].Ready == ready && slices.Equal(nodes[0].Problems, problems)
		}
	}
	fleettest.Await(t, "nothing known", told(""))
	agent.Send(condition(false, "198.51.100.1 is not an address of this host", "\x1b]0;owned\a"))
	fleettest.Await(t, "its problems, with nothing that a terminal would obey", told("no", "198.51.100.1 is not an address of this host", " ]0;owned "))
	agent.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Load{Load: &ballastv1.LoadReport{Unavailable: []string{"cpu: no cgroup"}}}})
	fleettest.Await(t, "what it cannot measure, too", told("no", "198.51.100.1 is not an address of this host", " ]0;owned ", "cpu: no cgroup"))
	agent.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Load{Load: &ballastv1.LoadReport{}}})
	agent.Send(condition(true))
	fleettest.Await(t, "all well", told("yes"))
	agent.Send(condition(true, slices.Repeat([]string{strings.Repeat("é", 10000)}, 500)...))
	fleettest.Await(t, "a flood of problems", func() bool { return len(hub.Nodes.List()[0].Problems) > 0 })
	if kept := hub.Nodes.List()[0].Problems; len(strings.Join(kept, "")) > 1<<16 {
		t.Errorf("%d problems are kept", len(kept))
	}
}

func TestNodesThatLeaveAreListedAsLostUntilTheyAreBack(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1))
	began := time.Now()
	agent := fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	agent.Send(condition(false, "broken"))
	fleettest.Await(t, "the agent", func() bool { nodes := hub.Nodes.List(); return len(nodes) == 1 && nodes[0].Ready == "no" })
	agent.Stream.CloseRequest()
	fleettest.Await(t, "the loss", func() bool { return len(hub.Nodes.List()) == 0 && len(hub.Nodes.Lost()) == 1 })
	if n := hub.Nodes.Lost()[0]; n.Name != "s1" || n.Role != "agent" || n.Ready != ReadyLost || n.LastSeen.AsTime().Before(began) || !slices.Equal(n.Problems, []string{"not connected any more"}) {
		t.Errorf("lost is %v", n)
	}
	fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	fleettest.Await(t, "the agent again", func() bool { return len(hub.Nodes.List()) == 1 && len(hub.Nodes.Lost()) == 0 })

	for i := range 2 * lostMax { // whoever makes up names is not remembered for ever
		p := &peer{subscriber: subscriber{identity: pki.Identity{Role: pki.Agent, Name: fmt.Sprint("made-up-", i)}}}
		hub.Nodes.mutex.Lock()
		hub.Nodes.lost.add(p.key(), p.lost(0))
		hub.Nodes.mutex.Unlock()
	}
	if n := len(hub.Nodes.Lost()); n != lostMax {
		t.Errorf("%d are remembered", n)
	}
	hub.Nodes.mutex.Lock()
	for _, n := range hub.Nodes.lost.nodes {
		n.LastSeen = timestamppb.New(time.Now().Add(-LostLife - time.Second))
	}
	hub.Nodes.mutex.Unlock()
	if n := len(hub.Nodes.Lost()); n != 0 {
		t.Errorf("%d are remembered after a day", n)
	}
}

func TestNodesAddNoRowsToTables(t *testing.T) {
	told := make(chan string, 1)
	hub := testHub(t, func(o *Options) { o.Reports = healthTold{ignored{}, told} })
	ca := fleettest.NewAuthority(t)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1))
	lb := ca.Issue(pki.LB, "lb1")
	forged := fleettest.Hello(lb)
	forged.Version = "1\nlb9\tyes\x1b[2J"
	node := fleettest.Converse(t, address, lb, forged)
	node.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Health{Health: &ballastv1.HealthReport{Servers: []*ballastv1.ServerHealth{{Id: 1, Detail: "down\ns9\tactive"}}}}})
	if detail := <-told; detail != "down s9 active" {
		t.Errorf("why a server is down: %q", detail)
	}
	if nodes := hub.Nodes.List(); len(nodes) != 1 || nodes[0].Version != "1 lb9 yes [2J" {
		t.Errorf("%v", nodes)
	}
}

// healthTold passes on what the first server's health is said to be.
type healthTold struct {
	ignored
	told chan string
}

func (h healthTold) Health(_ string, servers []engine.ServerHealth) {
	h.told <- servers[0].Detail
}

func TestALostNodeIsForgottenAndAConnectedOneIsNot(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(1))
	refused := func(code connect.Code) {
		t.Helper()
		if _, err := hub.Nodes.Forget(false, "s1", ""); connect.CodeOf(err) != code {
			t.Errorf("%v, want %v", err, code)
		}
	}
	refused(connect.CodeNotFound)
	agent := fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	fleettest.Await(t, "the agent", func() bool { return len(hub.Nodes.List()) == 1 })
	refused(connect.CodeFailedPrecondition)
	agent.Stream.CloseRequest()
	fleettest.Await(t, "the loss", func() bool { return len(hub.Nodes.Lost()) == 1 })
	if lost := hub.Nodes.Keys().Lost; len(lost) != 1 {
		t.Errorf("%v", lost)
	}
	if forgotten, err := hub.Nodes.Forget(false, "s1", ""); err != nil || !slices.Equal(forgotten, []string{"agent s1: forgotten"}) {
		t.Errorf("%q, %v", forgotten, err)
	}
	if n := len(hub.Nodes.Lost()) + len(hub.Nodes.Keys().Lost); n != 0 {
		t.Errorf("%d are remembered", n)
	}
	refused(connect.CodeNotFound)
}

func TestALoadBalancerThatDoesNotTakeWhatItIsToldIsMarked(t *testing.T) {
	now := time.Now()
	p := &progress{sent: 7, behind: now.Add(-behindTime / 2), reported: 6}
	if why := p.behindProblem(now); why != "" {
		t.Errorf("marked at once: %q", why)
	}
	p.behind = now.Add(-2 * behindTime)
	if why := p.behindProblem(now); why != "its tables have revision 6, it was sent 7" {
		t.Errorf("not marked: %q", why)
	}
	p.reported, p.sent = 7, 7
	if why := p.behindProblem(now); why != "" {
		t.Errorf("marked although it has it: %q", why)
	}
}

func TestALoadBalancerIsBehindForAsLongAsItCarriesOutNothing(t *testing.T) {
	hub := testHub(t, nil)
	hub.Topics.SetState(fleettest.View(7))
	join := func(role pki.Role, name string) (*peer, *progress) {
		p := newPeer(pki.Identity{Role: role, Name: name}, &ballastv1.Hello{}, &call{request: httptest.NewRequest("POST", "/", nil)}, &DefaultLimits)
		hub.enter(p)
		return p, &hub.Topics.state.of[&p.subscriber].progress
	}
	p, lb := join(pki.LB, "lb1")
	agent, other := join(pki.Agent, "s1")
	applies := func(revision uint64) {
		fleettest.Require(t, hub.report(p, &ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{Revision: revision}}}))
	}
	lag := func() time.Duration { return hub.Nodes.longestLag(time.Now().Add(time.Hour)).Round(time.Hour) }
	if lag() != 0 {
		t.Error("behind before it was sent anything")
	}
	hub.next(p)
	hub.next(agent)
	hub.next(agent)
	lb.behind = lb.behind.Add(-time.Hour)
	hub.Topics.SetState(fleettest.View(8, fleettest.Service("web", 1)))
	if hub.next(p); lag() != 2*time.Hour {
		t.Errorf("another state makes it look less behind: %v", lag())
	}
	if applies(7); lag() != time.Hour {
		t.Errorf("after a step: %v", lag())
	}
	if applies(8); lag() != 0 {
		t.Errorf("after the last step: %v", lag())
	}
	if !other.behind.IsZero() {
		t.Error("agents need not say what they have carried out")
	}
}

// Promise: A node cannot appear to have a newer state than a controller has sent it.
func TestARevisionThatWasNeverSentIsNotBelieved(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	hub.Topics.SetState(fleettest.View(3, fleettest.Service("web", 1)))
	lb := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	lb.State()
	progressOf := func(lb string) *progress { return &hub.Topics.state.of[&hub.Nodes.lbs[lb].subscriber].progress }
	say := func(claimed, shown uint64) {
		t.Helper()
		fleettest.Require(t, lb.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Applied{Applied: &ballastv1.Applied{Revision: claimed}}}))
		fleettest.Await(t, "the claim is taken", func() bool {
			hub.Topics.mutex.Lock()
			defer hub.Topics.mutex.Unlock()
			return progressOf("lb1").reported == claimed
		})
		if n := hub.Nodes.List()[0]; n.Revision != shown || strings.Contains(fmt.Sprint(n.Problems), "revision") {
			t.Errorf("it says %d, and is shown with %d: %v", claimed, n.Revision, n.Problems)
		}
	}
	say(2, 2)
	say(1<<63, 3)
	later := time.Now().Add(2 * behindTime)
	why := func() string {
		hub.Topics.mutex.Lock()
		defer hub.Topics.mutex.Unlock()
		return progressOf("lb1").aheadProblem(later, hub.Topics.state.revision)
	}
	if !strings.Contains(why(), "knows none after 3") {
		t.Errorf("nobody says that the revision is not known: %q", why())
	}
	say(5, 3) // as another controller has sent it
	hub.Topics.SetState(fleettest.View(5, fleettest.Service("web", 1, 2)))
	lb.State()
	if say(5, 5); why() != "" {
		t.Errorf("it is known by now: %q", why())
	}
}

// Whoever has a stolen key may stay and tell none, and nobody can forget it meanwhile.
//
// Promise: A load balancer that sends no address is named in `ctl node list`.
func TestAConnectedLoadBalancerThatTellsNoAddressIsNamed(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	lb := fleettest.Join(t, address, ca.Issue(pki.LB, "lb7"))
	fleettest.Await(t, "the load balancer", func() bool { return len(hub.Nodes.List()) == 1 })
	if problems := hub.Nodes.List()[0].Problems; len(problems) != 1 || !strings.Contains(problems[0], "agents accept tunnels from every address") {
		t.Errorf("problems %q", problems)
	}
	if _, err := hub.Nodes.Forget(false, "lb7", ""); err == nil || !strings.Contains(err.Error(), "lb lb7 is connected from 127.0.0.1: stop it first or, if nobody knows it") {
		t.Errorf("it is forgotten but for %v", err)
	}
	lb.Send(conditionAt("10.0.0.9"))
	fleettest.Await(t, "its address", func() bool { return len(hub.Nodes.List()[0].Problems) == 0 })
}

func TestTheListOfLoadBalancersHasThoseThatAreConnectedOrLostAndNotForgotten(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	fleettest.Await(t, "the nodes", func() bool { return len(hub.Nodes.List()) == 2 })
	list := func(names []string, want ...string) {
		t.Helper()
		if next := hub.Nodes.Remember(names); !slices.Equal(next, want) {
			t.Errorf("of %q it remembers %q, want %q", names, next, want)
		}
	}
	list(nil, "lb1")
	list([]string{"lb1", "lb2", "lb3"}, "lb1", "lb2", "lb3")
	if lost := hub.Nodes.Keys().Lost; len(lost) != 2 || lost[0].Name != "lb2" {
		t.Errorf("lost: %v", lost)
	}
	_, err := hub.Nodes.Forget(false, "lb2", "")
	fleettest.Require(t, err)
	list([]string{"lb1", "lb2", "lb3"}, "lb1", "lb3")
	hub.Nodes.mutex.Lock()
	hub.Nodes.lost.nodes[peerKey{pki.LB, "lb3"}].LastSeen = timestamppb.New(time.Now().Add(-LostLife - time.Second))
	hub.Nodes.mutex.Unlock()
	list([]string{"lb1", "lb3"}, "lb1")
	list([]string{"lb1"}, "lb1")
	list([]string{"lb1", "lb2"}, "lb1", "lb2") // it has joined another controller
}

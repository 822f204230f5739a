package hub

import (
	"context"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

func TestAStreamThatNothingIsToldOnLives(t *testing.T) {
	const limit = 500 * time.Millisecond
	ca, hub := fleettest.NewAuthority(t), testHub(t, func(o *Options) { o.Limits.WriteTimeout = limit })
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	lb := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1)))
	lb.State()
	told := time.Now()
	fleettest.Await(t, "much more than the limit has passed", func() bool { return time.Since(told) > 2*limit })
	hub.Topics.SetState(fleettest.View(2, fleettest.Service("web", 1, 2)))
	expectState(t, lb.State(), 2, false, "web", "")
}

func TestANodeThatStopsLeavesAtOnceThoughNothingIsToldOrReported(t *testing.T) {
	const (
		atOnce   = api.StreamSilence // it is found out before anybody is asked for a sign of life
		attempts = 5                 // a busy machine is late now and then
	)
	for attempt := 1; ; attempt++ {
		took := leaves(t)
		if took < atOnce {
			return
		}
		if attempt == attempts {
			t.Fatalf("it took %v, and more than %v in %d attempts", took, atOnce, attempts)
		}
	}
}

// leaves lets a node join and stop, and says how long it was thought to be there.
func leaves(t *testing.T) time.Duration {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	credentials := ca.Issue(pki.LB, "lb1")
	ctx, cancel := context.WithCancel(t.Context())
	joined := nodeclient.New(nodeclient.Options{
		Controllers: []string{address}, Credentials: credentials, Hello: func() *ballastv1.Hello { return fleettest.Hello(credentials) }, Log: fleettest.Log(t),
	})
	var running sync.WaitGroup
	running.Go(func() { joined.Run(ctx) })
	fleettest.Await(t, "the node has joined", func() bool { return len(joined.Connected()) == 1 && len(hub.Nodes.List()) == 1 })
	stopped := time.Now()
	cancel()
	running.Wait()
	fleettest.Await(t, "the node has left", func() bool { return len(hub.Nodes.List()) == 0 })
	return time.Since(stopped)
}

// Promise: A node that is connected and silent is not said to have been heard of just now.
func TestOfANodeIsToldHowLongItHasBeenSilent(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	lb := fleettest.Join(t, address, ca.Issue(pki.LB, "lb1"))
	silence := func() time.Duration {
		nodes := hub.Nodes.List()
		if len(nodes) != 1 || nodes[0].Silence == nil || time.Since(nodes[0].LastSeen.AsTime()) < nodes[0].Silence.AsDuration() {
			t.Fatalf("listed: %v", nodes)
		}
		return nodes[0].Silence.AsDuration()
	}
	fleettest.Await(t, "the node has joined", func() bool { return len(hub.Nodes.List()) == 1 })
	const long = 300 * time.Millisecond
	fleettest.Await(t, "it is silent", func() bool { return silence() > long })
	before := time.Now()
	lb.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: &ballastv1.Condition{Ready: true}}})
	fleettest.Await(t, "its word", func() bool { return hub.Nodes.List()[0].Ready == "yes" })
	if now, since := silence(), time.Since(before); now > since {
		t.Errorf("silent for %v, and its last message was sent %v ago", now, since)
	}
}

// Promise: `ctl node list` has a node as ready for 3 s at most after its last word: then READY is unknown, and PROBLEMS tells for how long nothing has come.
func TestOfASilentNodeItIsNotKnownWhetherItIsReady(t *testing.T) {
	hub := testHub(t, nil)
	node := func(since time.Duration, says ...*ballastv1.FromNode) *ballastv1.NodeStatus {
		p := newPeer(pki.Identity{Role: pki.Agent, Name: "s1"}, &ballastv1.Hello{}, &call{request: httptest.NewRequest("POST", "/", nil)}, &DefaultLimits)
		hub.enter(p)
		for _, message := range says {
			fleettest.Require(t, hub.report(p, message))
		}
		p.since = p.since.Add(-since) // so long ago was its last message
		if p.readyAt = p.readyAt.Add(-since); p.ready == "" {
			p.readyAt = time.Time{}
		}
		return hub.Nodes.List()[0]
	}
	left := func(since time.Duration, says ...*ballastv1.FromNode) *ballastv1.NodeStatus {
		node(since, says...)
		p := hub.Nodes.peers[peerKey{pki.Agent, "s1"}]
		return p.lost(0)
	}
	ready := &ballastv1.FromNode{Message: &ballastv1.FromNode_Condition{Condition: &ballastv1.Condition{Ready: true, Problems: []string{"a problem"}}}}
	alive := &ballastv1.FromNode{Message: &ballastv1.FromNode_Alive{Alive: &ballastv1.Alive{}}}
	for _, c := range []struct {
		what     string
		node     *ballastv1.NodeStatus
		ready    string
		problems []string
	}{
		{"it works", node(health.Silent-time.Second, alive, ready), "yes", []string{"a problem"}},
		{"it is silent", node(health.Silent+time.Second, alive, ready), ReadyUnknown, []string{"no word for 4s", "a problem"}},
		{"it is silent, and has never said whether it is ready", node(health.Silent, alive), ReadyUnknown, []string{"no word for 3s"}},
		{"an older version repeats its condition only", node(5*time.Second, ready), "yes", []string{"a problem"}},
		{"which it does not", node(readyLife, ready), ReadyUnknown, []string{"has not reported for 15s whether it is ready", "a problem"}},
	} {
		if c.node.Ready != c.ready || !slices.Equal(c.node.Problems, c.problems) {
			t.Errorf("%s: ready is %s, problems %q", c.what, c.node.Ready, c.node.Problems)
		}
	}
	for what, c := range map[string]struct {
		node    *ballastv1.NodeStatus
		problem string
		heard   time.Duration // ago
	}{
		"it was heard until it left":     {left(health.Silent-time.Second, alive, ready), NotConnected, 0},
		"it hung":                        {left(10*time.Second, alive, ready), FellSilent, 10 * time.Second},
		"an older version says so never": {left(10*time.Second, ready), NotConnected, 0},
	} {
		if age := time.Since(c.node.LastSeen.AsTime()); !slices.Equal(c.node.Problems, []string{c.problem}) || c.node.Silence != nil || age.Truncate(5*time.Second) != c.heard {
			t.Errorf("%s: problems %q, last heard %v ago", what, c.node.Problems, age)
		}
	}
}

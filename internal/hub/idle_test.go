package hub

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
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

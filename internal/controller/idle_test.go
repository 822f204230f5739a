package controller

import (
	"context"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

func TestAStreamThatNothingIsToldOnLives(t *testing.T) {
	const limit = 500 * time.Millisecond
	ca, hub := newAuthority(t), testHub(t, func(o *HubOptions) { o.Limits.WriteTimeout = limit })
	address, _ := serveHub(t, hub, ca.issue(pki.Controller, "c1").Server())
	lb := join(t, address, ca.issue(pki.LB, "lb1"))
	hub.SetState(view(1, testService("web", 1)))
	lb.state()
	told := time.Now()
	await(t, "much more than the limit has passed", func() bool { return time.Since(told) > 2*limit })
	hub.SetState(view(2, testService("web", 1, 2)))
	expectState(t, lb.state(), 2, false, "web", "")
}

func TestANodeThatStopsLeavesAtOnceThoughNothingIsToldOrReported(t *testing.T) {
	const (
		atOnce   = silenceMax // it is found out before anybody is asked for a sign of life
		attempts = 5          // a busy machine is late now and then
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
	ca, hub := newAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.issue(pki.Controller, "c1").Server())
	credentials := ca.issue(pki.LB, "lb1")
	ctx, cancel := context.WithCancel(t.Context())
	joined := api.Join(ctx, api.JoinOptions{
		Controllers: []string{address}, TLS: credentials.Client(), Hello: func() *ballastv1.Hello { return hello(credentials) }, Log: testLog(t),
		OnState: func(string, *ballastv1.State) {}, OnWeights: func(*ballastv1.Weights) {}, OnChecks: func(string, []string) {}, OnLeft: func(string) {},
		OnSources: func(string, *ballastv1.TunnelSources) {},
	})
	await(t, "the node has joined", func() bool { return len(joined.Connected()) == 1 && len(hub.Nodes()) == 1 })
	stopped := time.Now()
	cancel()
	joined.Wait()
	await(t, "the node has left", func() bool { return len(hub.Nodes()) == 0 })
	return time.Since(stopped)
}

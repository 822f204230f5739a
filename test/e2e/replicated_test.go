package e2e

import "testing"

// UDP flows and TCP connections without timestamps keep their server: load balancers replicate a table. With one copy, and without the table, some break.
func TestConnectionsWithoutCookiesSurviveTheLossOfLoadBalancers(t *testing.T) {
	outcome := run(t, "replicated")
	if outcome.Measurements["flows_throughout"] < 200 {
		t.Errorf("only %v UDP flows lived through all events", outcome.Measurements["flows_throughout"])
	}
}

// A load balancer that was taken off the ring, as its way to the controllers was cut or its daemon has died, goes on forwarding what routers send it: of the
// flows that come to it for ten seconds each none is lost but in the milliseconds of a change of the ring.
func TestALoadBalancerThatControllersDoNotHearGoesOn(t *testing.T) {
	outcome := run(t, "unheard")
	if outcome.Attempted < 1500 {
		t.Errorf("%d flows", outcome.Attempted)
	}
	for name, value := range outcome.Measurements {
		t.Logf("%s: %.3f", name, value)
	}
}

package e2e

import "testing"

// UDP flows and TCP connections without timestamps keep their server: load balancers replicate a table. With one copy, and without the table, some break.
func TestConnectionsWithoutCookiesSurviveTheLossOfLoadBalancers(t *testing.T) {
	outcome := run(t, "replicated")
	if outcome.Measurements["flows_throughout"] < 200 {
		t.Errorf("only %v UDP flows lived through all events", outcome.Measurements["flows_throughout"])
	}
}

package e2e

import "testing"

// Promise: Servers and load balancers of both tiers come and go, the key rotates, and a load balancer that keeps
// tables dies: no connection breaks, those that were in its table get entries elsewhere (Cheetah III-B); tables
// that only their load balancer has lose connections by the same events.
// Promise: `affinity: local-table` breaks connections that another load balancer places elsewhere.
// Promise: Connections and their entries are kept when a first-tier node is killed, added or gets other
// connections.
func TestConnectionsSurviveTheLossOfATableInTheSecondTier(t *testing.T) {
	result := run(t, "two-tier")
	logMeasured(t, result)
	if result.Broken != 0 || result.Completed != result.Attempted {
		t.Errorf("%d of %d broken: %v", result.Broken, result.Attempted, result.BrokenBy)
	}
	on, survived := result.Measurements["killed_node_connections"], result.Measurements["killed_node_survived"]
	if on == 0 || survived != on || result.Measurements["killed_node_entries_elsewhere"] == 0 {
		t.Errorf("on the killed node: %.0f, survived: %.0f", on, survived)
	}
	if result.Baseline == nil || result.Baseline.Affinity != "local-table" || result.Baseline.Broken == 0 {
		t.Errorf("baseline %+v", result.Baseline)
	}
	timestampsAccepted(t, result.Trials[0])
}

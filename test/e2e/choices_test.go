package e2e

import "testing"

// Promise: Where servers are of unequal speed and other work moves from one to the next, servers that accept
// connections or pass them on answer sooner than those that hash or turns choose, in the mean and at the 99th
// percentile (SHELL III, 6LB), for at most one packet more per connection.
func TestServersThatAcceptOrPassOnBeatHashAndTurns(t *testing.T) {
	result := compared(t, "choices", "6s")
	for _, cell := range result.Comparison {
		t.Logf("%-28s fairness %.2f, %d refused, %d packets passed on for %d connections", cell.Policy, cell.Fairness, cell.Refused, cell.PassedOn, cell.Offered)
	}
}

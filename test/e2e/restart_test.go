package e2e

import "testing"

// Promise: an application that was killed and started again gets its share of new connections, neither nothing nor everything, where
// the policy counts open connections; by a file without agents' reports, and by controllers with them.
func TestARestartedApplicationGetsItsShareOfNewConnections(t *testing.T) {
	if !long() {
		t.Skip("its shares have been out of bounds on busy machines, in 2 of 4 runs, for a reason that is not found: BALLAST_LONG=1, as in make test-long")
	}
	logMeasured(t, run(t, "restart"))
}

package e2e

import "testing"

// Promise: An application that was killed and started again gets its share of new connections, neither nothing nor
// everything, where the policy counts open connections; by a file without agents' reports, and by controllers with
// them.
func TestARestartedApplicationGetsItsShareOfNewConnections(t *testing.T) {
	// Public: loxilb-io/loxilb#1020 (least connections, and an endpoint that goes and returns gets nothing).
	logMeasured(t, run(t, "restart"))
}

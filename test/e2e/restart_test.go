package e2e

import "testing"

// Promise: An application that was killed and started again gets its share of new connections, neither nothing nor
// everything, where the policy counts open connections; by a file without agents' reports, and by controllers with
// them.
// Public: loxilb-io/loxilb#1020 (an endpoint that goes and returns gets no connections while the least are counted), kubernetes/kubernetes#126378
// (connections stay out of balance for hours after a backend has restarted).
func TestARestartedApplicationGetsItsShareOfNewConnections(t *testing.T) {
	logMeasured(t, run(t, "restart"))
}

package e2e

import "testing"

// Promise: While no controller judges servers, as all have died or their store has, load balancers take out
// servers that fail by their own checks, also over a restart, and hand back without sending anything to a server
// that is down.
func TestLoadBalancersWithoutControllersTakeOutServersThatFail(t *testing.T) {
	run(t, "alone")
}

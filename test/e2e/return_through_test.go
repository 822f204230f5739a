package e2e

import "testing"

// Promise: With answers by the load balancer and untouched servers, another load balancer that shares no state
// takes over in mid-connection.
// Promise: With `return: through` and servers with `tcp_timestamps=2`, connections are kept without shared state
// when the pool changes or a load balancer is killed.
// Also held by TestTheServersTimestampIsRestoredExactly.
func TestAnotherLoadBalancerTakesOverAnswers(t *testing.T) {
	result := run(t, "return-through")
	if len(result.Trials) != 3 || result.Broken != 0 {
		t.Errorf("%+v", result.Tally)
	}
}

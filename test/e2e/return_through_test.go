package e2e

import "testing"

// Promise: with answers by the load balancer and untouched servers, another load balancer that shares
// no state takes over in mid-connection.
func TestAnotherLoadBalancerTakesOverAnswers(t *testing.T) {
	result := run(t, "return-through")
	if len(result.Trials) != 3 || result.Broken != 0 {
		t.Errorf("%+v", result.Tally)
	}
}

package e2e

import "testing"

// Promise: A pool that follows the load breaks no connection that carries a cookie (Cheetah, figure 9); the same
// events break connections steered by hash, fewer by consistent hashing, fewer still with a second chance.
func TestAPoolThatFollowsTheLoadBreaksNothing(t *testing.T) {
	var arguments []string
	if long() {
		arguments = []string{"--duration", "40s"}
	}
	result := run(t, "elastic", arguments...)
	if result.Attempted < 500 || result.Broken != 0 || result.Completed != result.Attempted {
		t.Errorf("with cookies %d of %d broken", result.Broken, result.Attempted)
	}
	for _, policy := range []string{"hash", "maglev", "second-chance", "cookie"} {
		t.Logf("%s: %.2f %% broken, balance %.3f", policy, result.Measurements["broken_percent_"+policy], result.Measurements["balance_"+policy])
	}
}

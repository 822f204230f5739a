package e2e

import "testing"

// Promise: Losing controllers, etcd members or the way to them breaks no connection and leaves no stale server
// behind; weights and health follow again within seconds.
// Promise: While nobody leads the service, the last weights stay.
func TestLosingControllersBreaksNothing(t *testing.T) {
	var arguments []string
	if long() {
		arguments = []string{"--duration", "30s"}
	}
	result := run(t, "controller-loss", arguments...)
	if result.Attempted < 500 || result.Broken != 0 || result.Completed != result.Attempted {
		t.Errorf("%d of %d broken: %v", result.Broken, result.Attempted, result.BrokenBy)
	}
	for name, value := range result.Measurements {
		t.Logf("%s: %.3f", name, value)
	}
}

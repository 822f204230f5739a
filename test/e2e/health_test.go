package e2e

import "testing"

// Promise: A server that fails its checks gets no new connections within fall checks, on every load balancer that
// sees it fail and on no other, and keeps those it has; one that flaps settles; all_down says who serves when all
// have failed; only health.deadline cuts connections, and clients hear of it.
func TestUnhealthyServersGetNothingNewAndKeepWhatTheyHave(t *testing.T) {
	result := run(t, "health")
	logMeasured(t, result)
	if cut := int(result.Measurements["connections_cut"]); result.Broken != cut || cut == 0 {
		t.Errorf("%d of %d broken, %d of them by the deadline: %v", result.Broken, result.Attempted, cut, result.BrokenBy)
	}
	if broken := result.Trials[0].Broken; broken != 0 {
		t.Errorf("%d broken while no deadline was set", broken)
	}
}

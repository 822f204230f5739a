package e2e

import "testing"

// Promise: Every way of forwarding carries HTTP in both directions, over both IP versions.
func TestEveryForwardingCarriesHTTP(t *testing.T) {
	result := run(t, "forwards")
	if len(result.Trials) != 10 {
		t.Errorf("%d ways instead of 10", len(result.Trials))
	}
	for _, trial := range result.Trials {
		if trial.Completed != 100 || len(trial.ServedBy) != 2 {
			t.Errorf("%s: %+v", trial.Name, trial.Tally)
		}
		timestampsAccepted(t, trial)
	}
}

package e2e

import "testing"

// Promise: QUIC connections reach their server by the ids that it issues, while servers, load balancers, keys and the clients' own addresses change (Cheetah
// IV-D); steered by hash, some break.
func TestQUICConnectionsOutliveChangesOfEverybodysAddresses(t *testing.T) {
	result := run(t, "quic")
	logMeasured(t, result)
	for _, trial := range result.Trials {
		t.Logf("%s: %d of %d broken", trial.Name, trial.Broken, trial.Attempted)
		if baseline := trial.Name == "hash"; trial.Broken != 0 != baseline || trial.Attempted < 150 {
			t.Errorf("%s: %d of %d broken: %v", trial.Name, trial.Broken, trial.Attempted, trial.BrokenBy)
		}
	}
}

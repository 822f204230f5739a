package e2e

import "testing"

// Promise: further subflows of MPTCP connections reach the server of the first, by ports of the VIP that name servers, while servers, load balancers and keys
// change; and they carry the connection when the path dies that it began on (Cheetah VI).
func TestSubflowsJoinTheServerOfTheirConnection(t *testing.T) {
	result := run(t, "mptcp")
	logMeasured(t, result)
	for _, trial := range result.Trials {
		t.Logf("%s: %d of %d broken", trial.Name, trial.Broken, trial.Attempted)
		if baseline := trial.Name == "hash"; trial.Broken != 0 != baseline || trial.Attempted < 100 {
			t.Errorf("%s: %d of %d broken: %v", trial.Name, trial.Broken, trial.Attempted, trial.BrokenBy)
		}
	}
}

package e2e

import "testing"

// Promise: `ballast ctl key rotate` breaks no connection, those included that their server's keepalives alone
// hold; it waits for clients that are silent and for nodes that are lost, says so, and goes on when it is said
// again; only --force breaks what it waits for.
func TestARotationOfKeysWaitsForSilentClientsAndLostNodes(t *testing.T) {
	result := run(t, "rotation")
	if result.Attempted < 200 || result.Broken != 0 {
		t.Errorf("%d of %d broken: %v", result.Broken, result.Attempted, result.BrokenBy)
	}
	timestampsAccepted(t, result.Trials[0])
}

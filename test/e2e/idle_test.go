package e2e

import "testing"

// Promise: A connection may be silent for any time and still goes on where it was.
func TestIdleConnectionsGoOn(t *testing.T) {
	var arguments []string
	if long() {
		arguments = []string{"--duration", "10m"}
	}
	result := run(t, "idle", arguments...)
	if result.Completed != 100 {
		t.Errorf("%+v", result.Tally)
	}
	timestampsAccepted(t, result.Trials[0])
}

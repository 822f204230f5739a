package e2e

import "testing"

// Promise: the fragments of a datagram reach one server, which can put them together.
func TestFragmentsReachOneServer(t *testing.T) {
	result := run(t, "fragments")
	if result.Completed != 640 {
		t.Errorf("%+v", result.Tally)
	}
}

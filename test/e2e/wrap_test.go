package e2e

import "testing"

// Promise: Bulk transfers and quiet connections cross the wrap of the cookie's clock.
func TestTransfersCrossTheWrapOfTheClock(t *testing.T) {
	var arguments []string
	if long() {
		arguments = []string{"--duration", "290s"} // the default cookie of 14 bits
	}
	result := run(t, "wrap", arguments...)
	if result.Broken != 0 {
		t.Errorf("%+v", result.Tally)
	}
	timestampsAccepted(t, result.Trials[0])
}

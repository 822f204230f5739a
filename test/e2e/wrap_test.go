package e2e

import "testing"

// Promise: bulk transfers and quiet connections cross the wrap of the cookie's clock.
func TestTransfersCrossTheWrapOfTheClock(t *testing.T) {
	result := run(t, "wrap")
	if result.Broken != 0 {
		t.Errorf("%+v", result.Tally)
	}
	timestampsAccepted(t, result.Trials[0])
}

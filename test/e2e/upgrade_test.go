package e2e

import "testing"

// Promise: Processes are upgraded, or crash and return, without losing a connection.
func TestConnectionsSurviveUpgradeInPlace(t *testing.T) {
	result := run(t, "upgrade")
	if result.Broken != 0 || len(result.Trials[0].Events) != 20 {
		t.Errorf("%+v %+v", result.Tally, result.Trials[0].Events)
	}
}

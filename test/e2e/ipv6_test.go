package e2e

import "testing"

// Promise: IPv6 is served as well as IPv4.
func TestConnectionsSurviveChurnOverIPv6(t *testing.T) {
	result := run(t, "ipv6")
	if result.Broken != 0 || result.Attempted < 2000 {
		t.Errorf("%+v", result.Tally)
	}
	timestampsAccepted(t, result.Trials[0])
}

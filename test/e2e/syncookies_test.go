package e2e

import "testing"

// Promise: servers under a SYN flood, which answer with SYN cookies, keep their connections.
func TestSYNCookiesWork(t *testing.T) {
	result := run(t, "syncookies")
	if result.Broken != 0 {
		t.Errorf("%+v", result.Tally)
	}
	timestampsAccepted(t, result.Trials[0])
}

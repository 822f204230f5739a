package e2e

import "testing"

// Promise: Servers under a SYN flood, which answer with SYN cookies, keep their connections.
// Promise: A SYN flood stores nothing at the load balancer, and servers answer with SYN cookies.
func TestSYNCookiesWork(t *testing.T) {
	result := run(t, "syncookies")
	if result.Broken != 0 {
		t.Errorf("%+v", result.Tally)
	}
	timestampsAccepted(t, result.Trials[0])
}

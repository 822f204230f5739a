package e2e

import "testing"

// Promise: Servers that the DNS, Consul or a file names no more drain, those that it names get new connections, and a source that is dead, wrong or empty takes
// none away: no connection breaks, and `ballast ctl source list` says what is wrong.
func TestSourcesOfServersBreakNothing(t *testing.T) {
	result := run(t, "sources")
	if result.Attempted < 500 || result.Broken != 0 || result.Completed != result.Attempted {
		t.Errorf("%d of %d broken: %v", result.Broken, result.Attempted, result.BrokenBy)
	}
}

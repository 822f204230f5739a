package e2e

import (
	"os/exec"
	"testing"
)

// Promise: A VIP moves from another load balancer to Ballast and back while connections live: none breaks, of new ones
// as many begin at Ballast as `share` says, and `ballast_predecessor_connections` is 0 only when none is left.
func TestVIPsMoveInAndOutWithoutABrokenConnection(t *testing.T) {
	if _, err := exec.LookPath("/usr/sbin/haproxy"); err != nil {
		t.Skipf("%v: make deps", err)
	}
	moved(t, "migrate")
}

// moved runs a scenario in which a plain change of routes breaks connections.
func moved(t *testing.T, name string) {
	t.Helper()
	result := run(t, name)
	logMeasured(t, result)
	for _, name := range []string{"broken_by_plain_move_in", "broken_by_plain_move_out"} {
		if result.Measurements[name] == 0 {
			t.Errorf("%s is 0: %v", name, result.Measurements)
		}
	}
}

// Promise: A VIP of IPv6 moves from another load balancer to Ballast and back while connections live, and load balancers say when the link of the
// other one is down.
func TestVIPsOfIPv6MoveInAndOutWithoutABrokenConnection(t *testing.T) {
	if !long() {
		t.Skipf("TestVIPsMoveInAndOutWithoutABrokenConnection is the short form; set %s for IPv6", longVariable)
	}
	if _, err := exec.LookPath("/usr/sbin/haproxy"); err != nil {
		t.Skipf("%v: make deps", err)
	}
	if result := run(t, "migrate-ipv6"); result.Attempted == 0 || result.Broken != 0 {
		t.Errorf("%d of %d broken", result.Broken, result.Attempted)
	}
}

// Promise: VIPs on the load balancers' own segment move from another load balancer to Ballast and back, by the commands of the documents, without a broken
// connection; load balancers that start take none of them.
func TestVIPsOnASegmentMoveInAndOutWithoutABrokenConnection(t *testing.T) {
	if !long() {
		t.Skipf("TestAVIPOfAnotherHostIsTakenWhenThatStopsAndGivenBack is the short form; set %s for connections", longVariable)
	}
	for _, tool := range []string{"/usr/sbin/haproxy", "arping"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%v: make deps", err)
		}
	}
	if result := run(t, "migrate-l2"); result.Attempted == 0 || result.Broken != 0 {
		t.Errorf("%d of %d broken", result.Broken, result.Attempted)
	}
}

// Promise: VIPs of TCP and UDP move from one fleet to another that has other keys, and back, while connections and flows live: none breaks, also if a
// cookie of the other fleet looks like one of ours, and what neither has is dropped and counted where fleets name each other.
func TestVIPsMoveFromFleetToFleet(t *testing.T) {
	if !long() {
		t.Skipf("TestVIPsMoveInAndOutWithoutABrokenConnection is the short form; set %s for two fleets", longVariable)
	}
	moved(t, "migrate-fleet")
}

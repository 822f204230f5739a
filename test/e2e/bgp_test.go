package e2e

import (
	"os"
	"os/exec"
	"testing"
)

// Promise: Real routers learn VIPs by BGP; a dead load balancer is noticed within a second; drains, restarts,
// upgrades and returns lose no packet.
// Promise: With BGP and BFD, routers move the traffic of a failed load balancer within a second, and drains,
// restarts, `--detach` and returns lose no packet.
// Also held by TestVIPsAreAnnouncedAndWithdrawnAndKeptOverRestarts.
func TestRoutersLearnVIPsByBGP(t *testing.T) {
	if !long() {
		t.Skipf("internal/daemon plays the router; set %s for BIRD and FRR", longVariable)
	}
	if _, err := exec.LookPath("bird"); err != nil {
		t.Skip("needs bird2")
	}
	if _, err := os.Stat("/usr/lib/frr/bgpd"); err != nil {
		t.Skip("needs frr")
	}
	result := run(t, "bgp")
	if result.Broken != 0 || len(result.Trials) != 4 {
		t.Errorf("%+v", result)
	}
	for _, router := range []string{"bird", "frr", "bird-ipv6", "frr-ipv6"} {
		if outage := result.Measurements[router+"_outage_seconds"]; outage <= 0 || outage >= 1 {
			t.Errorf("%s noticed after %v s", router, outage)
		}
	}
}

package e2e

import (
	"os/exec"
	"testing"
)

// Promise: Of two machines that are load balancers and servers, each is upgraded, killed, hangs and loses power in
// turn: no connection breaks whose server lives.
// Public: github/glb-director#139 (director and proxy on one machine: some packets are lost).
func TestHostsWithBothRolesKeepConnections(t *testing.T) {
	result := run(t, "pair")
	if result.Measurements["connections_cut"] == 0 || len(result.Trials[0].Events) != 22 {
		t.Errorf("%+v %+v", result.Tally, result.Trials[0].Events)
	}
}

// What keepalived and HAProxy do in the same events is measured where they are installed.
func TestTheSameEventsBreakConnectionsOfHAProxy(t *testing.T) {
	for _, program := range []string{"/usr/sbin/haproxy", "/usr/sbin/keepalived", "/usr/bin/curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v: make deps", err)
		}
	}
	result := run(t, "pair", "--beside", "haproxy")
	for _, name := range []string{"beside_cut_by_restarts", "beside_cut_by_power_of_living_servers", "beside_vips_moved_ms"} {
		if result.Measurements[name] == 0 {
			t.Errorf("%s is 0: %v", name, result.Measurements)
		}
	}
	if result.Baseline == nil || len(result.Baseline.ServedBy) != 2 {
		t.Errorf("HAProxy has reached %+v", result.Baseline)
	}
}

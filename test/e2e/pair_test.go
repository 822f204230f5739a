package e2e

import "testing"

// Promise: Of two machines that are load balancers and servers, each is upgraded, killed and loses power in turn: no
// connection breaks whose server lives.
func TestHostsWithBothRolesKeepConnections(t *testing.T) {
	result := run(t, "pair")
	if result.Measurements["connections_cut"] == 0 || len(result.Trials[0].Events) != 20 {
		t.Errorf("%+v %+v", result.Tally, result.Trials[0].Events)
	}
}

package e2e

import "testing"

// Connections through NAT functions keep their function, both ways, while load balancers and functions come and go; of a function that dies only its own break.
func TestConnectionsThroughNetworkFunctionsKeepTheirFunction(t *testing.T) {
	if !long() {
		t.Skip("three trials of network functions: make test-long")
	}
	run(t, "network-functions")
}

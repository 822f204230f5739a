package e2e

import "testing"

// Promise: all connections of a TLS session reach one server, while servers, load balancers and keys change; without it, sessions move (Yuz III).
func TestConnectionsOfATLSSessionReachOneServer(t *testing.T) {
	logMeasured(t, run(t, "sessions"))
}

package e2e

import "testing"

// Promise: QUIC connections reach their server by the ids that it issues, while servers, load balancers, keys and the clients' own addresses change (Cheetah
// IV-D); steered by hash, some break.
// Promise: QUIC connections are kept by their connection ids while servers and load balancers come and go and the
// next key is used.
// Promise: QUIC connections are kept when the client's address or port changes, by migration or by NAT.
func TestQUICConnectionsOutliveChangesOfEverybodysAddresses(t *testing.T) {
	result := run(t, "quic")
	logMeasured(t, result)
	for _, trial := range result.Trials {
		t.Logf("%s: %d of %d broken", trial.Name, trial.Broken, trial.Attempted)
		if baseline := trial.Name == "hash"; trial.Broken != 0 != baseline || trial.Attempted < 150 {
			t.Errorf("%s: %d of %d broken: %v", trial.Name, trial.Broken, trial.Attempted, trial.BrokenBy)
		}
	}
}

// Promise: QUIC connections of unmodified clients survive the same changes: Chromium and aioquic, over a NAT that
// forgets their ports (make test-long, which fetches them).
func TestQUICConnectionsOfOtherClientsOutliveChanges(t *testing.T) {
	if !long() {
		t.Skip("clients have to be fetched: make test-long")
	}
	result := run(t, "quic-clients")
	logMeasured(t, result)
	if len(result.Trials) != 2 {
		t.Errorf("%d trials: is BALLAST_AIOQUIC not set?", len(result.Trials))
	}
}

// Promise: QUIC connections to unmodified servers survive the same changes: nginx, aioquic, Envoy and quinn (make
// test-long, which fetches them).
func TestQUICConnectionsOfOtherServersOutliveChanges(t *testing.T) {
	if !long() {
		t.Skip("servers with QUIC have to be fetched: make test-long")
	}
	preloaded(t, "quic")
	trials := run(t, "quic-servers").Trials
	if len(trials) != 6 {
		t.Errorf("%d trials: is BALLAST_AIOQUIC, BALLAST_ENVOY or BALLAST_QUINN not set?", len(trials))
	}
	for _, trial := range trials {
		t.Logf("%s: %d of %d broken", trial.Name, trial.Broken, trial.Attempted)
		if baseline := trial.Name == "hash"; trial.Broken != 0 != baseline || trial.Attempted < 150 {
			t.Errorf("%s: %d of %d broken: %v", trial.Name, trial.Broken, trial.Attempted, trial.BrokenBy)
		}
	}
}

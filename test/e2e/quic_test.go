package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Promise: QUIC connections reach their server by the ids that it issues, while servers, load balancers, keys and the clients' own addresses change (Cheetah
// IV-D); steered by hash, some break.
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

// Promise: the same with an nginx that nobody has changed (make test-long, which fetches one that speaks QUIC).
func TestQUICConnectionsOfNginxOutliveChanges(t *testing.T) {
	if !long() {
		t.Skip("an nginx with QUIC has to be fetched: make test-long")
	}
	library := filepath.Join(filepath.Dir(binary), "ballast-quic.so")
	if said, err := exec.Command("gcc", "-O2", "-shared", "-fPIC", "-o", library, "../../preload/quic.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for _, trial := range run(t, "quic-nginx").Trials {
		t.Logf("%s: %d of %d broken", trial.Name, trial.Broken, trial.Attempted)
		if baseline := trial.Name == "hash"; trial.Broken != 0 != baseline || trial.Attempted < 150 {
			t.Errorf("%s: %d of %d broken: %v", trial.Name, trial.Broken, trial.Attempted, trial.BrokenBy)
		}
	}
}

package e2e

import (
	"strings"
	"testing"
)

// Promise: Servers accept connections or pass them on, and the pool changes under those connections (SHELL, VI):
// downloads are lost without history and kept with it, by the column in their timestamps or without timestamps;
// with cookies ten reconfigurations and a lost load balancer break nothing.
// Promise: With `choices`, connections are kept by cookies, and without them while their server is one of the last
// `choices.history` owners in its column.
func TestConnectionsThatServersChooseSurviveReconfigurations(t *testing.T) {
	result := run(t, "shell")
	for _, trial := range result.Trials {
		t.Logf("%s: %d of %d broken", trial.Name, trial.Broken, trial.Attempted)
		switch {
		case trial.Attempted < 60:
			t.Errorf("%s: only %d connections", trial.Name, trial.Attempted)
		case (trial.Broken != 0) != strings.HasSuffix(trial.Name, "-depth-1"):
			t.Errorf("%s: %d of %d broken: %v", trial.Name, trial.Broken, trial.Attempted, trial.BrokenBy)
		}
		timestampsAccepted(t, trial)
	}
}

// Promise: A load balancer sends the packets of a connection through its server as long as that is among the last `choices.history`
// owners: 60 reconfigurations reset the same share of connections as in the simulator (SHELL, figure 6).
func TestReconfigurationsResetAsManyConnectionsAsInTheSimulator(t *testing.T) {
	if !long() {
		t.Skip("plays what the simulator has already played: make test-long")
	}
	for _, figure := range run(t, "shell-resets").Figures {
		t.Logf("%s: paper %s, here %.3g, simulated %.3g", figure.What, figure.Paper, figure.Here, figure.Simulated)
	}
}

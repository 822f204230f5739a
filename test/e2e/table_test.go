package e2e

import "testing"

// Promise: with affinity table, load balancers list exactly the connections that servers have; entries are free again after FIN, RST
// and silence; floods take nothing from real connections, a limit stops the connection that exceeds it and no other, and a suspect's
// packets visit the scrubber; whatever happens to entries, no connection breaks.
func TestTablesKnowTheConnectionsAndNoneDependsOnThem(t *testing.T) {
	result := run(t, "table")
	logMeasured(t, result)
	if len(result.Trials) != 3 || result.Broken != 0 || result.Completed != result.Attempted {
		t.Errorf("%d of %d broken: %v", result.Broken, result.Attempted, result.BrokenBy)
	}
	timestampsAccepted(t, result.Trials[0])
	timestampsAccepted(t, result.Trials[2]) // floods repeat packets of real clients, whose timestamps are old
}

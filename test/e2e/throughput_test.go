package e2e

import "testing"

// wrk and iperf3 work through Ballast; what cookies cost is reported and not judged here: paired runs
// on a busy machine vary by more than the cost.
func TestBenchmarkToolsRunThroughBallast(t *testing.T) {
	if !long() {
		t.Skip("measures for half a minute: make test-long")
	}
	result := run(t, "throughput")
	for _, name := range []string{"bulk_bits_per_second_ratio", "connections_per_second_ratio"} {
		if result.Measurements[name] <= 0 {
			t.Errorf("%s was not measured", name)
		}
		t.Logf("%s: %.3f", name, result.Measurements[name])
	}
}

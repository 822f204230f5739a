package e2e

import "testing"

// Promise: clients without TCP timestamps are at least as safe as with any other load balancer: their
// servers are found by second chance across changes that break plain hashing.
func TestClientsWithoutTimestampsKeepTheirServers(t *testing.T) {
	result := run(t, "no-timestamps")
	if result.Broken != 0 || result.Baseline == nil || result.Baseline.Broken == 0 {
		t.Errorf("%+v, baseline %+v", result.Tally, result.Baseline)
	}
}

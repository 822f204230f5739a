package e2e

import "testing"

// Promise: Clients without TCP timestamps are at least as safe as with any other load balancer: their servers are
// found by second chance across changes that break plain hashing.
// Promise: A connection without timestamps is kept while its server is one of the last three distinct owners of
// its slot.
// Also held by TestSecondChanceKeepsWhatIsMineAndHandsOnTheRest.
// Promise: Connections without timestamps are kept when a load balancer is killed or added, because equal files
// and history give equal slots.
func TestClientsWithoutTimestampsKeepTheirServers(t *testing.T) {
	result := run(t, "no-timestamps")
	if result.Broken != 0 || result.Baseline == nil || result.Baseline.Broken == 0 {
		t.Errorf("%+v, baseline %+v", result.Tally, result.Baseline)
	}
}

package e2e

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/scenario"
)

// Promise: IPv6 is served as well as IPv4.
func TestConnectionsSurviveChurnOverIPv6(t *testing.T) { churnOverIPv6(t) }

// Promise: Connections over IPv6 survive churn with a connection table on each load balancer.
func TestConnectionsSurviveChurnOverIPv6WithTables(t *testing.T) {
	if !long() {
		t.Skipf("TestConnectionsSurviveTheLossOfATableInTheSecondTier has tables under churn over IPv4; set %s for IPv6", longVariable)
	}
	counters := churnOverIPv6(t, "--affinity", "table").Trials[0].Counters
	for _, lb := range []string{"lb1", "lb2"} {
		if counters[lb]["forwarded_by_table"] == 0 || counters[lb]["forwarded_table_full"] != 0 {
			t.Errorf("%s counted %v", lb, counters[lb])
		}
	}
}

func churnOverIPv6(t *testing.T, arguments ...string) scenario.Result {
	result := run(t, "ipv6", arguments...)
	if result.Broken != 0 || result.Attempted < 2000 {
		t.Errorf("%+v", result.Tally)
	}
	timestampsAccepted(t, result.Trials[0])
	return result
}

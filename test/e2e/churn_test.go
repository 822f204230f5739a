package e2e

import "testing"

// Promise: A connection that reached a server keeps reaching it, whatever happens to the set of servers, the set
// of load balancers and the key; the same events break connections steered by hash.
// Promise: Connections with cookies are kept when a load balancer is killed, added or returns, or loses its link,
// once routers send its packets to another.
func TestConnectionsSurviveChurn(t *testing.T) {
	result := run(t, "churn")
	if result.Attempted < 2000 || result.Trials[0].Throughout["download"] < 100 {
		t.Errorf("too little traffic to prove anything: %+v", result.Tally)
	}
	if result.Broken != 0 || result.Completed != result.Attempted {
		t.Errorf("%d of %d broken", result.Broken, result.Attempted)
	}
	if result.Baseline == nil || result.Baseline.Affinity != "hash" || result.Baseline.Broken == 0 {
		t.Errorf("baseline %+v", result.Baseline)
	}
	timestampsAccepted(t, result.Trials[0])
}

// Promise: Connections survive churn with every policy, while the weights of those that follow load change ten
// times a second.
// Promise: Connections are kept with every policy while weights change many times a second.
// Also held by TestPoliciesAreSwitchedUnderPackets and TestConnectionsSurviveChurn.
func TestConnectionsSurviveChurnWithEveryPolicy(t *testing.T) {
	result := run(t, "churn", "--dispatch", "all")
	if result.Attempted < 2000 || result.Broken != 0 || result.Completed != result.Attempted {
		t.Errorf("%d of %d broken: %v", result.Broken, result.Attempted, result.BrokenFlows)
	}
	timestampsAccepted(t, result.Trials[0])
}

// Promise: Connections survive churn with each policy by itself.
func TestConnectionsSurviveChurnWithEachPolicy(t *testing.T) {
	if !long() {
		t.Skipf("TestConnectionsSurviveChurnWithEveryPolicy is the short form; set %s for one run for each policy", longVariable)
	}
	for _, policy := range []string{"hash", "maglev", "rr", "wrr", "p2c", "least", "awrr", "awfd", "wcmp", "lcf", "choices"} {
		t.Run(policy, func(t *testing.T) {
			if result := run(t, "churn", "--dispatch", policy); result.Broken != 0 || result.Completed != result.Attempted {
				t.Errorf("%d of %d broken", result.Broken, result.Attempted)
			}
		})
	}
}

// Promise: Connections survive churn with a connection table on each load balancer and every policy.
// Promise: With `affinity: table`, connections are kept while servers, load balancers and the key change at once.
// Also held by TestConnectionsSurviveTheLossOfATableInTheSecondTier.
func TestConnectionsSurviveChurnWithTables(t *testing.T) {
	if !long() {
		t.Skipf("TestConnectionsSurviveTheLossOfATableInTheSecondTier is the short form; set %s for every policy", longVariable)
	}
	result := run(t, "churn", "--dispatch", "all", "--affinity", "table")
	if result.Attempted < 2000 || result.Broken != 0 || result.Completed != result.Attempted {
		t.Errorf("%d of %d broken: %v", result.Broken, result.Attempted, result.BrokenFlows)
	}
	timestampsAccepted(t, result.Trials[0])
}

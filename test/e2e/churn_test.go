package e2e

import "testing"

// Promise: a connection that reached a server keeps reaching it, whatever happens to the set of
// servers, the set of load balancers and the key; the same events break connections steered by hash.
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

// Promise: the same with every policy there is, while the weights of those that follow load change ten times a second.
func TestConnectionsSurviveChurnWithEveryPolicy(t *testing.T) {
	result := run(t, "churn", "--dispatch", "all")
	if result.Attempted < 2000 || result.Broken != 0 || result.Completed != result.Attempted {
		t.Errorf("%d of %d broken: %v", result.Broken, result.Attempted, result.BrokenFlows)
	}
	timestampsAccepted(t, result.Trials[0])
}

// Promise: the same with every policy by itself, against the baseline.
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

// Promise: the same with a table of connections on each load balancer, and every policy.
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

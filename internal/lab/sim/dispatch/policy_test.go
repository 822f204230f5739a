package dispatch

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

// names are all policies. Those that look at loads are shown equal ones.
var names = []string{"rr", "wrr", "awrr", "p2c", "least", "awfd", "lcf", "hash", "maglev", "wcmp"}

func TestPoliciesChooseAmongThoseThatWereWeighedLast(t *testing.T) {
	loads := make([]int32, 6)
	for _, name := range names {
		policy := New(name, 251, random.Keyed(1, "numbers"))
		for _, present := range [][]model.Share{{{ID: 1, Weight: 1}, {ID: 2, Weight: 3}}, {{ID: 2, Weight: 3}, {ID: 6, Weight: 2}}} {
			policy.Weigh(present)
			chosen := map[uint32]int{}
			for flow := range uint64(4000) {
				chosen[policy.Choose(flow, loads)]++
			}
			for _, share := range present {
				if chosen[uint32(share.ID)-1] < 500 {
					t.Errorf("%s: among %v, by server: %v", name, present, chosen)
				}
			}
			if len(chosen) != len(present) {
				t.Errorf("%s: among %v, by server: %v", name, present, chosen)
			}
		}
	}
}

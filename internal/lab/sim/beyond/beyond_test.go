package beyond

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// holds runs an experiment once and checks its claims. One seed strays further than the mean of many: shares may leave the band by a fifth.
func holds(t *testing.T, experiment sim.Experiment) {
	t.Helper()
	const seed = 3
	outcome, err := sim.Once(t.Context(), experiment, seed)
	if err != nil {
		t.Fatal(err)
	}
	for _, claim := range experiment.Claims {
		value, ok := outcome.Values[claim.ID]
		if !ok || value < claim.Low/1.2 || value > claim.High*1.2 {
			t.Errorf("seed %d: %s is %g %s %v, outside of %g to %g", seed, claim.What, value, claim.Unit, ok, claim.Low, claim.High)
		}
	}
}

func TestAHundredthOfTheLargestScaleBreaksTheSameShare(t *testing.T) {
	small := scale{servers: 1000, bucketsPerServer: 100, connections: 400_000, updates: 100, seconds: 60, downSeconds: 10}
	holds(t, scaleExperiment(small, small))
}

func TestOnlyCookiesSurviveServersAndLoadBalancersThatComeAndGo(t *testing.T) {
	if testing.Short() {
		t.Skip("ten minutes of a world of 70000 connections, four times")
	}
	holds(t, bothExperiment())
}

func TestALostRackHurtsOthersUnderPlainHashOnly(t *testing.T) { holds(t, rackExperiment()) }

func TestServersThatDecideByTheirLoadFollowWorkThatMoves(t *testing.T) {
	holds(t, choicesExperiment(100, "12s"))
}

func TestFollowingTheLoadEvensItAndBreaksNothingWithCookies(t *testing.T) {
	uneven := map[int64]float64{}
	for _, intervalNS := range []int64{0, 10 * millisecond} {
		c := reweighCase{intervalNS: intervalNS}
		_, err := sim.Once(t.Context(), sim.Experiment{Name: "x", Run: func(run *sim.Run) {
			stats, much := c.play(run, 0, 1)
			if uneven[intervalNS] = much; stats.Broken != 0 || stats.Ended == 0 {
				t.Errorf("%+v", stats)
			}
		}}, 1)
		if err != nil {
			t.Fatal(err)
		}
	}
	if !(uneven[10*millisecond] < uneven[0]-0.05) {
		t.Errorf("%v", uneven)
	}
}

func TestTurnoverKeepsHalfOfThemAndItsOrder(t *testing.T) {
	servers, _ := bothTurnovers(1)
	at, away := int64(0), map[uint32]bool{}
	for range 10_000 {
		next, who, back := servers.next()
		if next < at || away[who] != back || len(servers.present) < bothServers/2 {
			t.Fatalf("at %d after %d: %d, back %v, while %d are there", next, at, who, back, len(servers.present))
		}
		at, away[who] = next, !back
		if len(servers.present)+countTrue(away) != bothServers {
			t.Fatalf("%d there and %d away", len(servers.present), countTrue(away))
		}
	}
}

func countTrue(set map[uint32]bool) (n int) {
	for _, there := range set {
		if there {
			n++
		}
	}
	return n
}

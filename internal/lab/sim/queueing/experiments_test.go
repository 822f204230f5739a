package queueing

import (
	"context"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// once gives a run to test with.
func once(t *testing.T, seed uint64, do func(run *sim.Run)) {
	t.Helper()
	if _, err := sim.Once(context.Background(), sim.Experiment{Name: "test", Run: do}, seed); err != nil {
		t.Fatal(err)
	}
}

// short plays the world of figure 8 for less time.
func short(t *testing.T, seed uint64, build maker) *World {
	t.Helper()
	var played *World
	once(t, seed, func(run *sim.Run) {
		world := bimodalFarm(seed)
		world.countNS = 40 * second
		played = world.run(run, build(seed, world.servers))
	})
	return played
}

func TestARunOfAFarmDependsOnItsSeedOnly(t *testing.T) {
	for name, build := range map[string]maker{"awrr": weighted(100*millisecond, cheetahCounters), "p2c": twoReported(100 * millisecond), "least": least} {
		first, again, other := short(t, 7, build), short(t, 7, build), short(t, 8, build)
		if !slices.Equal(first.times, again.times) || first.Variance() != again.Variance() {
			t.Errorf("%s: the same seed gave another result", name)
		}
		if slices.Equal(first.times, other.times) {
			t.Errorf("%s: another seed gave the same result", name)
		}
	}
}

func TestPoliciesMeetTheSameRequests(t *testing.T) {
	if a, b := short(t, 3, hash), short(t, 3, least); !slices.Equal(a.born, b.born) {
		t.Error("requests came at other times")
	}
}

// Which policy is better than which, with one seed and in half the time: the bands are wider than those of the experiment.
func TestSlowRequestsAreSpreadAsCheetahSays(t *testing.T) {
	const seed = 1
	hashed := Quantile(short(t, seed, hash).Times(), 0.99)
	for _, c := range []struct {
		name      string
		build     maker
		low, high float64
	}{
		{"rr", roundRobin(cheetahCounters), 0.8, 1.5},
		{"awrr at 10 Hz", weighted(100*millisecond, 1), 1.5, 2.4},
		{"p2c at 10 Hz", twoReported(100 * millisecond), 1.4, 2.4},
		{"p2c at 100 Hz", twoReported(10 * millisecond), 1.5, 2.4},
		{"least reported at 10 Hz", leastReported(100 * millisecond), 1.6, 2.7},
		{"lowest report at 10 Hz", lowestReported(100 * millisecond), 0.2, 0.8},
		{"least", least, 3, 7},
	} {
		if ratio := hashed / Quantile(short(t, seed, c.build).Times(), 0.99); ratio < c.low || ratio > c.high {
			t.Errorf("seed %d: %s: p99 of hash is %.2f times as long, want %g to %g", seed, c.name, ratio, c.low, c.high)
		}
	}
}

// Between two reports each request adds what one brings on average: else least would give one server everything, as the lowest report does.
func TestReportedLoadsRiseWithEachRequestUntilTheNextReport(t *testing.T) {
	const servers = 4
	p := leastReported(second)(1, servers)
	got := make([]int, servers)
	play := func(requests uint64) {
		clear(got)
		for flow := range requests {
			got[p.chooser.Choose(flow, nil)]++
		}
	}
	play(40)
	for range 20 {
		p.weigh([]float64{0.5, 0.5, 0.5, 0.5})
		play(40)
	}
	p.weigh([]float64{0.5, 0.5, 0.5, 0.4})
	if play(40); got[3] < 11 || got[3] > 12 {
		t.Errorf("%v: 40 requests have brought 1.9, so 0.1 less is worth two of them", got)
	}
}

func TestRoundRobinIsMoreEvenThanHash(t *testing.T) {
	const seed = 2
	once(t, seed, func(run *sim.Run) {
		world := constantFarm(16, 0.6, 10*second)
		hashed := world.run(run, hash(seed, 16))
		turns := world.run(run, roundRobin(1)(seed, 16))
		// Of a server's second, a Poisson number of requests takes 5 ms each: variance 0.6 * 0.005, times 15/16 between servers.
		if v := hashed.Variance(); math.Abs(v-0.6*0.005*15/16) > 0.3*0.6*0.005 {
			t.Errorf("seed %d: variance of hash %g", seed, v)
		}
		if turns.Variance() > hashed.Variance()/100 || Quantile(turns.Times(), 0.99) > Quantile(hashed.Times(), 0.99)/2 {
			t.Errorf("seed %d: round robin has variance %g and p99 %g, hash %g and %g", seed, turns.Variance(), Quantile(turns.Times(), 0.99), hashed.Variance(),
				Quantile(hashed.Times(), 0.99))
		}
	})
}

// crowd is a small cluster.
func crowd(b balancer, rate float64) *cluster {
	return &cluster{
		balancer: b, dataMB: 1, rate: rate, requests: always(usualRequest), think: always(thinkNS), stalls: fittedStalls,
		warmNS: 2 * second, countNS: 4 * second,
	}
}

func TestARunOfAClusterDependsOnItsSeedOnly(t *testing.T) {
	var runs []*shift
	for _, seed := range []uint64{5, 5, 6} {
		once(t, seed, func(run *sim.Run) {
			played := crowd(layer4, 3000).run(run)
			runs = append(runs, played)
		})
	}
	if !reflect.DeepEqual(runs[0].times, runs[1].times) || reflect.DeepEqual(runs[0].times, runs[2].times) {
		t.Error("times do not depend on the seed, or on something else")
	}
}

// Without much to do a request takes the network's time, the balancer's, its work, and that of the session's data: nine in ten have them.
func TestAnIdleClusterAnswersInTheTimeOfTheWork(t *testing.T) {
	for b, want := range map[balancer]float64{
		yuz:    float64(networkNS + yuzNS + workNS),
		layer7: float64(networkNS + layer7NS + workNS),
		layer4: float64(networkNS+layer4NS+workNS) + 0.9*(2*1e6+2*0.15e6),
	} {
		once(t, 1, func(run *sim.Run) {
			world := crowd(b, 500)
			world.stalls = stalls{}
			world.countNS = 60 * second
			played := world.run(run)
			within(t, b.name, played.meanSeconds()*1e9, want, 0.06)
			within(t, b.name+", requests a second", played.throughput(), 500, 0.06)
		})
	}
}

func TestAClusterCarriesWhatItsNarrowestPartDoes(t *testing.T) {
	for _, b := range yuzBalancers {
		once(t, 1, func(run *sim.Run) {
			rate, _ := mostOf(run, b, 5, usualMB)
			world := cluster{balancer: b, dataMB: usualMB}
			within(t, b.name, rate, world.boundOf(0.8), 0.03)
		})
	}
}

func TestTheOrderOfYuzFigure12Holds(t *testing.T) {
	outcome, err := sim.Once(context.Background(), yuzBalanceExperiment(), 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, claim := range yuzBalanceExperiment().Claims {
		if value := outcome.Values[claim.ID]; value < claim.Low || value > claim.High {
			t.Errorf("seed 3: %s is %g, want %g to %g", claim.ID, value, claim.Low, claim.High)
		}
	}
}

func TestStallsOfTheDatabaseLengthenTheTailAndLeaveTheRestAlone(t *testing.T) {
	once(t, 1, func(run *sim.Run) {
		calm := crowd(layer4, 6000)
		calm.stalls = stalls{}
		without := calm.run(run)
		with := crowd(layer4, 6000).run(run)
		if with.quantile(0.99) < 2*without.quantile(0.99) || with.quantile(0.5) > 1.5*without.quantile(0.5) {
			t.Errorf("p99 %g and %g s, median %g and %g s", with.quantile(0.99), without.quantile(0.99), with.quantile(0.5), without.quantile(0.5))
		}
	})
}

func TestCrossingIsWhereARatioBecomesOne(t *testing.T) {
	sizes := []float64{1, 2, 4, 8}
	if at := crossing(sizes, func(i int) float64 { return 3 / sizes[i] }); math.Abs(at-3) > 1e-9 {
		t.Errorf("crossing at %g, want 3", at)
	}
	if at := crossing(sizes, func(int) float64 { return 2 }); at != 8 {
		t.Errorf("no crossing: %g", at)
	}
}

func TestRunsStopWhenTheyAreNoLongerWanted(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	for _, experiment := range Experiments() {
		if _, err := sim.Once(ctx, experiment, 1); err == nil {
			t.Errorf("%s went on", experiment.Name)
		}
	}
}

package spotlight

import (
	"context"
	"math"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/algo/lcf"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/model"
)

func once(t *testing.T, experiment sim.Experiment, seed uint64) *sim.Outcome {
	t.Helper()
	outcome, err := sim.Once(context.Background(), experiment, seed)
	if err != nil {
		t.Fatal(err)
	}
	return outcome
}

// inBand checks the claims of one run. Those that are differences of noisy numbers hold for the mean of several.
func inBand(t *testing.T, experiment sim.Experiment, seed uint64, noisy ...string) {
	t.Helper()
	outcome := once(t, experiment, seed)
next:
	for _, claim := range experiment.Claims {
		for _, id := range noisy {
			if claim.ID == id {
				continue next
			}
		}
		if value := outcome.Values[claim.ID]; value < claim.Low || value > claim.High {
			t.Errorf("%s, seed %d: %s is %g, not in [%g, %g]", experiment.Name, seed, claim.ID, value, claim.Low, claim.High)
		}
	}
}

func TestTheExampleOfSectionIVIsExact(t *testing.T) {
	values := once(t, example(), 1).Values
	if values["ecmp"] != 12.5 || values["lcf"] != 0 || math.Abs(values["awfd"]-400.0/9) > 1e-12 {
		t.Errorf("%v", values)
	}
	inBand(t, example(), 1)
}

func TestFigure10IsInItsBands(t *testing.T) { inBand(t, figure10(paper), 5) }

func TestTheTestBedIsInItsBands(t *testing.T) {
	for seed := range uint64(2) {
		inBand(t, figure12(), seed, "consistent", "awfd-4", "awfd-2-500", "awfd-2-1000", "lcf-1000")
		inBand(t, figure13(), seed, "awfd-4-1000", "lcf-1000")
		inBand(t, figure14(), seed)
	}
}

// Without the heuristic, which takes as long as all the rest.
func TestFigure8IsInItsBands(t *testing.T) {
	const seed = 6
	world := newTrace(seed, paper.traffic)
	for _, c := range []struct {
		name      string
		policy    policy
		low, high float64
	}{
		{"ECMP", ecmp(paper.instances), 0.83, 0.85},
		{"WCMP", weighted(paper.instances), 0.92, 0.95},
		{"AWFD, 100 ms", adaptive(4, 100*millisecond), 0.97, 0.99},
		{"AWFD, 1 s", adaptive(4, 1000*millisecond), 0.94, 0.96},
		{"LCF, 250 ms", leastCongested(250 * millisecond), 0, 0.83},
	} {
		if omega := world.play(c.policy, paper.instances, paper.demand()/paper.overload, paper.warmNS); omega < c.low || omega > c.high {
			t.Errorf("%s, seed %d: %g is not in [%g, %g]", c.name, seed, omega, c.low, c.high)
		}
	}
}

// small is as the paper's, and quick.
var small = setup{traffic: synthesized(3, 6000, 5e6), instances: 12, overload: 1.05, warmNS: 5e9}

func TestARunIsDeterministicInItsSeed(t *testing.T) {
	for _, experiment := range []sim.Experiment{figure8(small), figure9(small, small, small), figure10(small), figure12(), figure14(), controlTraffic(small)} {
		first, second, other := once(t, experiment, 3), once(t, experiment, 3), once(t, experiment, 4)
		if !reflect.DeepEqual(first, second) {
			t.Errorf("%s: the same seed gives %v, then %v", experiment.Name, first.Values, second.Values)
		}
		if reflect.DeepEqual(first.Values, other.Values) {
			t.Errorf("%s: another seed gives the same", experiment.Name)
		}
	}
}

func TestACancelledRunStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, experiment := range []sim.Experiment{figure8(small), figure9(small, small, small), figure10(small), figure12(), figure13(), figure14(), controlTraffic(small)} {
		if _, err := sim.Once(ctx, experiment, 1); err == nil {
			t.Errorf("%s goes on", experiment.Name)
		}
	}
}

// Spotlight IV-B: "AWFD with m = 1 is equivalent to LCF".
func TestOneClassIsLeastCongestedFirst(t *testing.T) {
	for seed := range uint64(5) {
		world := newTrace(seed, small.traffic)
		for _, ms := range []int64{0, 10, 100, 1000} {
			one := world.play(adaptive(1, ms*millisecond), small.instances, small.demand(), small.warmNS)
			if lcf := world.play(leastCongested(ms*millisecond), small.instances, small.demand(), small.warmNS); one != lcf {
				t.Errorf("seed %d, %d ms: %g and %g", seed, ms, one, lcf)
			}
		}
	}
}

// Spotlight IV-B: "AWFD with no updates and m = 0 is equivalent to ECMP". They use a flow's number otherwise, so they agree in law.
func TestNoClassIsEqualCostMultipathInLaw(t *testing.T) {
	const seeds = 30
	var means [2]float64
	var squares float64
	for seed := range uint64(seeds) {
		world, values := newTrace(seed, small.traffic), [2]float64{}
		for i, p := range []policy{adaptive(0, 100*millisecond), ecmp(small.instances)} {
			values[i] = world.play(p, small.instances, small.demand(), small.warmNS)
			means[i] += values[i] / seeds
		}
		squares += (values[0] - values[1]) * (values[0] - values[1])
	}
	if off := math.Abs(means[0] - means[1]); off > 4*math.Sqrt(squares)/seeds {
		t.Errorf("m = 0 has %g and ECMP %g on average: %g apart", means[0], means[1], off)
	}
	got := counted(awfd.Weights(exampleLeft, 0))
	for _, share := range got {
		if share.Weight != got[0].Weight {
			t.Errorf("m = 0 gives %v", got)
		}
	}
}

func TestTheHeuristicIsTheLimitOfFrequentPolls(t *testing.T) {
	world := newTrace(1, small.traffic)
	often := world.play(policy{weigh: lcf.Weights, intervalNS: 1}, small.instances, small.demand(), small.warmNS)
	if always := world.play(heuristic(), small.instances, small.demand(), small.warmNS); often != always {
		t.Errorf("polls every ns: %g, before every flow: %g", often, always)
	}
}

func TestCrossoverIsWhereTheLineMeetsZero(t *testing.T) {
	xs := []int64{10, 20, 40}
	for _, c := range []struct {
		margins []float64
		want    float64
	}{{[]float64{2, 1, -1}, 30}, {[]float64{1, 0, 1}, 20}, {[]float64{1, 1, 1}, 40}, {[]float64{-1, 1, 1}, 10}} {
		if got := crossover(xs, c.margins); got != c.want {
			t.Errorf("%v: %g, want %g", c.margins, got, c.want)
		}
	}
}

func TestSizesOfUpdatesAreThoseOfTheProtocol(t *testing.T) {
	for _, n := range []int{1, 7, 127, 128, 300, 1000} {
		for _, version := range []uint64{1, 127, 128, 20_000} {
			for _, whole := range []bool{false, true} {
				message := &ballastv1.Weights{Service: "web", Term: 1, Version: version, Complete: whole}
				var ids []uint16
				for id := range n {
					ids = append(ids, uint16(id+1))
					message.Ids, message.Weights = append(message.Ids, uint32(id+1)), append(message.Weights, uint32(id%5))
				}
				want := proto.Size(&ballastv1.ToNode{Message: &ballastv1.ToNode_Weights{Weights: message}})
				if got := updateBytes("web", version, whole, ids); got != want {
					t.Errorf("%d weights, version %d, whole %v: %d bytes, want %d", n, version, whole, got, want)
				}
			}
		}
	}
}

func TestATallyCountsWhatChanges(t *testing.T) {
	weights := func(values ...uint16) (shares []model.Share) {
		for i, value := range values {
			shares = append(shares, model.Share{ID: uint16(i + 1), Weight: value})
		}
		return shares
	}
	tally := &tally{skip: 1}
	for _, shares := range [][]model.Share{weights(1, 1, 1), weights(1, 2, 1), weights(1, 2, 1), weights(2, 1, 1)} {
		tally.take(shares)
	}
	want := int64(sentBytes(updateBytes("web", 1, true, []uint16{1, 2, 3})) + sentBytes(updateBytes("web", 3, false, []uint16{1, 2})))
	if tally.updates != 3 || tally.changed != 3 || tally.sentBytes != want {
		t.Errorf("%+v, want 3 updates with 3 changes, %d bytes", tally, want)
	}
}

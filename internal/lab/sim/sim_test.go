package sim

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/script"
)

// noisy claims the mean of a few draws and draws a parabola with noise.
func noisy(name string) Experiment {
	return Experiment{
		Name: name, Title: "noise", Source: "none", Seeds: 3,
		Claims: []Claim{
			{ID: "mean", Low: 0.2, High: 0.8, Paper: "half"},
			{ID: "never", Unit: "%", Low: 0, High: 0},
		},
		Figures: []Figure{{Name: "first"}, {Name: "second", LogY: true}},
		Run: func(run *Run) {
			random := rand.New(rand.NewPCG(run.Seed, 0))
			sum := 0.0
			for i := range 100 {
				sum += random.Float64()
				run.Progress(int64(i+1), 100)
				run.Point("second/parabola", float64(i%10), float64(i*i)+random.Float64())
			}
			run.Point("plain", 1, sum)
			run.Value("mean", sum/100)
			run.Share("never", 0, 100)
		},
	}
}

func TestResultsAreTheSameOnAnyNumberOfWorkers(t *testing.T) {
	var first []byte
	for workers := 1; workers < 9; workers++ {
		plan := Plan{Experiments: []Experiment{noisy("a"), noisy("b")}, Base: 7, Workers: workers}
		results, err := NewRunner(plan).Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(results)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = text
		}
		if string(text) != string(first) {
			t.Fatalf("%d workers: %s\none: %s", workers, text, first)
		}
	}
}

func TestResultsComeBackFromJSON(t *testing.T) {
	experiment := noisy("a")
	experiment.Claims[0].High = math.Inf(1)
	want, err := NewRunner(Plan{Experiments: []Experiment{experiment}}).Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var have []Result
	if err := json.Unmarshal(text, &have); err != nil || !reflect.DeepEqual(have, want) {
		t.Errorf("%v: have %+v, want %+v", err, have, want)
	}
}

func TestPointsBelongToTheirFigures(t *testing.T) {
	results, err := NewRunner(Plan{Experiments: []Experiment{noisy("a")}, Seeds: 2}).Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	diagrams := results[0].Diagrams
	if len(diagrams) != 2 || diagrams[0].Series[0].Name != "plain" || diagrams[1].Series[0].Name != "parabola" || !diagrams[1].LogY {
		t.Fatalf("have %+v", diagrams)
	}
	points := diagrams[1].Series[0].Points
	if len(points) != 10 || points[3].X != 3 || points[3].Y.Runs != 20 {
		t.Errorf("have %+v", points)
	}
}

func TestVerdicts(t *testing.T) {
	band, open, zero := Claim{Low: 1, High: 2}, Claim{Low: math.Inf(-1), High: math.Inf(1)}, Claim{}
	known, least := band, Claim{Low: 1.15, High: math.Inf(1)}
	known.Known = true
	fitted := band
	fitted.Fitted = true
	for _, c := range []struct {
		claim   Claim
		ours    Estimate
		certain bool
		want    Verdict
	}{
		{band, Estimate{1, 0.1, 3}, false, Pass}, {band, Estimate{2, 0.1, 3}, false, Pass}, {band, Estimate{1.5, 9, 2}, false, Pass},
		{band, Estimate{2.5, 0.4, 3}, false, Fail}, {band, Estimate{0.5, 0.4, 3}, false, Fail}, // the interval ends before the band
		{band, Estimate{2.5, 0.5, 3}, false, Inconclusive}, {band, Estimate{0.5, 0.6, 3}, false, Inconclusive}, {band, Estimate{9, 20, 2}, false, Inconclusive},
		{least, Estimate{1.13, 0.16, 3}, false, Inconclusive}, {least, Estimate{1.13, 0.01, 10}, false, Fail},
		{band, Estimate{9, 0, 1}, false, Inconclusive}, {band, Estimate{9, 0, 1}, true, Fail}, {band, Estimate{2.1, 0.4, 3}, true, Fail}, // one run
		{zero, Estimate{0, 0, 3}, false, Pass}, {zero, Estimate{0.3, 1.4, 3}, false, Fail}, {zero, Estimate{1, 0, 1}, false, Fail}, // exact
		{known, Estimate{1.5, 0, 3}, false, DoesNotReproduce}, {known, Estimate{3, 0.1, 3}, false, Fail}, {open, Estimate{9, 0, 1}, false, Shown},
		{fitted, Estimate{1.5, 0, 3}, false, Fitted}, {fitted, Estimate{3, 0.1, 3}, false, Fail},
	} {
		if have := c.claim.judge(c.ours, c.certain); have != c.want {
			t.Errorf("%+v of %+v, certain %t: %v, not %v", c.ours, c.claim, c.certain, have, c.want)
		}
	}
}

func TestAFalseClaimFailsWithEnoughSeedsAndATrueOneDoesNot(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	claim := Claim{Low: 1, High: math.Inf(1)}
	verdicts := func(mean float64, runs int) map[Verdict]int {
		count := map[Verdict]int{}
		for range 2000 {
			values := make([]float64, runs)
			for i := range values {
				values[i] = mean + 0.2*random.NormFloat64()
			}
			count[claim.judge(Estimated(values), false)]++
		}
		return count
	}
	if few := verdicts(0.7, 2); few[Fail] > 1000 || few[Pass] > 400 {
		t.Errorf("seed %d: a false claim by two runs: %v", seed, few)
	}
	if many := verdicts(0.7, 20); many[Fail] < 1950 || many[Pass] > 0 {
		t.Errorf("seed %d: a false claim by twenty runs: %v", seed, many)
	}
	if edge := verdicts(1, 5); edge[Fail] > 100 { // 2.5 % of 2000 are 50
		t.Errorf("seed %d: a claim that is just true: %v", seed, edge)
	}
}

func TestIntervalsAreStudents(t *testing.T) {
	// Ten values 1..10: standard error 0.95743, t of 9 degrees of freedom 2.26216 (printed tables).
	have := Estimated([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	if math.Abs(have.Mean-5.5) > 1e-12 || math.Abs(have.Half-0.95743*2.26216) > 1e-4 || have.Runs != 10 {
		t.Errorf("have %+v", have)
	}
	if one := Estimated([]float64{3}); one != (Estimate{Mean: 3, Runs: 1}) {
		t.Errorf("have %+v", one)
	}
}

func TestIntervalsCoverTheMeanNineteenTimesInTwenty(t *testing.T) {
	seed := rand.Uint64()
	random, covered := rand.New(rand.NewPCG(seed, 0)), 0
	const times = 4000
	for range times {
		values := make([]float64, 5)
		for i := range values {
			values[i] = random.NormFloat64()
		}
		if estimate := Estimated(values); math.Abs(estimate.Mean) <= estimate.Half {
			covered++
		}
	}
	if part := float64(covered) / times; part < 0.93 || part > 0.97 {
		t.Errorf("seed %d: %g", seed, part)
	}
}

func TestARunMustTellWhatIsClaimedAndNothingElse(t *testing.T) {
	for problem, run := range map[string]func(run *Run){
		"it told no value":          func(run *Run) {},
		"it told NaN":               func(run *Run) { run.Value("a", math.NaN()) },
		"does not claim":            func(run *Run) { run.Value("a", 1); run.Value("b", 1) },
		"told values of [\"c\"]":    func(run *Run) { run.Value("a", 1); run.Share("c", 1, 2) },
		"it told the point 1, +Inf": func(run *Run) { run.Value("a", 1); run.Point("p", 1, math.Inf(1)) },
	} {
		experiment := Experiment{Name: "x", Claims: []Claim{{ID: "a"}}, Run: func(r *Run) { run(r) }}
		if _, err := Once(context.Background(), experiment, 1); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v", problem, err)
		}
	}
}

func TestOneFailingExperimentLeavesTheOthers(t *testing.T) {
	broken := errors.New("broken")
	bad := Experiment{Name: "bad", Run: func(*Run) { script.Check(broken) }}
	results, err := NewRunner(Plan{Experiments: []Experiment{bad, noisy("good")}, Workers: 2}).Run(context.Background())
	if !errors.Is(err, broken) || len(results) != 1 || results[0].Experiment != "good" {
		t.Errorf("%v, %+v", err, results)
	}
}

func TestRunsStopWhenTheyAreNoLongerWanted(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	endless := Experiment{Name: "endless", Run: func(run *Run) {
		for {
			stop()
			run.StopIfUnwanted()
		}
	}}
	if _, err := NewRunner(Plan{Experiments: []Experiment{endless}, Workers: 2}).Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestStatusCountsWhatIsDoneAndUnderWay(t *testing.T) {
	var runner *Runner
	var seen Status
	watched := Experiment{Name: "watched", Run: func(run *Run) {
		run.Progress(30, 60)
		if run.Seed == 1 {
			seen = runner.Status()
		}
	}}
	runner = NewRunner(Plan{Experiments: []Experiment{watched}, Seeds: 2})
	if _, err := runner.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	want := Status{Runs: 1, Of: 2, Part: 0.75, Events: 60, Running: []string{"watched"}}
	if !reflect.DeepEqual(seen, want) {
		t.Errorf("have %+v, want %+v", seen, want)
	}
}

func TestExperimentsAreSelectedByNameAndFamily(t *testing.T) {
	all := []Experiment{noisy("b-1"), noisy("a-1"), noisy("a-2"), noisy("a-long")}
	all[3].Extra = true
	for names, want := range map[string]string{"all": "b-1 a-1 a-2", "a-": "a-1 a-2 a-long", "a-2 b-1": "b-1 a-2", "a": "", "b-1 all": "b-1 a-1 a-2"} {
		selected, unknown := Select(all, strings.Fields(names))
		var have []string
		for _, experiment := range selected {
			have = append(have, experiment.Name)
		}
		if strings.Join(have, " ") != want || (len(unknown) > 0) != (want == "") {
			t.Errorf("%s: %v, unknown %v", names, have, unknown)
		}
	}
}

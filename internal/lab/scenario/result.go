// What a scenario reports.
package scenario

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// Result is the outcome of a scenario, as `ballast-lab run --json` prints it.
type Result struct {
	Scenario     string              `json:"scenario"`
	Promise      string              `json:"promise"`
	Seed         uint64              `json:"seed,string"` // a string: readers of JSON round numbers of 64 bits
	Outcome      Outcome             `json:"outcome"`
	Kept         bool                `json:"promise_kept"`
	world.Tally                      // of all trials but the baseline
	Baseline     *Baseline           `json:"baseline,omitempty"`
	Failures     []string            `json:"failures,omitempty"` // why the promise counts as broken
	Error        string              `json:"error,omitempty"`    // why it could not be tested, or not to the end
	Measurements map[string]float64  `json:"measurements,omitempty"`
	Comparison   []Cell              `json:"comparison,omitempty"` // policies under the same load
	Figures      []Figure            `json:"figures,omitempty"`    // of a paper, beside what was measured
	Work         string              `json:"work,omitempty"`       // how the servers of a comparison do their work
	PerSecond    map[string][]Second `json:"per_second,omitempty"` // flow -> what ended in each second
	Trials       []world.Result      `json:"trials"`
	Seconds      float64             `json:"seconds"`
}

// Outcome is what a run has shown of its scenario's promise.
type Outcome string

// Outcomes. A promise whose run ended early is broken if that had shown already, and else not tested.
const (
	PromiseKept   Outcome = "kept"
	PromiseBroken Outcome = "broken"
	NotRun        Outcome = "not_run"
)

// Baseline is the same series of events with connections steered by hash alone, or by tables that each load balancer has to itself.
type Baseline struct {
	Affinity string `json:"affinity"`
	world.Tally
}

// Cell is one measurement of a comparison: a policy with its settings in one repetition.
type Cell struct {
	Policy     string `json:"policy"` // with its classes, interval and whatever else is varied
	Repetition int    `json:"repetition"`
	PassedOn   uint64 `json:"passed_on,omitempty"` // packets from candidate to candidate, also those of the span that is not counted
	Completions
}

// Figure is a number of a paper beside the one that was measured.
type Figure struct {
	What      string  `json:"what"`
	Paper     string  `json:"paper"`
	Here      float64 `json:"here"`
	Simulated float64 `json:"simulated,omitempty"` // by the simulator, at the size of this scenario; 0: it was not asked
	Why       string  `json:"why,omitempty"`       // the numbers differ
}

// Completions sums up the connections of one flow that came in a span of time. Each was one request; its time is from when it
// was due until its last byte.
type Completions struct {
	Offered        int                   `json:"offered"`
	Completed      int                   `json:"completed"`
	Broken         int                   `json:"broken"`
	BrokenBy       map[traffic.Class]int `json:"broken_by,omitempty"`
	Refused        int                   `json:"refused,omitempty"` // by the application, which had too much to do
	ByServer       map[string]int        `json:"by_server,omitempty"`
	Fairness       float64               `json:"fairness"`         // of the servers' open connections: Jain's index, from 1/servers to 1, mean over time
	PerSecond      float64               `json:"per_second"`       // that ended well within the span, whenever they came
	BytesPerSecond float64               `json:"bytes_per_second"` // of those
	MeanMS         float64               `json:"mean_ms"`          // of those that came within the span and ended well, whenever
	P50MS          float64               `json:"p50_ms"`
	P99MS          float64               `json:"p99_ms"`
}

// Second is what ended in one second of a run.
type Second struct {
	Completed int `json:"completed"`
	Broken    int `json:"broken"`
}

// conclude sets the outcome of a run that ended with err, and returns err if that is why the promise was not tested.
func (r *Result) conclude(err error) error {
	if broken := (*await.BrokenPromise)(nil); errors.As(err, &broken) {
		r.Fail("%v", err)
		err = nil
	}
	if err != nil {
		r.Error = err.Error()
	}
	switch {
	case len(r.Failures) > 0:
		r.Outcome, err = PromiseBroken, nil
	case err != nil:
		r.Outcome = NotRun
	default:
		r.Outcome, r.Kept = PromiseKept, true
	}
	return err
}

// Fail notes a reason why the promise is broken.
func (r *Result) Fail(format string, arguments ...any) {
	r.Failures = append(r.Failures, fmt.Sprintf(format, arguments...))
}

// Expect notes a failure unless the condition holds.
func (r *Result) Expect(condition bool, format string, arguments ...any) {
	if !condition {
		r.Fail(format, arguments...)
	}
}

// Measure notes a figure; one that is no number, such as a ratio to nothing, is left out.
func (r *Result) Measure(name string, value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	if r.Measurements == nil {
		r.Measurements = map[string]float64{}
	}
	r.Measurements[name] = value
}

// Compare notes a figure of a paper.
func (r *Result) Compare(one Figure) { r.Figures = append(r.Figures, one) }

// AddTrial adds what a trial showed, apart for those of the baseline.
func (r *Result) AddTrial(outcome world.Result, baseline bool) {
	r.Trials = append(r.Trials, outcome)
	if baseline {
		if r.Baseline == nil {
			r.Baseline = &Baseline{Affinity: "hash"}
		}
		r.Baseline.Merge(outcome.Tally)
		return
	}
	r.Merge(outcome.Tally)
}

// Median sorts the values.
func Median(values []float64) float64 {
	slices.Sort(values)
	return stat.Quantile(0.5, stat.Empirical, values, nil)
}

// Jain is Jain's index of the loads of so many servers, those that are not in the map having none: 1 if all loads are equal, 1/servers if
// one server has all load. There must be some.
func Jain(loads map[string]float64, servers int) float64 {
	sum, squares := 0.0, 0.0
	for _, load := range loads {
		sum, squares = sum+load, squares+load*load
	}
	return sum * sum / (float64(servers) * squares)
}

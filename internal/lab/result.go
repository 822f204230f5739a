// What a scenario reports.
package lab

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Result is the outcome of a scenario, as `ballast lab run --json` prints it.
type Result struct {
	Scenario     string              `json:"scenario"`
	Promise      string              `json:"promise"`
	Seed         uint64              `json:"seed,string"` // a string: readers of JSON round numbers of 64 bits
	Outcome      Outcome             `json:"outcome"`
	Kept         bool                `json:"promise_kept"`
	Tally                            // of all trials but the baseline
	Baseline     *Baseline           `json:"baseline,omitempty"`
	Failures     []string            `json:"failures,omitempty"` // why the promise counts as broken
	Error        string              `json:"error,omitempty"`    // why it could not be tested, or not to the end
	Measurements map[string]float64  `json:"measurements,omitempty"`
	Comparison   []Cell              `json:"comparison,omitempty"` // policies under the same load
	Work         string              `json:"work,omitempty"`       // how the servers of a comparison do their work
	PerSecond    map[string][]Second `json:"per_second,omitempty"` // flow -> what ended in each second
	Trials       []Trial             `json:"trials"`
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
	Tally
}

// Cell is one measurement of a comparison: a policy with its settings in one repetition.
type Cell struct {
	Policy     string `json:"policy"` // with its classes, interval and whatever else is varied
	Repetition int    `json:"repetition"`
	Completions
}

// conclude sets the outcome of a run that ended with err, and returns err if that is why the promise was not tested.
func (r *Result) conclude(err error) error {
	if broken := (*brokenPromise)(nil); errors.As(err, &broken) {
		r.fail("%v", err)
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

// fail notes a reason why the promise is broken.
func (r *Result) fail(format string, arguments ...any) {
	r.Failures = append(r.Failures, fmt.Sprintf(format, arguments...))
}

// expect notes a failure unless the condition holds.
func (r *Result) expect(condition bool, format string, arguments ...any) {
	if !condition {
		r.fail(format, arguments...)
	}
}

// measure notes a figure; one that is no number, such as a ratio to nothing, is left out.
func (r *Result) measure(name string, value float64) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	if r.Measurements == nil {
		r.Measurements = map[string]float64{}
	}
	r.Measurements[name] = value
}

func (r *Result) addTrial(outcome Trial, baseline bool) {
	r.Trials = append(r.Trials, outcome)
	if baseline {
		if r.Baseline == nil {
			r.Baseline = &Baseline{Affinity: "hash"}
		}
		r.Baseline.merge(outcome.Tally)
		return
	}
	r.merge(outcome.Tally)
}

// Snapshot is the state of a running trial, for a live display.
type Snapshot struct {
	Scenario string
	Trial    string
	Baseline bool
	Elapsed  time.Duration
	Event    string
	Tally    Tally // of connections that have ended
	Open     int
	ByServer map[string]int               // open connections
	Counters map[string]map[string]uint64 // node -> verdict -> packets
}

package cli

import (
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/scenario"
)

func TestAComparisonIsATableOfPolicies(t *testing.T) {
	var out strings.Builder
	printResult(&out, scenario.Result{
		Scenario: "choices", Outcome: scenario.PromiseKept,
		Comparison: []scenario.Cell{{Policy: "hash", Repetition: 1}, {Policy: "p2c", Repetition: 1}, {Policy: "hash", Repetition: 2}, {Policy: "p2c", Repetition: 2}},
		Measurements: map[string]float64{
			"hash_mean_ms": 90, "hash_mean_ms_ratio_to_hash": 1, "hash_refused": 12, "p2c_mean_ms": 30, "p2c_mean_ms_ratio_to_hash": 3, "p2c_refused": 0,
			"offered_per_second": 225,
		},
	})
	want := []string{"POLICY MEAN MS REFUSED", "hash 90 (1.00) 12", "p2c 30 (3.00) 0", "offered_per_second: 225.000"}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if text := strings.Join(got, "\n"); !strings.Contains(text, strings.Join(want, "\n")) {
		t.Errorf("%s", text)
	}
}

func TestFiguresOfPapersStandBesideWhatWasMeasured(t *testing.T) {
	var out strings.Builder
	printResult(&out, scenario.Result{
		Scenario: "even", Outcome: scenario.PromiseKept,
		Figures: []scenario.Figure{
			{What: "hash / rr", Paper: "2 to 3", Here: 3.14159, Simulated: 4.25, Why: "fewer servers"},
			{What: "broken", Paper: "0", Here: 0},
		},
	})
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := "FIGURE PAPER HERE SIMULATED WHY DIFFERENT\nhash / rr 2 to 3 3.142 4.25 fewer servers\nbroken 0 0 -"
	if text := strings.Join(got, "\n"); !strings.Contains(text, want) {
		t.Errorf("%s", text)
	}
}

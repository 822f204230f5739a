package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/papers"
	"github.com/ballast-lb/ballast/internal/lab/sim"
)

const quickScenario = `title: quick
length: 5s
servers: [{count: 4}]
traffic: {connections: 50, lifetimes: {shape: exponential, mean: 1s}}
policies: [{dispatch: rr}, {dispatch: maglev, affinity: hash}]
events: [{at: 1s, remove: 1}]
expect: [{policy: rr-cookie, measure: broken, at_most: 0}]
`

// ballastSim runs `ballast-lab sim` and returns what it prints.
func ballastSim(arguments ...string) (string, error) {
	var out bytes.Buffer
	command := Command()
	command.SetOut(&out)
	command.SetErr(&out)
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetArgs(arguments)
	err := command.ExecuteContext(context.Background())
	return out.String(), err
}

func scenarioFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "question.yaml")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestAScenarioIsSimulatedJudgedAndDrawn(t *testing.T) {
	name := scenarioFile(t, quickScenario)
	picture := filepath.Join(filepath.Dir(name), "picture.svg")
	text, err := ballastSim("scenario", name, "--seeds", "2", "--plot", picture)
	if err != nil || !strings.Contains(text, "question.yaml: quick") || !strings.Contains(text, "PASS") {
		t.Errorf("%v: %s", err, text)
	}
	if drawn, err := os.ReadFile(picture); err != nil || !bytes.Contains(drawn, []byte("<svg")) {
		t.Error(err)
	}
}

func TestAnExpectationThatFailsIsAnError(t *testing.T) {
	name := scenarioFile(t, strings.Replace(quickScenario, "measure: broken, at_most: 0", "measure: peak, at_least: 1000000", 1))
	text, err := ballastSim("scenario", name, "--seeds", "3", "--json")
	if !errors.Is(err, errClaimsFail) || !strings.Contains(err.Error(), "question.yaml rr-cookie.peak") {
		t.Errorf("%v: %s", err, text)
	}
	var results []sim.Result
	if err := json.Unmarshal([]byte(text), &results); err != nil || len(results) != 1 || !results[0].Failed() {
		t.Errorf("%v: %s", err, text)
	}
}

func TestAScenarioWithMistakesIsRefusedWithTheirLines(t *testing.T) {
	name := scenarioFile(t, strings.Replace(quickScenario, "count: 4", "count: many", 1))
	_, err := ballastSim("scenario", name, "--check")
	if err == nil || !strings.Contains(err.Error(), name+`:3: servers[0].count: "many" is not such a number: use a decimal number`) {
		t.Error(err)
	}
}

func TestWhatCannotBeRunIsRefusedBeforehand(t *testing.T) {
	for arguments, want := range map[string]string{
		"run nonsense":                    "find experiments nonsense: there are none of these names",
		"scenario none.yaml":              "none.yaml: no such file",
		"scenario x.yaml --seeds -1":      "run with -1 seeds",
		"scenario x.yaml --workers 0":     "0 workers",
		"scenario x.yaml --plot x.jpg":    "end it with .svg or .png",
		"report":                          "nowhere to",
		"report --markdown x --from none": "read results: open none: no such file",
	} {
		if _, err := ballastSim(strings.Fields(arguments)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: have %v, want %s", arguments, err, want)
		}
	}
	if err := checkPicture("x.svg", 2); err == nil {
		t.Error("two experiments in one picture")
	}
}

func TestReportsAreWrittenFromStoredResults(t *testing.T) {
	folder := t.TempDir()
	estimate := sim.Estimate{Mean: 1, Runs: 1}
	results := []sim.Result{{
		Experiment: "test", Title: "A test", Source: "nowhere", Seeds: []uint64{3},
		Findings: []sim.Finding{{ID: "a", What: "one", Ours: estimate, Values: []float64{1}, Band: sim.Band{Low: 2, High: math.Inf(1)}, Verdict: sim.Fail}},
		Diagrams: []sim.Diagram{{X: "x", Y: "y", Series: []sim.Curve{{Name: "c", Points: []sim.Place{{X: 1, Y: estimate}}}}}},
	}}
	if err := errors.Join(writePage(filepath.Join(folder, "page"), results, about("-o x", []string{"test"}, results)),
		writeMarkdown(filepath.Join(folder, "docs", "results.md"), results, about("-o x", []string{"test"}, results))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"page/index.html": "<svg", "page/results.json": `"verdict": "FAIL"`, "docs/results.md": "![test](results/test.svg)",
		"docs/results/test.svg": "</svg>",
	} {
		if text, err := os.ReadFile(filepath.Join(folder, name)); err != nil || !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s has no %q (%v)", name, want, err)
		}
	}
	if have, want := about("-o report", []string{"all"}, results).Command, "ballast-lab sim report -o report all --seeds 1 --seed 3"; have != want {
		t.Errorf("have %s, want %s", have, want)
	}
}

func TestProgressTellsRateAndTimeLeft(t *testing.T) {
	status := sim.Status{Runs: 3, Of: 12, Part: 0.25, Events: 40_000_000, Running: []string{"shell-6", "yuz-7"}}
	if have, want := progressLine(status, 20*time.Second), " 25 %  3 of 12 runs  2.0M events/s  1m0s left  shell-6 yuz-7"; have != want {
		t.Errorf("have %q, want %q", have, want)
	}
	if have := progressLine(sim.Status{Of: 4}, time.Second); have != "  0 %  0 of 4 runs  " {
		t.Errorf("have %q", have)
	}
}

func TestListedExperimentsHaveTheirClaims(t *testing.T) {
	text, err := ballastSim("list", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var list []listedExperiment
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	table, err := ballastSim("list")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range list {
		if len(one.Claims) == 0 || one.Seeds == 0 || !strings.Contains(table, "\n"+one.Name) {
			t.Errorf("%s has %d claims and %d seeds, or is not in\n%s", one.Name, len(one.Claims), one.Seeds, table)
		}
	}
}

func TestFiguresAreListedByPaper(t *testing.T) {
	text, err := ballastSim("figures", "shell", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var lines []papers.Line
	if err := json.Unmarshal([]byte(text), &lines); err != nil || len(lines) < 10 {
		t.Fatalf("%v: %s", err, text)
	}
	for _, line := range lines {
		if line.Paper != "SHELL" || line.Verdict == "" {
			t.Errorf("%+v", line)
		}
	}
	if text, err := ballastSim("figures"); err != nil || !strings.Contains(text, "DOES-NOT-REPRODUCE") || !strings.Contains(text, "Anolis") {
		t.Errorf("%v: %s", err, text)
	}
	if text, err := ballastSim("figures", "maglev"); err == nil {
		t.Errorf("figures of a paper that is not there: %s", text)
	}
}

package all

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

var name = regexp.MustCompile(`^[a-z0-9]+([-.][a-z0-9.]+)*$`)

func TestExperimentsAreWellFormed(t *testing.T) {
	names := map[string]bool{}
	for _, experiment := range Experiments() {
		if !name.MatchString(experiment.Name) || names[experiment.Name] || experiment.Name == "all" || family(experiment) < 0 {
			t.Errorf("experiment %q: not a name, or not the only one", experiment.Name)
		}
		names[experiment.Name] = true
		if experiment.Title == "" || experiment.Source == "" || experiment.Run == nil || len(experiment.Claims) == 0 {
			t.Errorf("%s: say what it is, where it is from, how it is run and what it claims", experiment.Name)
		}
		figures := map[string]bool{}
		for _, figure := range experiment.Figures {
			if figures[figure.Name] || figure.X == "" || figure.Y == "" {
				t.Errorf("%s: figure %q: not the only one, or its axes have no names", experiment.Name, figure.Name)
			}
			figures[figure.Name] = true
		}
	}
}

func TestClaimsAreWellFormed(t *testing.T) {
	for _, experiment := range Experiments() {
		ids := map[string]bool{}
		for _, claim := range experiment.Claims {
			if !name.MatchString(claim.ID) || ids[claim.ID] || claim.What == "" {
				t.Errorf("%s: claim %q (%s): not an id, or not the only one, or not explained", experiment.Name, claim.ID, claim.What)
			}
			ids[claim.ID] = true
			if math.IsNaN(claim.Low) || math.IsNaN(claim.High) || claim.Low > claim.High {
				t.Errorf("%s: claim %s: no band %g to %g", experiment.Name, claim.ID, claim.Low, claim.High)
			}
			if claim.Known && claim.Fitted || claim.Fitted && claim.Note == "" {
				t.Errorf("%s: claim %s: fitted and known not to reproduce, or fitted without a note", experiment.Name, claim.ID)
			}
			if claim.Paper != "" && math.IsInf(claim.Low, -1) && math.IsInf(claim.High, 1) {
				t.Errorf("%s: claim %s has a paper's value and no band to judge ours by", experiment.Name, claim.ID)
			}
			if claim.Known && (claim.Note == "" || claim.Paper == "") {
				t.Errorf("%s: claim %s does not reproduce: say what the paper has, and why", experiment.Name, claim.ID)
			}
		}
	}
}

// results are the experiments that `make results` runs, and the names of the others.
func results(t *testing.T) (run []sim.Experiment, others []string) {
	t.Helper()
	makefile, err := os.ReadFile("../../../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^\tbin/ballast-lab sim report -o \S+ --markdown \S+ (.+)$`).FindSubmatch(makefile)
	if line == nil {
		t.Fatal("the Makefile does not say which experiments `make results` runs")
	}
	run, unknown := sim.Select(Experiments(), strings.Fields(string(line[1])))
	if len(unknown) > 0 {
		t.Fatalf("`make results` runs %q, which there are not", unknown)
	}
	for _, one := range Experiments() {
		if !slices.ContainsFunc(run, func(e sim.Experiment) bool { return e.Name == one.Name }) {
			others = append(others, one.Name)
		}
	}
	return run, others
}

// `make results` says these numbers when no claim fails and none is inconclusive.
func TestThePapersHaveTheNumbersOfClaims(t *testing.T) {
	experiments, others := results(t)
	passed, fitted, shown, known := 0, 0, 0, 0
	for _, experiment := range experiments {
		for _, claim := range experiment.Claims {
			switch {
			case claim.Known:
				known++
			case claim.Fitted:
				fitted++
			case math.IsInf(claim.Low, -1) && math.IsInf(claim.High, 1):
				shown++
			default:
				passed++
			}
		}
	}
	text, err := os.ReadFile("../../../../docs/design/papers.md")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("`make results` runs %d of %d experiments, all but %s: %d claims are to pass, %d are fitted, %d have no band, %d are known not to reproduce",
		len(experiments), len(Experiments()), strings.Join(others, ", "), passed, fitted, shown, known)
	if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), want) {
		t.Errorf("docs/design/papers.md does not say %q", want)
	}
}

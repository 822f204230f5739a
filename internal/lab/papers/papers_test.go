package papers

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/all"
)

// numbered are the figures and tables that the papers have.
var numbered = []struct {
	paper           string
	figures, tables int
	tableNames      string // of table 1
	parts           map[int]string
}{
	{"Cheetah", 11, 2, "I", map[int]string{2: "abc"}},
	{"SHELL", 7, 3, "I", nil},
	{"Spotlight", 14, 2, "I", nil},
	{"Yuz", 12, 0, "", nil},
	{"Anolis", 14, 1, "1", nil},
}

func TestEveryFigureAndTableOfThePapersHasALine(t *testing.T) {
	have := map[string]int{}
	for _, figure := range Figures() {
		have[figure.Paper+" "+figure.Name]++
	}
	expect := func(name string) {
		if have[name] != 1 {
			t.Errorf("%s is listed %d times, not once", name, have[name])
		}
	}
	for _, paper := range numbered {
		for i := 1; i <= paper.figures; i++ {
			if paper.parts[i] == "" {
				expect(fmt.Sprintf("%s figure %d", paper.paper, i))
			}
			for _, part := range paper.parts[i] {
				expect(fmt.Sprintf("%s figure %d%c", paper.paper, i, part))
			}
		}
		for i := 1; i <= paper.tables; i++ { // up to III
			expect(paper.paper + " table " + strings.Repeat(paper.tableNames, i))
		}
	}
}

func TestEveryFigureSaysWhereItsValuesAreFrom(t *testing.T) {
	for _, f := range Figures() {
		values := len(f.Simulated) + len(f.Measured) + len(f.Scenarios)
		if f.Shows == "" || f.Drawing == (values > 0 || f.Missing != "") {
			t.Errorf("%s, %s: say what it shows, and either that it has no values, or where ours are from, or why there are none", f.Paper, f.Name)
		}
	}
}

func TestEveryClaimWithAPapersValueIsAFigures(t *testing.T) {
	lines, err := Lines(all.Experiments(), lab.Scenarios())
	if err != nil {
		t.Fatal(err)
	}
	from := map[string]bool{}
	for _, line := range lines {
		from[line.From] = true
	}
	for _, experiment := range all.Experiments() {
		for _, claim := range experiment.Claims {
			if name := "sim run " + experiment.Name + ": " + claim.ID; claim.Paper != "" && !experiment.Extra && !from[name] {
				t.Errorf("no figure has %s", name)
			}
		}
	}
}

// The values are of an earlier run: what today's claims say of them must be what they say of today's.
func TestRecordedValuesLieWhereTodaysClaimsSay(t *testing.T) {
	lines, err := Lines(all.Experiments(), lab.Scenarios())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if line.Verdict == sim.Fail || line.Verdict == sim.Inconclusive {
			t.Errorf("%s, %s: %s: %s: %s: run `make results`", line.Paper, line.Figure, line.From, line.Ours, line.Verdict)
		}
		if (line.Verdict == sim.DoesNotReproduce || line.Verdict == sim.Fitted || line.Verdict == NotMeasured) && line.Reason == "" {
			t.Errorf("%s, %s: %s: %s without a reason", line.Paper, line.Figure, line.From, line.Verdict)
		}
	}
}

func TestClaimsAndScenariosThatDoNotExistAreErrors(t *testing.T) {
	for name, figure := range map[string]Figure{
		"an experiment": {Simulated: []string{"cheetah-99"}},
		"a claim":       {Simulated: []string{"cheetah-6/ratio-61"}},
		"a scenario":    {Scenarios: []string{"churns"}},
		"a value":       {Simulated: []string{"beyond-both/hash"}},
	} {
		recorded, err := readRecorded()
		if err != nil {
			t.Fatal(err)
		}
		if lines, err := figure.lines(all.Experiments(), recorded, lab.Scenarios()); err == nil {
			t.Errorf("%s that does not exist: %v", name, lines)
		}
	}
}

func TestQuotedValuesAreThoseOfTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../../docs/design/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "*", "")), " ")
	for _, figure := range Figures() {
		for _, m := range figure.Measured {
			for _, quote := range m.Quotes {
				if !strings.Contains(plain, quote) {
					t.Errorf("%s, %s: docs/design/performance.md does not say %q", figure.Paper, figure.Name, quote)
				}
			}
		}
	}
}

// UPDATE_FIGURES names the results.json of `ballast-lab sim report`, whose values are recorded.
func TestRecordedValuesAreOfTheFiguresClaims(t *testing.T) {
	recorded, err := readRecorded()
	if err != nil {
		t.Fatal(err)
	}
	var results []sim.Result
	if name := os.Getenv("UPDATE_FIGURES"); name != "" {
		text, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(text, &results)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	wanted, err := recorded.Record(all.Experiments(), results)
	if err != nil {
		t.Fatal(err)
	}
	text, err := wanted.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if results != nil {
		if err := os.WriteFile("recorded.json", text, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !slices.Equal(text, recordedValues) {
		t.Error("recorded.json has values that no figure refers to, or is not formatted: run `make results`")
	}
}

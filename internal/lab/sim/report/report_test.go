package report

import (
	"bytes"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

var inf = math.Inf(1)

func results() []sim.Result {
	estimate := sim.Estimate{Mean: 24.93, Half: 0.31, Runs: 10}
	return []sim.Result{{
		Experiment: "cheetah-2b", Title: "Imbalance & <load>", Source: "Cheetah, figure 2b", Method: "Method of it.", Seeds: []uint64{1, 2},
		Findings: []sim.Finding{
			{ID: "a", What: "hash | 70K", Unit: "%", Paper: "30 %", Ours: estimate, Band: sim.Band{Low: 24, High: 26}, Verdict: sim.Pass},
			{ID: "b", What: "cookie", Unit: "%", Ours: sim.Estimate{Runs: 2}, Trials: 60000, Band: sim.Band{}, Verdict: sim.Pass},
			{ID: "c", What: "ratio", Unit: "x", Paper: "40x", Ours: estimate, Band: sim.Band{Low: 1, High: inf}, Verdict: sim.DoesNotReproduce, Note: "Because."},
		},
		Diagrams: []sim.Diagram{{Title: "<script>", Series: []sim.Curve{{Name: "hash", Points: []sim.Place{{X: 1, Y: estimate}, {X: 2, Y: estimate}}}}}},
	}, {
		Experiment: "shell-6", Title: "History", Source: "SHELL, figure 6", Seeds: []uint64{7},
		Findings: []sim.Finding{{ID: "a", What: "all", Ours: sim.Estimate{Mean: 3, Runs: 1}, Band: sim.Band{Low: -inf, High: 2}, Verdict: sim.Fail}},
	}}
}

func TestNumbersAreShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 24.934: "24.9", 0.0345678: "0.0346", 1234567: "1234567", 0.00001234: "0.0000123", 0.00000001234: "1.23e-08", -2.5: "-2.50", 999.6: "1000"} {
		if have := number(v, 3); have != want {
			t.Errorf("%v: %s instead of %s", v, have, want)
		}
	}
}

func TestBandsAndValuesHaveUnits(t *testing.T) {
	findings := results()[0].Findings
	for i, want := range []string{"24.9 ±0.31 % in 24 to 26 %", "<= 0.0050 % (0 of 60000) in 0 %", "24.9 ±0.31 x in >= 1 x"} {
		if have := Ours(findings[i]) + " in " + band(findings[i]); have != want {
			t.Errorf("%s instead of %s", have, want)
		}
	}
	if have := band(sim.Finding{Band: sim.Band{Low: -inf, High: inf}}); have != "-" {
		t.Error(have)
	}
}

func TestTextHasOneLineForEachClaim(t *testing.T) {
	var out bytes.Buffer
	if err := Text(&out, results()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"cheetah-2b: Imbalance & <load>\nCheetah, figure 2b; 2 seeds from 1\n",
		"  ratio       40x    24.9 ±0.31 x              >= 1 x      DOES-NOT-REPRODUCE\n",
		"  ratio: Because.\n", "shell-6: History\nSHELL, figure 6; seed 7\n", "2 PASS, 1 DOES-NOT-REPRODUCE, 1 FAIL\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestThePageNeedsNothingElse(t *testing.T) {
	var out bytes.Buffer
	if err := HTML(&out, results(), About{Command: "ballast-lab sim report -o <x>"}); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{"<td>hash | 70K</td>", "Imbalance &amp; &lt;load&gt;", "ballast-lab sim report -o &lt;x&gt;", "&lt;script&gt;", `class="verdict fail">FAIL<`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if outside := regexp.MustCompile(`(?i)<(script|link|img|iframe)|(src|href)="[^#]|@import|url\(`).FindString(text); outside != "" {
		t.Errorf("the page has %q", outside)
	}
	if n := strings.Count(text, "<svg"); n != 1 {
		t.Errorf("%d pictures", n)
	}
}

func TestMarkdownHasTablesAndPictures(t *testing.T) {
	var out bytes.Buffer
	if err := Markdown(&out, results(), About{Command: "ballast-lab sim report"}, "results"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"**Imbalance & <load>.** Cheetah, figure 2b. Method of it.\n", "| hash \\| 70K | 30 % | 24.9 ±0.31 % |\n",
		"| ratio | 40x | 24.9 ±0.31 x, **DOES-NOT-REPRODUCE**: Because. |\n", "| all | 3.00, **FAIL** |\n", "![cheetah-2b](results/cheetah-2b.svg)\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "cookie") {
		t.Errorf("a claim that no paper makes, in\n%s", out.String())
	}
	if strings.Contains(out.String(), "shell-6.svg") || strings.Contains(out.String(), "\n\n\n") {
		t.Errorf("a picture of nothing, or empty lines, in\n%s", out.String())
	}
}

func TestANoteIsToldOnce(t *testing.T) {
	have := notes([]sim.Finding{{What: "a", Note: "x"}, {What: "b"}, {What: "c", Note: "y"}, {What: "d", Note: "x"}})
	if len(have) != 2 || have[0] != (note{"a; d", "x"}) || have[1] != (note{"c", "y"}) {
		t.Errorf("have %+v", have)
	}
}

func TestBoundsHaveNoDigitsOfArithmetic(t *testing.T) {
	for v, want := range map[float64]string{6.4 * 1.1: "7.04", 100: "100", 284803000: "284803000", 0.1 + 0.2: "0.3", -1: "-1"} {
		if have := bound(v); have != want {
			t.Errorf("%v: %s instead of %s", v, have, want)
		}
	}
}

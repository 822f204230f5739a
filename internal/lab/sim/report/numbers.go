// Package report writes results for people: as text, as one HTML page, and as Markdown with pictures.
package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// number writes a value with a number of significant digits, without an exponent unless it is very small or large.
func number(v float64, digits int) string {
	size := math.Abs(v)
	switch {
	case v == 0:
		return "0"
	case size < 1e-6 || size >= 1e9:
		return strconv.FormatFloat(v, 'g', digits, 64)
	}
	decimals := digits - 1 - int(math.Floor(math.Log10(size)))
	return strconv.FormatFloat(v, 'f', max(decimals, 0), 64)
}

// bound writes the end of a band. Six digits are more than any band has; what follows is of the arithmetic that made it.
func bound(v float64) string {
	if size := math.Abs(v); size >= 1e6 && size < 1e15 {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'g', 6, 64)
}

// with adds a unit to a number.
func with(text, unit string) string {
	if unit == "" {
		return text
	}
	return text + " " + unit
}

// Ours is what was measured: the mean with its interval, or the bound that no hits in n trials leave (the rule of three).
func Ours(f sim.Finding) string {
	if f.Trials > 0 && f.Hits == 0 {
		return fmt.Sprintf("<= %s (0 of %d)", with(number(3/float64(f.Trials)*scale(f.Unit), 2), f.Unit), f.Trials)
	}
	digits := 3
	if f.Ours.Half != 0 && f.Ours.Half < math.Abs(f.Ours.Mean)/200 {
		digits = 4
	}
	text := number(f.Ours.Mean, digits)
	if f.Ours.Runs > 1 && f.Ours.Half != 0 {
		text += " ±" + number(f.Ours.Half, 2)
	}
	return with(text, f.Unit)
}

// scale is what a share of 1 is in a unit.
func scale(unit string) float64 {
	if unit == "%" {
		return 100
	}
	return 1
}

// band is where our value must lie.
func band(f sim.Finding) string {
	low, high := !math.IsInf(f.Band.Low, -1), !math.IsInf(f.Band.High, 1)
	switch {
	case low && high && f.Band.Low == f.Band.High:
		return with(bound(f.Band.Low), f.Unit)
	case low && high:
		return with(bound(f.Band.Low)+" to "+bound(f.Band.High), f.Unit)
	case low:
		return with(">= "+bound(f.Band.Low), f.Unit)
	case high:
		return with("<= "+bound(f.Band.High), f.Unit)
	}
	return "-"
}

// paper is the paper's value, "-" if it has none.
func paper(f sim.Finding) string {
	if f.Paper == "" {
		return "-"
	}
	return f.Paper
}

// fromPaper reports whether a paper has a value for one of the findings.
func fromPaper(findings []sim.Finding) bool {
	return slices.ContainsFunc(findings, func(f sim.Finding) bool { return f.Paper != "" })
}

// doubtful reports whether a finding is neither a plain PASS nor only shown: fitted ones are doubtful, too.
func doubtful(f sim.Finding) bool { return f.Verdict != sim.Pass && f.Verdict != sim.Shown }

// published are findings about what a paper says, and doubtful ones; all, where no paper says anything.
func published(findings []sim.Finding) []sim.Finding {
	if !fromPaper(findings) {
		return findings
	}
	return slices.DeleteFunc(slices.Clone(findings), func(f sim.Finding) bool { return f.Paper == "" && !doubtful(f) })
}

// seeds tells which seeds were run: "10 seeds from 1".
func seeds(r sim.Result) string {
	if len(r.Seeds) == 1 {
		return fmt.Sprintf("seed %d", r.Seeds[0])
	}
	return fmt.Sprintf("%d seeds from %d", len(r.Seeds), r.Seeds[0])
}

// tally counts verdicts: "12 PASS, 1 FAIL".
func tally(results []sim.Result) string {
	count := map[sim.Verdict]int{}
	for _, r := range results {
		for _, f := range r.Findings {
			count[f.Verdict]++
		}
	}
	var parts []string
	for _, verdict := range []sim.Verdict{sim.Pass, sim.Fitted, sim.DoesNotReproduce, sim.Fail, sim.Inconclusive, sim.Shown} {
		if n := count[verdict]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, verdict))
		}
	}
	return strings.Join(parts, ", ")
}

// verdicts counts those of one result.
func verdicts(r sim.Result) string { return tally([]sim.Result{r}) }

// sentence begins a text with a capital letter.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}

// note is what is to be said of some findings.
type note struct{ Of, Text string }

// notes returns the notes of findings, each once.
func notes(findings []sim.Finding) (all []note) {
	for _, f := range findings {
		if f.Note == "" {
			continue
		}
		if i := slices.IndexFunc(all, func(n note) bool { return n.Text == f.Note }); i >= 0 {
			all[i].Of += "; " + f.What
		} else {
			all = append(all, note{Of: f.What, Text: f.Note})
		}
	}
	return all
}

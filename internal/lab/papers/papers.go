// Package papers lists every figure and table of the five papers, what the paper's value is, ours, and where ours is from.
//
// Values are not written down twice: those of the simulator are recorded from a run of `make results` and judged by today's claims,
// those of benchmarks are quoted from docs/design/performance.md, and scenarios give their promise.
package papers

import (
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/report"
)

// Verdicts of figures that no experiment of the simulator has; the others have a sim.Verdict.
const (
	Measured    sim.Verdict = "MEASURED"     // by a benchmark, on hardware that is not the paper's: nothing to judge by
	Tested      sim.Verdict = "TESTED"       // a scenario on real packets fails unless its promise holds
	NotMeasured sim.Verdict = "NOT-MEASURED" // the reason says why
	NoValues    sim.Verdict = "NO-VALUES"    // the figure is a drawing, a definition, or a parameter of another
)

// Figure is a figure or table of a paper, or a section with a number.
type Figure struct {
	Paper string // "Cheetah"
	Name  string // "figure 2a", "table I", "section VI-B3"
	Shows string

	// Simulated names experiments, which stand for all of their claims that have a paper's value, or single claims: "yuz-7/yuz-busy".
	Simulated []string
	Measured  []Measurement
	Scenarios []string // by name
	Value     string   // the paper's, of what the scenarios show

	// Missing says why there is nothing else, or what of the figure is missing.
	Missing string
	// Drawing says that the figure has no values.
	Drawing bool
}

// Measurement is what a benchmark measures.
type Measurement struct {
	Shows   string
	Paper   string
	Command string   // of ballast-lab
	Quotes  []string // rows of docs/design/performance.md: name and value, "cookie | 21.4"
	Reason  string
}

// Line is what a figure claims, or one of its claims.
type Line struct {
	Paper   string      `json:"paper"`
	Figure  string      `json:"figure"`
	Shows   string      `json:"shows"`
	Value   string      `json:"paper_value,omitempty"`
	Ours    string      `json:"ours,omitempty"`
	From    string      `json:"from,omitempty"`
	Verdict sim.Verdict `json:"verdict"`
	Reason  string      `json:"reason,omitempty"`
}

// Lines returns the lines of all figures, in the papers' order. An error names what a figure refers to and does not exist.
func Lines(experiments []sim.Experiment, scenarios []scenario.Scenario) (lines []Line, err error) {
	recorded, err := readRecorded()
	if err != nil {
		return nil, err
	}
	for _, figure := range Figures() {
		own, err := figure.lines(experiments, recorded, scenarios)
		if err != nil {
			return nil, fmt.Errorf("list %s, %s: %w", figure.Paper, figure.Name, err)
		}
		lines = append(lines, own...)
	}
	return lines, nil
}

func (f *Figure) lines(experiments []sim.Experiment, recorded Recorded, scenarios []scenario.Scenario) (lines []Line, err error) {
	add := func(line Line) {
		line.Paper, line.Figure = f.Paper, f.Name
		lines = append(lines, line)
	}
	for _, name := range f.Simulated {
		claims, err := find(experiments, name)
		if err != nil {
			return nil, err
		}
		for _, c := range claims {
			finding, err := recorded.finding(c)
			if err != nil {
				return nil, err
			}
			add(Line{Shows: c.What, Value: c.Paper, Ours: report.Ours(finding), From: "sim run " + c.experiment.Name + ": " + c.ID,
				Verdict: finding.Verdict, Reason: c.Note})
		}
	}
	for _, m := range f.Measured {
		add(Line{Shows: m.Shows, Value: m.Paper, Ours: m.ours(), From: m.Command, Verdict: Measured, Reason: m.Reason})
	}
	for _, name := range f.Scenarios {
		i := slices.IndexFunc(scenarios, func(s scenario.Scenario) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no scenario %s", name)
		}
		add(Line{Shows: f.Shows, Value: f.Value, Ours: scenarios[i].Promise, From: "run " + name, Verdict: Tested})
	}
	if f.Missing != "" {
		add(Line{Shows: f.Shows, Verdict: NotMeasured, Reason: f.Missing})
	}
	if f.Drawing {
		add(Line{Shows: f.Shows, Verdict: NoValues})
	}
	return lines, nil
}

// Figures returns the register, in the papers' order.
func Figures() []Figure { return slices.Concat(cheetah, shell, spotlight, yuz, anolis) }

// Names returns the papers' names, in their order.
func Names() (names []string) {
	for _, figure := range Figures() {
		if !slices.Contains(names, figure.Paper) {
			names = append(names, figure.Paper)
		}
	}
	return names
}

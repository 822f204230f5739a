package sim

import (
	"slices"
	"strings"
)

// summarize averages the outcomes of an experiment's runs, which are in the order of their seeds.
func summarize(experiment Experiment, seeds []uint64, outcomes []*Outcome) Result {
	result := Result{Experiment: experiment.Name, Title: experiment.Title, Source: experiment.Source, Method: experiment.Method, Seeds: seeds}
	for _, claim := range experiment.Claims {
		result.Findings = append(result.Findings, find(claim, outcomes, experiment.Seeds == 1))
	}
	result.Diagrams = diagrams(experiment.Figures, outcomes)
	return result
}

func find(claim Claim, outcomes []*Outcome, certain bool) Finding {
	values := make([]float64, len(outcomes))
	for i, outcome := range outcomes {
		values[i] = outcome.Values[claim.ID]
	}
	finding := claim.Finding(Estimated(values), certain)
	finding.Values = values
	for _, outcome := range outcomes {
		finding.Hits += outcome.Shares[claim.ID].Hits
		finding.Trials += outcome.Shares[claim.ID].Of
	}
	return finding
}

// Finding is a claim with our value, judged. Certain is that the value does not vary from run to run.
func (c Claim) Finding(ours Estimate, certain bool) Finding {
	return Finding{ID: c.ID, What: c.What, Unit: c.Unit, Paper: c.Paper, Ours: ours, Band: Band{c.Low, c.High},
		Verdict: c.judge(ours, certain), Note: c.Note}
}

// diagrams gathers the points of all outcomes by figure, series (in the order of their first points) and x.
func diagrams(figures []Figure, outcomes []*Outcome) []Diagram {
	found := make([]Diagram, max(len(figures), 1))
	for i, f := range figures {
		found[i] = Diagram{Name: f.Name, Title: f.Title, X: f.X, Y: f.Y, LogX: f.LogX, LogY: f.LogY}
	}
	type place struct {
		series string
		x      float64
	}
	var series []string
	values, xs := map[place][]float64{}, map[string][]float64{}
	for _, outcome := range outcomes {
		for _, point := range outcome.Points {
			at := place{point.Series, point.X}
			if _, ok := values[at]; !ok {
				if _, ok := xs[point.Series]; !ok {
					series = append(series, point.Series)
				}
				xs[point.Series] = append(xs[point.Series], point.X)
			}
			values[at] = append(values[at], point.Y)
		}
	}
	for _, name := range series {
		slices.Sort(xs[name])
		figure, curve := figureOf(figures, name)
		for _, x := range xs[name] {
			curve.Points = append(curve.Points, Place{X: x, Y: Estimated(values[place{name, x}])})
		}
		found[figure].Series = append(found[figure].Series, curve)
	}
	return slices.DeleteFunc(found, func(d Diagram) bool { return len(d.Series) == 0 })
}

// figureOf returns the number of the figure that a series belongs to, and the curve with the rest of its name.
func figureOf(figures []Figure, series string) (int, Curve) {
	name, rest, _ := strings.Cut(series, "/")
	if i := slices.IndexFunc(figures, func(f Figure) bool { return f.Name == name }); i >= 0 && rest != "" {
		return i, Curve{Name: rest}
	}
	return 0, Curve{Name: series}
}

// All is the name of all experiments but the extra ones.
const All = "all"

// Select returns the experiments of the given names, in the order of all. "all" names all but the extra ones,
// and a name that ends with a dash names those that begin with it: "cheetah-".
func Select(all []Experiment, names []string) (selected []Experiment, unknown []string) {
	used := map[string]bool{}
	for _, experiment := range all {
		wanted := false
		for _, name := range names {
			family := strings.HasSuffix(name, "-") && strings.HasPrefix(experiment.Name, name)
			if name == All && !experiment.Extra || name == experiment.Name || family {
				wanted, used[name] = true, true
			}
		}
		if wanted {
			selected = append(selected, experiment)
		}
	}
	unknown = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return used[name] })
	return selected, unknown
}

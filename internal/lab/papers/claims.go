package papers

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// claim is a claim with its experiment.
type claim struct {
	sim.Claim
	experiment *sim.Experiment
}

// find returns the claims that a name stands for: one, "yuz-7/yuz-busy", or those of an experiment that have a paper's value.
func find(experiments []sim.Experiment, name string) (claims []claim, err error) {
	name, id, single := strings.Cut(name, "/")
	for i := range experiments {
		if experiments[i].Name != name {
			continue
		}
		for _, one := range experiments[i].Claims {
			if single && one.ID == id || !single && one.Paper != "" {
				claims = append(claims, claim{one, &experiments[i]})
			}
		}
	}
	if len(claims) == 0 {
		return nil, fmt.Errorf("experiment %s has no such claim: %q", name, id)
	}
	return claims, nil
}

// ours is what a benchmark measured: "cookie 21.4, hash 23.2".
func (m *Measurement) ours() string {
	return strings.ReplaceAll(strings.Join(m.Quotes, "; "), " |", ":")
}

// Recorded are values of the simulator, by experiment and claim.
type Recorded map[string]map[string]Value

// Value is what all runs of an experiment measured of a claim.
type Value struct {
	sim.Estimate
	Hits   int64 `json:"hits,omitempty"`
	Trials int64 `json:"trials,omitempty"`
}

// recordedValues is written by UPDATE_FIGURES=bin/results/results.json go test ./internal/lab/papers.
//
//go:embed recorded.json
var recordedValues []byte

func readRecorded() (values Recorded, err error) {
	if err := json.Unmarshal(recordedValues, &values); err != nil {
		return nil, fmt.Errorf("read recorded values: %w", err)
	}
	return values, nil
}

// finding judges the recorded value of a claim by what the claim says today.
func (r Recorded) finding(c claim) (sim.Finding, error) {
	value, ok := r[c.experiment.Name][c.ID]
	if !ok {
		return sim.Finding{}, fmt.Errorf("no value of %s, %s is recorded: run `make results`", c.experiment.Name, c.ID)
	}
	finding := c.Finding(value.Estimate, c.experiment.Seeds == 1)
	finding.Hits, finding.Trials = value.Hits, value.Trials
	return finding, nil
}

// Record takes the values of the figures' claims from results and keeps those of experiments that are not among them. What no figure
// refers to any more goes.
func (r Recorded) Record(experiments []sim.Experiment, results []sim.Result) (Recorded, error) {
	values := Recorded{}
	for _, figure := range Figures() {
		for _, name := range figure.Simulated {
			claims, err := find(experiments, name)
			if err != nil {
				return nil, err
			}
			for _, c := range claims {
				if value, ok := r.newest(c, results); ok {
					values.set(c, value)
				}
			}
		}
	}
	return values, nil
}

func (r Recorded) set(c claim, value Value) {
	if r[c.experiment.Name] == nil {
		r[c.experiment.Name] = map[string]Value{}
	}
	r[c.experiment.Name][c.ID] = value
}

// newest is the value of a claim among results, or else the one that is recorded.
func (r Recorded) newest(c claim, results []sim.Result) (Value, bool) {
	for _, result := range results {
		i := slices.IndexFunc(result.Findings, func(f sim.Finding) bool { return f.ID == c.ID })
		if result.Experiment == c.experiment.Name && i >= 0 {
			found := result.Findings[i]
			ours := sim.Estimate{Mean: rounded(found.Ours.Mean), Half: rounded(found.Ours.Half), Runs: found.Ours.Runs}
			return Value{Estimate: ours, Hits: found.Hits, Trials: found.Trials}, true
		}
	}
	value, ok := r[c.experiment.Name][c.ID]
	return value, ok
}

// rounded leaves six digits: what follows differs without anything having changed.
func rounded(v float64) float64 {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64)
	return v
}

// JSON writes a line for each claim.
func (r Recorded) JSON() ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	text = bytes.ReplaceAll(text, []byte(`},"`), []byte("},\n\""))
	return append(text, '\n'), nil
}

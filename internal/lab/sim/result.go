package sim

import (
	"encoding/json"
	"math"
)

// Verdict is what becomes of a claim.
type Verdict string

// All verdicts. A claim fails, known not to reproduce or not, when our mean is outside of its band and its confidence interval does not
// reach the band.
const (
	Pass             Verdict = "PASS"
	Fail             Verdict = "FAIL"
	Inconclusive     Verdict = "INCONCLUSIVE"       // our mean is outside, and too few runs were made to tell that from chance
	DoesNotReproduce Verdict = "DOES-NOT-REPRODUCE" // the paper's value; ours is what an honest run gives
	Fitted           Verdict = "FITTED"             // our mean is in the band because constants were chosen or assumed for it
	Shown            Verdict = "SHOWN"              // there is no band to judge by
)

// Result is what all runs of an experiment told, averaged.
type Result struct {
	Experiment string    `json:"experiment"`
	Title      string    `json:"title"`
	Source     string    `json:"source"`
	Method     string    `json:"method,omitempty"`
	Seeds      []uint64  `json:"seeds"`
	Findings   []Finding `json:"findings"`
	Diagrams   []Diagram `json:"diagrams,omitempty"`
}

// Finding is a claim with what was measured.
type Finding struct {
	ID      string    `json:"id"`
	What    string    `json:"what"`
	Unit    string    `json:"unit,omitempty"`
	Paper   string    `json:"paper,omitempty"`
	Ours    Estimate  `json:"ours"`
	Values  []float64 `json:"values"`           // in the order of the seeds
	Trials  int64     `json:"trials,omitempty"` // of a claim that is counted: those of all runs
	Hits    int64     `json:"hits,omitempty"`
	Band    Band      `json:"band"`
	Verdict Verdict   `json:"verdict"`
	Note    string    `json:"note,omitempty"`
}

// Band is where a mean must lie, bounds included; they may be infinite.
type Band struct{ Low, High float64 }

// Diagram is a figure with what is drawn in it.
type Diagram struct {
	Name   string  `json:"name,omitempty"`
	Title  string  `json:"title,omitempty"`
	X      string  `json:"x,omitempty"`
	Y      string  `json:"y,omitempty"`
	LogX   bool    `json:"log_x,omitempty"`
	LogY   bool    `json:"log_y,omitempty"`
	Series []Curve `json:"series"`
}

// Curve is a series of points with rising x.
type Curve struct {
	Name   string  `json:"name"`
	Points []Place `json:"points"`
}

// Place is a point of a curve.
type Place struct {
	X float64  `json:"x"`
	Y Estimate `json:"y"`
}

// Failed reports whether any claim of a result fails.
func (r Result) Failed() bool { return len(r.With(Fail)) > 0 }

// With are the findings that have a verdict.
func (r Result) With(verdict Verdict) (findings []Finding) {
	for _, finding := range r.Findings {
		if finding.Verdict == verdict {
			findings = append(findings, finding)
		}
	}
	return findings
}

// judge returns the verdict of a claim. Certain is that the value does not vary from run to run. A band of one value claims something exactly:
// a single run disproves it.
func (c Claim) judge(ours Estimate, certain bool) Verdict {
	reach := ours.Half
	switch {
	case certain || c.Low == c.High:
		reach = 0
	case ours.Runs == 1: // one run has no interval, and proves nothing
		reach = math.Inf(1)
	}
	switch outside := ours.Mean < c.Low || ours.Mean > c.High; {
	case outside && ours.Mean+reach >= c.Low && ours.Mean-reach <= c.High:
		return Inconclusive
	case outside:
		return Fail
	case c.Known:
		return DoesNotReproduce
	case c.Fitted:
		return Fitted
	case math.IsInf(c.Low, -1) && math.IsInf(c.High, 1):
		return Shown
	}
	return Pass
}

type bandJSON struct {
	Low  *float64 `json:"low"`
	High *float64 `json:"high"`
}

// MarshalJSON writes null for an infinite bound: JSON has no infinity.
func (b Band) MarshalJSON() ([]byte, error) {
	var plain bandJSON
	if isNumber(b.Low) {
		plain.Low = &b.Low
	}
	if isNumber(b.High) {
		plain.High = &b.High
	}
	return json.Marshal(plain)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (b *Band) UnmarshalJSON(text []byte) error {
	var plain bandJSON
	if err := json.Unmarshal(text, &plain); err != nil {
		return err
	}
	*b = Band{Low: math.Inf(-1), High: math.Inf(1)}
	if plain.Low != nil {
		b.Low = *plain.Low
	}
	if plain.High != nil {
		b.High = *plain.High
	}
	return nil
}

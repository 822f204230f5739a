package sim

import (
	"fmt"
	"slices"
)

// finish turns shares into values and checks that the run told every claim, and nothing else.
func (r *Run) finish(experiment Experiment) (*Outcome, error) {
	for _, claim := range experiment.Claims {
		if share, ok := r.outcome.Shares[claim.ID]; ok {
			r.outcome.Values[claim.ID] = share.in(claim.Unit)
		}
		if _, ok := r.outcome.Values[claim.ID]; !ok {
			return nil, fmt.Errorf("run %s with seed %d: it told no value of %q", experiment.Name, r.Seed, claim.ID)
		}
	}
	var strangers []string
	for id := range r.outcome.Values {
		if !slices.ContainsFunc(experiment.Claims, func(claim Claim) bool { return claim.ID == id }) {
			strangers = append(strangers, id)
		}
	}
	for id := range r.outcome.Shares {
		if _, ok := r.outcome.Values[id]; !ok {
			strangers = append(strangers, id)
		}
	}
	if len(strangers) > 0 {
		slices.Sort(strangers)
		return nil, fmt.Errorf("run %s with seed %d: it told values of %q, which it does not claim", experiment.Name, r.Seed, strangers)
	}
	return r.outcome, nil
}

// in is the share in a unit; that of no trials is 0.
func (s Share) in(unit string) float64 {
	if s.Of == 0 {
		return 0
	}
	if unit == "%" {
		return 100 * float64(s.Hits) / float64(s.Of)
	}
	return float64(s.Hits) / float64(s.Of)
}

package sim

import (
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/lab/script"
)

// do runs an experiment, turns shares into values, and checks that the run told every claim, and nothing else.
func (r *Run) do(experiment Experiment) (*Outcome, error) {
	if err := script.Try(func() { experiment.Run(r) }); err != nil {
		return nil, err
	}
	for _, claim := range experiment.Claims {
		if share, ok := r.outcome.Shares[claim.ID]; ok {
			r.outcome.Values[claim.ID] = share.in(claim.Unit)
		}
		value, ok := r.outcome.Values[claim.ID]
		if !ok {
			return nil, fmt.Errorf("it told no value of %q", claim.ID)
		}
		if !isNumber(value) {
			return nil, fmt.Errorf("it told %v for %q", value, claim.ID)
		}
	}
	for _, point := range r.outcome.Points {
		if !isNumber(point.X) || !isNumber(point.Y) {
			return nil, fmt.Errorf("it told the point %v, %v of %q", point.X, point.Y, point.Series)
		}
	}
	if unclaimed := r.outcome.unclaimed(experiment.Claims); len(unclaimed) > 0 {
		return nil, fmt.Errorf("it told values of %q, which the experiment does not claim", unclaimed)
	}
	return r.outcome, nil
}

// unclaimed are the values and shares that no claim has, sorted.
func (o *Outcome) unclaimed(claims []Claim) (ids []string) {
	for id := range o.Values {
		ids = append(ids, id)
	}
	for id := range o.Shares {
		ids = append(ids, id)
	}
	ids = slices.DeleteFunc(ids, func(id string) bool {
		return slices.ContainsFunc(claims, func(claim Claim) bool { return claim.ID == id })
	})
	slices.Sort(ids)
	return slices.Compact(ids)
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

package sim

import (
	"math"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// confidence of all intervals.
const confidence = 0.95

// Estimate is a mean over runs with its confidence interval: Mean-Half to Mean+Half covers the expected value with 95 %, by Student's t.
// One run has no interval: its Half is 0.
type Estimate struct {
	Mean float64 `json:"mean"`
	Half float64 `json:"half_width"`
	Runs int     `json:"runs"`
}

// Estimated returns the estimate of at least one value. Values are added in their order, so that the result does not depend on who
// computed them.
func Estimated(values []float64) Estimate {
	n := len(values)
	if n == 1 {
		return Estimate{Mean: values[0], Runs: 1}
	}
	mean, deviation := stat.MeanStdDev(values, nil)
	t := distuv.StudentsT{Sigma: 1, Nu: float64(n - 1)}.Quantile(1 - (1-confidence)/2)
	return Estimate{Mean: mean, Half: t * stat.StdErr(deviation, float64(n)), Runs: n}
}

// isNumber tells that a value can be averaged, judged, and written as JSON.
func isNumber(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

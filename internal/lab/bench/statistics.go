package bench

import (
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"
)

// spread is what is told of a series of measurements.
type spread struct{ min, median, max float64 }

// spreadOf returns the spread of at least one sample; the median of an even number is the mean of the middle two.
func spreadOf(samples []float64) spread {
	sorted := slices.Sorted(slices.Values(samples))
	last := len(sorted) - 1
	return spread{sorted[0], (sorted[last/2] + sorted[(last+1)/2]) / 2, sorted[last]}
}

// less subtracts round by round: what disturbed a round disturbed both.
func less(samples, control []float64) []float64 {
	return floats.SubTo(make([]float64, len(samples)), samples, control)
}

func plus(samples, more []float64) []float64 {
	return floats.AddTo(make([]float64, len(samples)), samples, more)
}

// percentile is the least sample that so many per cent of at least one are not above.
func percentile(samples []float64, percent float64) float64 {
	return stat.Quantile(percent/100, stat.Empirical, slices.Sorted(slices.Values(samples)), nil)
}

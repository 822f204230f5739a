package shell

import (
	"math"

	"github.com/ballast-lb/ballast/internal/lab/data"
)

// durations are how long connections last, in seconds.
type durations struct {
	name, what string
	lives      data.Distribution
	paper      bool // these are the paper's
}

// perMinute is the median rate of reconfigurations in the paper's realistic case; it does not print the distribution.
const perMinute = 13.5

// digitised are two readings of how long connections of web servers last.
func digitised() []durations {
	return []durations{
		{"facebook", "durations of Roy et al., figure 7a", data.FacebookDurations().Scaled(1e-3), true},
		{"web", "durations of Cheetah's web servers", data.WebDurations().Scaled(1e-6), false},
	}
}

// overLives returns the share of connections that are reset when they last as given and reconfigurations are Poisson. after is the share
// that is reset after n of them, from n = 0 on; more than its last n must be unlikely in the longest life.
func overLives(after []float64, perMinute float64, lives data.Distribution) float64 {
	const parts = 1000 // of equal probability
	sum := 0.0
	for i := range parts {
		mean := lives.At((float64(i)+0.5)/parts) * perMinute / 60
		probability := math.Exp(-mean) // of n reconfigurations
		for n := 1; n < len(after); n++ {
			probability *= mean / float64(n)
			sum += probability * after[n]
		}
	}
	return sum / parts
}

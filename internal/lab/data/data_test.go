package data

import (
	"bufio"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// everything has all distributions with the bounds that their means must be in.
var everything = []struct {
	name         string
	distribution Distribution
	low, high    float64
}{
	{"web durations, us", WebDurations(), 15e6, 30e6},
	{"Facebook durations, ms", FacebookDurations(), 40e3, 55e3},
	{"search flows, bytes", SearchFlows(), 1.4e6, 1.6e6},
	{"downtimes, s", Downtimes(), 500, 1200},
}

func TestEveryFileSaysWhereItIsFrom(t *testing.T) {
	entries, err := files.ReadDir(".")
	if err != nil || len(entries) != len(everything) {
		t.Fatal(entries, err)
	}
	for _, entry := range entries {
		file, err := files.Open(entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(file).ReadString('\n'); err != nil || !strings.HasPrefix(line, "# ") {
			t.Errorf("%s begins with %q", entry.Name(), line)
		}
		file.Close()
	}
}

func TestValuesAndProbabilitiesRiseToOne(t *testing.T) {
	for _, one := range everything {
		previous := Point{}
		for _, point := range one.distribution.Points {
			if point.Value < previous.Value || point.UpTo < previous.UpTo {
				t.Errorf("%s: %v after %v", one.name, point, previous)
			}
			previous = point
		}
		if previous.UpTo != 1 {
			t.Errorf("%s ends with %v", one.name, previous)
		}
	}
}

func TestMeansAreThoseOfTheTraces(t *testing.T) {
	for _, one := range everything {
		if mean := one.distribution.Mean(); mean < one.low || mean > one.high {
			t.Errorf("%s: mean %g instead of %g to %g", one.name, mean, one.low, one.high)
		}
	}
}

func TestDrawsHaveTheMeanOfTheirDistribution(t *testing.T) {
	for name, distribution := range map[string]Distribution{
		"durations": WebDurations(), "Facebook": FacebookDurations(), "search": SearchFlows(), "scaled": SearchFlows().WithMean(7),
	} {
		random, sum := rand.New(rand.NewPCG(1, 2)), 0.0
		const draws = 200_000
		for range draws {
			sum += distribution.At(random.Float64())
		}
		if mean := distribution.Mean(); math.Abs(sum/draws-mean) > 0.03*mean {
			t.Errorf("%s: mean of draws %g, of the distribution %g", name, sum/draws, mean)
		}
	}
	scaled := SearchFlows().WithMean(7)
	if math.Abs(scaled.Mean()-7) > 1e-9 {
		t.Errorf("mean %g instead of 7", scaled.Mean())
	}
}

// The mean of what remains is E[life^2] / 2 E[life].
func TestWhatRemainsIsThatOfARandomMoment(t *testing.T) {
	for _, one := range everything {
		d, squares := one.distribution, 0.0
		const parts = 1_000_000
		for i := range parts {
			life := d.At((float64(i) + 0.5) / parts)
			squares += life * life / parts
		}
		remaining := d.Scaled(3).Remaining()
		if have, want := remaining.Mean(), 3*squares/2/d.Mean(); math.Abs(have-want) > 0.01*want {
			t.Errorf("%s: %g instead of %g", one.name, have, want)
		}
	}
}

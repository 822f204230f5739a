package data

import (
	"bufio"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/traffic"
)

func TestEveryFileSaysWhereItIsFrom(t *testing.T) {
	entries, err := files.ReadDir(".")
	if err != nil || len(entries) == 0 {
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

func TestDrawsHaveTheMeanOfTheirDistribution(t *testing.T) {
	for name, distribution := range map[string]traffic.Distribution{
		"durations": WebDurations(), "search": SearchFlows(), "scaled": SearchFlows().WithMean(7),
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
	durations := WebDurations()
	if mean := durations.Mean(); mean < 15e6 || mean > 30e6 {
		t.Errorf("connections last %g s on average: not the trace", mean/1e6)
	}
}

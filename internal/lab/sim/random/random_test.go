package random

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/lab/data"
)

func TestStreamsOfOneNameAndSeedAreEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, name := rapid.Uint64().Draw(t, "seed"), rapid.String().Draw(t, "name")
		a, b := New(seed, name), New(seed, name)
		for range 10 {
			if a.Uint64() != b.Uint64() {
				t.Fatal("they differ")
			}
		}
	})
}

func TestACopyGoesOnApartFromItsOriginal(t *testing.T) {
	original := New(1, "arrivals")
	original.Uint64()
	fork := original
	want := []uint64{original.Uint64(), original.Uint64()}
	if have := []uint64{fork.Uint64(), fork.Uint64()}; !slices.Equal(have, want) {
		t.Errorf("have %x, want %x", have, want)
	}
}

// correlation of two sequences of numbers in [0, 1): within 5 of its standard deviations 1/sqrt(n) of 0.
func uncorrelated(t *testing.T, what string, n int, a, b func(i int) float64) {
	t.Helper()
	sum := 0.0
	for i := range n {
		sum += (a(i) - 0.5) * (b(i) - 0.5)
	}
	if r := 12 * sum / float64(n); math.Abs(r) > 5/math.Sqrt(float64(n)) {
		t.Errorf("%s: correlation %g", what, r)
	}
}

func TestStreamsOfOtherNamesAndSeedsAreIndependent(t *testing.T) {
	const n = 100_000
	pairs := [][2]Stream{
		{New(1, "arrivals"), New(1, "durations")}, {New(1, "arrivals"), New(2, "arrivals")}, {New(0, ""), New(0, "a")}, {New(1, "a1"), New(1, "a2")},
	}
	for i := range pairs {
		a, b := &pairs[i][0], &pairs[i][1]
		uncorrelated(t, fmt.Sprint("pair ", i), n, func(int) float64 { return a.Float64() }, func(int) float64 { return b.Float64() })
	}
}

func TestKeysOfOtherNamesSeedsAndFlowsAreIndependent(t *testing.T) {
	const n = 100_000
	a, b, c := Keyed(1, "durations"), Keyed(1, "hash"), Keyed(2, "durations")
	at := func(k Key, shift int) func(int) float64 {
		return func(i int) float64 { return k.Float64At(uint64(i + shift)) }
	}
	uncorrelated(t, "names", n, at(a, 0), at(b, 0))
	uncorrelated(t, "seeds", n, at(a, 0), at(c, 0))
	uncorrelated(t, "next flow", n, at(a, 0), at(a, 1))
	uncorrelated(t, "far flow", n, at(a, 0), at(a, 1<<32))
	close := Key{start: a.start + 0x9e3779b97f4a7c15, mask: b.mask} // the sequence of a, one on
	uncorrelated(t, "starts close together", n, at(a, 1), at(close, 0))
}

func TestAFlowsNumberIsTheSameWhateverWasDrawnBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := Keyed(rapid.Uint64().Draw(t, "seed"), "x")
		flows := rapid.SliceOfN(rapid.Uint64(), 2, 10).Draw(t, "flows")
		first := key.At(flows[0])
		for _, flow := range flows[1:] {
			if key.At(flow) == first && flow != flows[0] {
				t.Errorf("flows %d and %d have one number", flow, flows[0])
			}
		}
		if key.At(flows[0]) != first {
			t.Error("the number changed")
		}
	})
}

func TestEveryNumberBelowNIsEquallyLikely(t *testing.T) {
	const draws = 120_000
	for _, n := range []int{1, 2, 3, 7, 12} {
		stream, key := New(5, "intn"), Keyed(5, "below")
		fromStream, fromKey := make([]float64, n), make([]float64, n)
		for i := range draws {
			fromStream[stream.Intn(n)]++
			fromKey[Below(key.At(uint64(i)), uint32(n))]++
		}
		expected := draws / float64(n)
		for i := range n {
			if off := 5 * math.Sqrt(expected); math.Abs(fromStream[i]-expected) > off || math.Abs(fromKey[i]-expected) > off {
				t.Errorf("%d of %d: %g and %g times instead of %g", i, n, fromStream[i], fromKey[i], expected)
			}
		}
	}
}

func TestDistributionsHaveTheirMoments(t *testing.T) {
	const draws = 400_000
	stream, key := New(6, "moments"), Keyed(6, "moments")
	mean := func(draw func(i int) float64) float64 {
		sum := 0.0
		for i := range draws {
			sum += draw(i)
		}
		return sum / draws
	}
	for _, c := range []struct {
		name string
		want float64
		draw func(i int) float64
	}{
		{"unit", 0.5, func(int) float64 { return stream.Float64() }},
		{"exponential", 3, func(int) float64 { return stream.Exp(3) }},
		{"square of exponential", 2, func(int) float64 { x := stream.Exp(1); return x * x }},
		{"exponential of a flow", 3, func(i int) float64 { return key.ExpAt(uint64(i), 3) }},
		{"Pareto", 2 * 4 / (4 - 1.0), func(int) float64 { return stream.Pareto(4, 2) }},
	} {
		if have := mean(c.draw); math.Abs(have-c.want) > 0.02*c.want {
			t.Errorf("%s: mean %g instead of %g", c.name, have, c.want)
		}
	}
}

func TestShuffleMakesEveryOrderEquallyLikely(t *testing.T) {
	stream, count := New(7, "shuffle"), map[[3]int]int{}
	for range 60_000 {
		order := [3]int{0, 1, 2}
		stream.Shuffle(3, func(i, j int) { order[i], order[j] = order[j], order[i] })
		count[order]++
	}
	for order, times := range count {
		if math.Abs(float64(times)-10_000) > 500 || len(count) != 6 {
			t.Errorf("%v: %d times of 60000", order, times)
		}
	}
}

func TestSamplerEqualsItsDistribution(t *testing.T) {
	for name, d := range map[string]data.Distribution{
		"web": data.WebDurations(), "Facebook": data.FacebookDurations(), "search": data.SearchFlows().Scaled(8), "downtimes": data.Downtimes(),
	} {
		sampler := NewSampler(d)
		rapid.Check(t, func(t *rapid.T) {
			probability := rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "probability")
			if rapid.Bool().Draw(t, "edge") {
				probability = min(rapid.SampledFrom(d.Points).Draw(t, "point").UpTo, math.Nextafter(1, 0))
			}
			if have, want := sampler.At(probability), d.At(probability); math.Abs(have-want) > 1e-9*want {
				t.Errorf("%s at %g: have %g, want %g", name, probability, have, want)
			}
		})
	}
}

func BenchmarkExp(b *testing.B) {
	stream := New(1, "b")
	for b.Loop() {
		stream.Exp(1)
	}
}

func BenchmarkSampler(b *testing.B) {
	sampler, key, flow := NewSampler(data.WebDurations()), Keyed(1, "b"), uint64(0)
	for b.Loop() {
		flow++
		sampler.At(key.Float64At(flow))
	}
}

package bench

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestSpreadOfKnownSamples(t *testing.T) {
	for _, test := range []struct {
		samples []float64
		want    spread
	}{
		{[]float64{7}, spread{7, 7, 7}},
		{[]float64{3, 1}, spread{1, 2, 3}},
		{[]float64{9, 1, 2}, spread{1, 2, 9}},
		{[]float64{4, 1, 3, 100}, spread{1, 3.5, 100}},
	} {
		if got := spreadOf(test.samples); got != test.want {
			t.Errorf("spread of %v is %v, want %v", test.samples, got, test.want)
		}
	}
}

func TestHalfOfTheSamplesLieOnEachSideOfTheMedian(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOfN(rapid.Float64Range(0, 1000), 1, 50).Draw(t, "samples")
		before := slices.Clone(samples)
		got := spreadOf(samples)
		if !slices.Equal(samples, before) {
			t.Fatal("the samples were moved")
		}
		var below, above int
		for _, sample := range samples {
			if sample < got.min || sample > got.max {
				t.Fatalf("%v lies outside of %v", sample, got)
			}
			if sample < got.median {
				below++
			}
			if sample > got.median {
				above++
			}
		}
		if 2*below > len(samples) || 2*above > len(samples) {
			t.Fatalf("%d below and %d above the median of %d", below, above, len(samples))
		}
	})
}

func TestNetIsTakenRoundByRound(t *testing.T) {
	plain := &measurement{subject: &subject{name: "empty"}, flows: 1, raw: []float64{10, 20, 30}}
	plain.control, plain.plain = plain, plain
	making := &measurement{subject: &subject{name: "empty"}, flows: 1, raw: []float64{15, 26, 33}}
	measured := &measurement{subject: &subject{name: "cookie", verdict: "v"}, flows: 1, raw: []float64{55, 67, 72}, count: 3,
		control: making, plain: plain}
	cells := results([]*measurement{plain, making, measured})
	want := []Cell{
		{Program: "empty", Flows: 1, MinNS: 10, MedianNS: 20, MaxNS: 30, RawMedianNS: 20, Verdict: "tx"},
		{Program: "cookie", Flows: 1, MinNS: 50, MedianNS: 61, MaxNS: 69, NetMinNS: 40, NetMedianNS: 40, RawMedianNS: 67, Verdict: "v", VerdictCount: 3},
	}
	if !slices.Equal(cells, want) {
		t.Errorf("cells are\n%+v, want\n%+v", cells, want)
	}
}

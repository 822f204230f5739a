package awfd

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

func availableOf(capacities ...float64) []Available {
	available := make([]Available, len(capacities))
	for i, capacity := range capacities {
		available[i] = Available{ID: uint16(i + 1), Capacity: capacity}
	}
	return available
}

func weightsOf(shares []model.Share) (out []uint16) {
	for _, share := range shares {
		out = append(out, share.Weight)
	}
	return out
}

var strange = rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 10),
	rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0, math.MaxFloat64, math.SmallestNonzeroFloat64}))

// Spotlight IV-B: four servers with 2, 1, 0 and 0 available, m = 2. The probability that two elephants meet different servers is
// 2 * 1/3 * 2/3 = 44.4 %.
func TestTheExampleOfThePaper(t *testing.T) {
	shares := Weights(availableOf(2, 1, 0, 0), 2)
	if got := weightsOf(shares); !slices.Equal(got, []uint16{2, 1, 0, 0}) {
		t.Fatalf("weights %v", got)
	}
	classes := NewClasses(shares)
	const draws = 1 << 16
	count := map[uint16]int{}
	for i := range draws { // every 2^16th number there is: the shares are exact
		count[classes.Choose(uint32(i)<<16)]++
	}
	apart := 0.0
	for id, share := range map[uint16]float64{1: 2. / 3, 2: 1. / 3, 3: 0, 4: 0} {
		got := float64(count[id]) / draws
		if math.Abs(got-share) > 1e-4 {
			t.Errorf("server %d gets %.4f, want %.4f", id, got, share)
		}
		apart += got * (1 - got)
	}
	if math.Abs(apart-0.444) > 1e-3 {
		t.Errorf("two elephants are apart in %.1f %%, want 44.4 %%", 100*apart)
	}
}

func TestWeightsAreThoseOfTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfN(rapid.IntRange(0, 1000), 1, 40).Draw(t, "capacities")
		m := rapid.IntRange(1, model.MaxClasses).Draw(t, "m")
		capacities := make([]float64, len(numbers))
		for i, n := range numbers {
			capacities[i] = float64(n)
		}
		largest := slices.Max(numbers)
		for i, got := range weightsOf(Weights(availableOf(capacities...), uint8(m))) {
			want := 1
			if largest > 0 {
				want = m * numbers[i] / largest
			}
			if int(got) != want {
				t.Errorf("%d of %d, m %d: weight %d, want %d", numbers[i], largest, m, got, want)
			}
		}
	})
}

func TestWithoutClassesAllAreAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, share := range Weights(availableOf(rapid.SliceOf(strange).Draw(t, "capacities")...), 0) {
			if share.Weight != 1 {
				t.Errorf("%+v", share)
			}
		}
	})
}

func TestSomebodyAlwaysHasTheLargestWeight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.Uint8Range(1, model.MaxClasses).Draw(t, "m")
		capacities := rapid.SliceOfN(strange, 1, 20).Draw(t, "capacities")
		weights := weightsOf(Weights(availableOf(capacities...), m))
		nobody := !slices.ContainsFunc(capacities, func(c float64) bool { return c > 0 })
		if largest := slices.Max(weights); largest > uint16(m) || (nobody && slices.Min(weights) != 1) || (!nobody && largest != uint16(m)) {
			t.Errorf("capacities %v, m %d: weights %v", capacities, m, weights)
		}
	})
}

func TestCapacitiesThatAreNoNumbersHaveAMeaning(t *testing.T) {
	for _, c := range []struct {
		capacities []float64
		weights    []uint16
	}{
		{[]float64{math.NaN(), -1, 2, 4}, []uint16{0, 0, 2, 4}},
		{[]float64{math.Inf(1), 5, math.Inf(1)}, []uint16{4, 0, 4}},
		{[]float64{math.MaxFloat64, math.MaxFloat64 / 2}, []uint16{4, 2}},
		{[]float64{math.NaN(), math.Inf(-1)}, []uint16{1, 1}},
	} {
		if got := weightsOf(Weights(availableOf(c.capacities...), 4)); !slices.Equal(got, c.weights) {
			t.Errorf("capacities %v: weights %v, want %v", c.capacities, got, c.weights)
		}
	}
}

// chiSquare of what was counted against shares of it, and the limit that chance passes once in 10^9 (Wilson and Hilferty 1931).
func chiSquare(count map[uint16]int, shares []model.Share, draws int) (value, limit float64) {
	total, freedom := 0.0, -1.0
	for _, share := range shares {
		total += float64(share.Weight)
	}
	for _, share := range shares {
		if share.Weight > 0 {
			expected := float64(draws) * float64(share.Weight) / total
			value += math.Pow(float64(count[share.ID])-expected, 2) / expected
			freedom++
		}
	}
	if freedom <= 0 {
		return value, 0
	}
	const sigmas = 6.0
	return value, freedom * math.Pow(1-2/(9*freedom)+sigmas*math.Sqrt(2/(9*freedom)), 3)
}

func TestSharesFollowTheWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var shares []model.Share
		for i, weight := range rapid.SliceOfN(rapid.Uint16Range(0, model.MaxClasses), 1, 64).Draw(t, "weights") {
			shares = append(shares, model.Share{ID: uint16(i + 1), Weight: weight})
		}
		classes := NewClasses(shares)
		seed := rapid.Uint64().Draw(t, "seed")
		random := rand.New(rand.NewPCG(seed, 1))
		count := map[uint16]int{}
		const draws = 20000
		for range draws {
			count[classes.Choose(random.Uint32())]++
		}
		if !slices.ContainsFunc(shares, func(s model.Share) bool { return s.Weight > 0 }) {
			for i := range shares { // all alike
				shares[i].Weight = 1
			}
		}
		for _, share := range shares {
			if share.Weight == 0 && count[share.ID] > 0 {
				t.Errorf("server %d of weight 0 was chosen", share.ID)
			}
		}
		if value, limit := chiSquare(count, shares, draws); value > limit {
			t.Errorf("chi-square %.1f of at most %.1f: %v", value, limit, count)
		}
	})
}

func TestNobodyIsChosenAmongNobody(t *testing.T) {
	if classes := (Classes{}); classes.Choose(7) != 0 {
		t.Error("somebody was")
	}
}

func TestTheEndsOfTheRangeLeadToServers(t *testing.T) {
	classes := NewClasses([]model.Share{{ID: 1, Weight: 3}, {ID: 2, Weight: 1}, {ID: 3}})
	if first, last := classes.Choose(0), classes.Choose(math.MaxUint32); first != 1 || last != 2 {
		t.Errorf("chosen %d and %d", first, last)
	}
}

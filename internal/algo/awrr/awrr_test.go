package awrr

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/rounds"
	"github.com/ballast-lb/ballast/internal/model"
)

func loadsOf(values ...float64) []Load {
	loads := make([]Load, len(values))
	for i, value := range values {
		loads[i] = Load{ID: uint16(i + 1), Load: value}
	}
	return loads
}

func weights(turns []model.Share) (out []uint16) {
	for _, share := range turns {
		out = append(out, share.Weight)
	}
	return out
}

func TestTurnsFollowTheFormula(t *testing.T) {
	for _, c := range []struct {
		loads []float64
		turns []uint16
	}{
		{[]float64{50, 50, 50}, []uint16{10, 10, 10}},
		{[]float64{0, 0}, []uint16{10, 10}},
		{[]float64{0, 100}, []uint16{20, 7}},                                                        // average 50: 10/0.5 and 10/1.5
		{[]float64{20, 40, 90}, []uint16{14, 11, 7}},                                                // average 50: 10/0.7, 10/0.9, 10/1.4
		{[]float64{0, 0, 0, 0, 0, 0, 0, 0, 0, 10}, []uint16{20, 20, 20, 20, 20, 20, 20, 20, 20, 2}}, // average 1: 10/5.5 is 2
	} {
		if got := weights(Turns(loadsOf(c.loads...))); !slices.Equal(got, c.turns) {
			t.Errorf("loads %v: turns %v, want %v", c.loads, got, c.turns)
		}
	}
}

// The formula as it is printed, without a thought for overflow.
func TestTurnsAreThoseOfThePaper(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 40).Draw(t, "loads")
		turns := weights(Turns(loadsOf(values...)))
		sum := 0.0
		for _, value := range values {
			sum += value
		}
		for i, value := range values {
			average := sum / float64(len(values))
			exact := 10 * average / (0.5*value + 0.5*average)
			if average == 0 {
				exact = 10
			}
			exact = min(max(exact, 2), 30)
			if math.Abs(float64(turns[i])-exact) > 0.5001 {
				t.Errorf("load %g of average %g: %d turns, want %g", value, average, turns[i], exact)
			}
		}
	})
}

func TestTurnsStayInBoundsWhateverIsReported(t *testing.T) {
	strange := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0, math.MaxFloat64, math.SmallestNonzeroFloat64}))
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(strange, 0, 20).Draw(t, "loads")
		turns := Turns(loadsOf(values...))
		if len(turns) != len(values) {
			t.Fatalf("%d servers, %d turns", len(values), len(turns))
		}
		for i, share := range turns {
			if share.ID != uint16(i+1) || share.Weight < Least || share.Weight > Most {
				t.Errorf("load %g: %+v", values[i], share)
			}
		}
	})
}

func TestLoadsThatAreNoNumbersHaveAMeaning(t *testing.T) {
	got := weights(Turns(loadsOf(math.NaN(), math.Inf(1), -5, 10, 10)))
	if want := []uint16{10, 2, 20, 8, 8}; !slices.Equal(got, want) { // average of 0, 10, 10
		t.Errorf("turns %v, want %v", got, want)
	}
}

func TestMoreLoadNeverGivesMoreTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 100), 2, 20).Draw(t, "loads")
		slices.Sort(values)
		if turns := weights(Turns(loadsOf(values...))); !slices.IsSortedFunc(turns, func(a, b uint16) int { return int(b) - int(a) }) {
			t.Errorf("loads %v: turns %v", values, turns)
		}
	})
}

func TestTheRoundHasEveryTurn(t *testing.T) {
	turns := Turns(loadsOf(20, 40, 90))
	count := map[uint16]int{}
	for _, id := range rounds.Weighted(turns) {
		count[id]++
	}
	for _, share := range turns {
		if count[share.ID] != int(share.Weight) {
			t.Errorf("server %d: %d turns, want %d", share.ID, count[share.ID], share.Weight)
		}
	}
}

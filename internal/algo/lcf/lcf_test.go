package lcf

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/awfd"
)

func TestOnlyTheLargestCapacityGetsConnections(t *testing.T) {
	capacity := rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 3), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), -1, 0, 1}))
	rapid.Check(t, func(t *rapid.T) {
		var available []awfd.Available
		largest := 0.0
		for i, value := range rapid.SliceOfN(capacity, 1, 20).Draw(t, "capacities") {
			available = append(available, awfd.Available{ID: uint16(i + 1), Capacity: value})
			if value > largest {
				largest = value
			}
		}
		for i, share := range Weights(available) {
			want := uint16(0)
			if value := available[i].Capacity; value == largest || largest == 0 {
				want = 1
			}
			if share.ID != available[i].ID || share.Weight != want {
				t.Errorf("%+v of at most %g: %+v", available[i], largest, share)
			}
		}
	})
}

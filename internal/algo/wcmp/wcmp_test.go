package wcmp

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/modulo"
	"github.com/ballast-lb/ballast/internal/model"
)

func anyShares(t *rapid.T, heaviest uint16) []model.Share {
	var shares []model.Share
	for _, id := range rapid.SliceOfNDistinct(rapid.Uint16Range(1, 32767), 1, 60, rapid.ID[uint16]).Draw(t, "ids") {
		shares = append(shares, model.Share{ID: id, Weight: rapid.Uint16Range(0, heaviest).Draw(t, "weight")})
	}
	return shares
}

func TestOwnersAreInProportionToTheirWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := anyShares(t, model.MaxWeight)
		slots := rapid.SampledFrom(model.TableSizes()[:5]).Draw(t, "slots")
		count, total := map[uint16]float64{}, 0.0
		table := Table(slots, shares)
		for _, id := range table {
			count[id]++
		}
		for _, share := range shares {
			total += float64(share.Weight)
		}
		if len(table) != int(slots) || (total > 0 && count[0] > 0) {
			t.Fatalf("%d slots, %g of them nobody's", len(table), count[0])
		}
		for _, share := range shares {
			exact := 0.0
			if total > 0 {
				exact = float64(slots) * float64(share.Weight) / total
			}
			if math.Abs(count[share.ID]-exact) >= 1 {
				t.Errorf("server %d of weight %d owns %g slots, want %.1f", share.ID, share.Weight, count[share.ID], exact)
			}
		}
	})
}

func TestEqualWeightsGiveTheTableOfModulo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares, weight := anyShares(t, 1), rapid.Uint16Range(1, 256).Draw(t, "weight")
		for i := range shares {
			shares[i].Weight *= weight
		}
		if !slices.Equal(Table(251, shares), modulo.Table(251, shares)) {
			t.Error("it differs")
		}
	})
}

func TestOrderOfSharesDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := anyShares(t, 30)
		if !slices.Equal(Table(251, shares), Table(251, rapid.Permutation(shares).Draw(t, "shuffled"))) {
			t.Error("another order gave another table")
		}
	})
}

func TestOwnersTakeTurns(t *testing.T) {
	have := Table(6, []model.Share{{ID: 9, Weight: 1}, {ID: 4, Weight: 3}, {ID: 7}, {ID: 5, Weight: 2}})
	if want := []uint16{4, 5, 9, 4, 5, 4}; !slices.Equal(have, want) {
		t.Errorf("have %v, want %v", have, want)
	}
}

package rounds

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

func anyShares(t *rapid.T, most int, heaviest uint16) []model.Share {
	ids := rapid.SliceOfNDistinct(rapid.Uint16Range(1, 32767), 1, most, rapid.ID[uint16]).Draw(t, "ids")
	shares := make([]model.Share, len(ids))
	for i, id := range ids {
		shares[i] = model.Share{ID: id, Weight: rapid.Uint16Range(1, heaviest).Draw(t, "weight")}
	}
	return shares
}

func TestRoundIsThatOfNginxForFiveOneOne(t *testing.T) {
	have := Weighted([]model.Share{{ID: 1, Weight: 5}, {ID: 2, Weight: 1}, {ID: 3, Weight: 1}})
	if want := []uint16{1, 1, 2, 1, 3, 1, 1}; !slices.Equal(have, want) {
		t.Errorf("have %v, want %v", have, want)
	}
}

func TestEqualGivesOneTurnToEveryServerWithWeight(t *testing.T) {
	have := Equal([]model.Share{{ID: 3, Weight: 200}, {ID: 1, Weight: 7}, {ID: 2}})
	if want := []uint16{1, 3}; !slices.Equal(have, want) {
		t.Errorf("have %v, want %v", have, want)
	}
}

func TestWeightsAreReducedToLowestTerms(t *testing.T) {
	if have := Weighted([]model.Share{{ID: 1, Weight: 100}, {ID: 2, Weight: 200}}); len(have) != 3 {
		t.Errorf("have %v", have)
	}
}

func TestNoServersGiveAnEmptyRound(t *testing.T) {
	if have := Weighted([]model.Share{{ID: 1}}); len(have) != 0 {
		t.Errorf("have %v", have)
	}
}

func TestTurnsAreExactWhenTheRoundFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := anyShares(t, 16, 255) // 16 * 255 < MaxTurns
		round := Weighted(shares)
		turns := make(map[uint16]int)
		for _, id := range round {
			turns[id]++
		}
		for _, share := range shares {
			if turns[share.ID]*int(shares[0].Weight) != turns[shares[0].ID]*int(share.Weight) {
				t.Errorf("%v: turns %v are not in proportion", shares, turns)
			}
		}
	})
}

// Smooth: within any prefix a server is never a whole cycle ahead of or behind its share.
func TestTurnsAreSpreadEvenly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := anyShares(t, 8, 20)
		total := 0
		for _, share := range shares {
			total += int(share.Weight)
		}
		turns := make(map[uint16]int)
		for i, id := range Weighted(shares) {
			turns[id]++
			for _, share := range shares {
				exact := float64(i+1) * float64(share.Weight) / float64(total)
				if off := math.Abs(float64(turns[share.ID]) - exact); off > float64(len(shares)) {
					t.Errorf("after %d turns server %d had %d of %.2f", i+1, share.ID, turns[share.ID], exact)
				}
			}
		}
	})
}

func TestLongRoundsAreScaledAndEverybodyKeepsATurn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := anyShares(t, 60, 256)
		round := Weighted(shares)
		if len(round) > MaxTurns {
			t.Errorf("%d turns", len(round))
		}
		for _, share := range shares {
			if !slices.Contains(round, share.ID) {
				t.Errorf("server %d of weight %d has no turn", share.ID, share.Weight)
			}
		}
	})
}

func TestAFullHouseGetsATurnEach(t *testing.T) {
	shares := make([]model.Share, MaxTurns)
	for i := range shares {
		shares[i] = model.Share{ID: uint16(i + 1), Weight: uint16(i%256 + 1)}
	}
	round := Weighted(shares)
	slices.Sort(round)
	if len(round) != MaxTurns || len(slices.Compact(round)) != MaxTurns {
		t.Errorf("%d turns", len(round))
	}
}

func TestOrderOfSharesDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := anyShares(t, 10, 30)
		if !slices.Equal(Weighted(shares), Weighted(rapid.Permutation(shares).Draw(t, "shuffled"))) {
			t.Error("another order gave another round")
		}
	})
}

package choice

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

// world is servers with prices and loads: some of the round more than once, everybody once.
type world struct {
	round, everybody []Turn
	loads            []int32
}

func anyWorld(t *rapid.T) world {
	var w world
	for server := range rapid.IntRange(1, 60).Draw(t, "servers") {
		turn := Turn{Server: uint32(server), Price: rapid.Uint16Range(1, 20).Draw(t, "price")}
		w.everybody = append(w.everybody, turn)
		for range rapid.IntRange(1, 3).Draw(t, "turns") {
			w.round = append(w.round, turn)
		}
		w.loads = append(w.loads, rapid.Int32Range(0, 9).Draw(t, "load"))
	}
	return w
}

func (w *world) cost(server uint32) int64 { return w.everybody[server].Cost(w.loads) }

func TestTwoChoicesTakeTheCheaperOfTheTwoDrawn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, random := anyWorld(t), rapid.Uint32().Draw(t, "random")
		chosen := TwoChoices(w.round, random, w.loads)
		a := w.round[int(float64(random%65536)/65536*float64(len(w.round)))].Server
		b := w.round[int(float64(random/65536)/65536*float64(len(w.round)))].Server
		if chosen != a && chosen != b || w.cost(chosen) > min(w.cost(a), w.cost(b)) || w.cost(a) == w.cost(b) && chosen != a {
			t.Errorf("%d of %d and %d, which cost %d and %d", chosen, a, b, w.cost(a), w.cost(b))
		}
	})
}

func TestTwoChoicesDrawFromTheWholeOfTheLongestRound(t *testing.T) {
	round := make([]Turn, MaxRound)
	for i := range round {
		round[i] = Turn{Server: uint32(i), Price: 1}
	}
	loads := make([]int32, MaxRound)
	for _, drawn := range []uint32{0, 1, 40_000, MaxRound - 1} {
		if have := TwoChoices(round, drawn<<16|drawn, loads); have != drawn {
			t.Errorf("%d instead of %d", have, drawn)
		}
	}
}

func TestLeastIsExactAmongSixteenServers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		place := Place{Turn: rapid.Uint32().Draw(t, "turn"), Look: rapid.Uint16().Draw(t, "look"), Last: rapid.Uint16().Draw(t, "last")}
		if len(w.everybody) > looks {
			t.Skip("more servers")
		}
		turn := w.round[place.Turn%uint32(len(w.round))]
		chosen := place.Least(w.round, w.everybody, w.loads)
		for server := range w.everybody {
			if w.cost(uint32(server)) < w.cost(chosen) {
				t.Fatalf("%d was chosen, which costs %d; %d costs %d", chosen, w.cost(chosen), server, w.cost(uint32(server)))
			}
		}
		if w.cost(turn.Server) == w.cost(chosen) && chosen != turn.Server {
			t.Errorf("%d was chosen though it was the turn of %d, which costs as much", chosen, turn.Server)
		}
	})
}

// Among more servers it looks at everybody in one rotation, and stays with the best that it saw.
func TestLeastFindsAnIdleServerInOneRotationAndRemembersIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.IntRange(looks+1, 100).Draw(t, "servers")
		var w world
		for server := range servers {
			w.everybody, w.loads = append(w.everybody, Turn{Server: uint32(server), Price: 1}), append(w.loads, 100)
		}
		idle := rapid.IntRange(0, servers-1).Draw(t, "idle")
		w.loads[idle] = 0
		w.round = slices.Concat(w.everybody[:idle], w.everybody[idle+1:]) // its turn does not come
		place, met := Place{Look: uint16(rapid.IntRange(0, servers).Draw(t, "look"))}, false
		for n := range servers {
			chosen := int(place.Least(w.round, w.everybody, w.loads))
			if met = met || chosen == idle; met && chosen != idle || !met && (n+1)*(looks-1) >= servers {
				t.Fatalf("connection %d went to %d, idle is %d", n, chosen, idle)
			}
		}
	})
}

func TestLeastOfEqualsTakesTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		clear(w.loads)
		var place Place
		for n := range 3 * len(w.round) {
			if chosen, want := place.Least(w.round, w.everybody, w.loads), w.round[n%len(w.round)].Server; chosen != want {
				t.Fatalf("connection %d went to %d, it was the turn of %d", n, chosen, want)
			}
		}
	})
}

func TestPricesAreInInverseProportionToTheWeights(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var shares []model.Share
		heaviest := rapid.Uint16Range(1, model.MaxWeight).Draw(rt, "heaviest")
		for i, weight := range rapid.SliceOfN(rapid.Uint16Range(1, heaviest), 1, 60).Draw(rt, "weights") {
			shares = append(shares, model.Share{ID: uint16(i + 1), Weight: weight})
		}
		price, first := Prices(shares), shares[0]
		for _, share := range shares {
			exact := float64(price[first.ID]) * float64(first.Weight) / float64(share.Weight)
			if got := float64(price[share.ID]); got < 1 || math.Abs(got-exact) > 0.004*exact { // half of the 256th part at either end
				rt.Fatalf("weight %d costs %d, weight %d %g and not %g", first.Weight, price[first.ID], share.Weight, got, exact)
			}
			if heaviest <= 8 && uint32(price[share.ID])*uint32(share.Weight) != uint32(price[first.ID])*uint32(first.Weight) {
				rt.Fatalf("the prices of small weights are not exact: %v of %v", price, shares)
			}
		}
	})
}

package choice

import (
	"math"
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
		turn := Turn{Server: uint32(server), Price: rapid.Uint16Range(1, 20).Draw(t, "price"), Group: uint8(server % Groups)}
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

// busy is a world that least follows: connections begin, and some end.
type busy struct {
	world
	least *LeastLoaded
}

func anyBusy(t *rapid.T) busy {
	w := anyWorld(t)
	return busy{w, NewLeastLoaded(w.everybody, w.loads)}
}

func (b *busy) change(server uint32, by int32) {
	b.loads[server] += by
	b.least.Report(b.everybody[server], b.cost(server))
}

func (b *busy) endSome(t *rapid.T) {
	for _, server := range rapid.SliceOfN(rapid.Uint32Range(0, uint32(len(b.everybody)-1)), 0, 3).Draw(t, "ends") {
		if b.loads[server] > 0 {
			b.change(server, -1)
		}
	}
}

func (b *busy) lowest() int64 {
	lowest := int64(math.MaxInt64)
	for server := range b.everybody {
		lowest = min(lowest, b.cost(uint32(server)))
	}
	return lowest
}

func TestLeastIsExactAmongSixteenServers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBusy(t)
		if len(b.everybody) > Groups {
			t.Skip("more servers")
		}
		for n := range 100 {
			turn := b.round[n%len(b.round)]
			chosen := b.least.Least(turn, b.loads)
			if b.cost(chosen) != b.lowest() {
				t.Fatalf("%d was chosen, which costs %d; the least is %d", chosen, b.cost(chosen), b.lowest())
			}
			if b.cost(turn.Server) == b.cost(chosen) && chosen != turn.Server {
				t.Fatalf("%d was chosen though it was the turn of %d, which costs as much", chosen, turn.Server)
			}
			b.change(chosen, 1)
			b.endSome(t)
		}
	})
}

// Among more servers it never takes one that costs more than whose turn it is, and one that has come to cost less than all others is taken next.
func TestLeastAmongManyTakesNoneAboveTheTurnAndOneThatFallsBelowAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBusy(t)
		for n := range 100 {
			turn := b.round[n%len(b.round)]
			chosen := b.least.Least(turn, b.loads)
			if b.cost(chosen) > b.cost(turn.Server) {
				t.Fatalf("%d was chosen, which costs %d; it was the turn of %d, which costs %d", chosen, b.cost(chosen), turn.Server, b.cost(turn.Server))
			}
			b.change(chosen, 1)
			ends := rapid.Uint32Range(0, uint32(len(b.everybody)-1)).Draw(t, "ends")
			if lowest := b.lowest(); b.loads[ends] > 0 {
				if b.change(ends, -1); b.cost(ends) < lowest && b.least.Least(turn, b.loads) != ends {
					t.Fatalf("%d costs less than all others, and is not chosen", ends)
				}
			}
		}
	})
}

func TestLeastOfEqualsTakesTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBusy(t)
		clear(b.loads)
		b.least = NewLeastLoaded(b.everybody, b.loads)
		for n := range 3 * len(b.round) {
			turn := b.round[n%len(b.round)]
			if chosen := b.least.Least(turn, b.loads); chosen != turn.Server {
				t.Fatalf("connection %d went to %d, it was the turn of %d", n, chosen, turn.Server)
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

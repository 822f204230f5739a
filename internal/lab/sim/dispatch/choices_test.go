package dispatch

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestFewestAlwaysTakesALeastLoadedServer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.IntRange(1, 20).Draw(t, "servers")
		fewest, loads := NewFewest(servers), make([]int32, servers)
		for _, event := range rapid.SliceOfN(rapid.IntRange(0, 2*servers), 1, 300).Draw(t, "events") {
			if event < servers {
				if loads[event] > 0 {
					fewest.Ended(uint32(event), loads[event])
					loads[event]--
				}
				continue
			}
			chosen := fewest.Choose(0, loads)
			if loads[chosen] != slices.Min(loads) {
				t.Fatalf("%d of %v", chosen, loads)
			}
			loads[chosen]++
		}
	})
}

// A follower is told of everything, crashes included: else it would choose others.
func TestFewestFollowsAWorld(t *testing.T) {
	lives := data.Distribution{Points: []data.Point{{Value: 0.1, UpTo: 0.5}, {Value: 3, UpTo: 1}}}
	w := flows.New(flows.Config{Seed: 2, Servers: 20, Rate: 500, Durations: lives, Chooser: checked{NewFewest(20), t}})
	w.Fill()
	for at := int64(1); at < 20; at++ {
		w.RunUntil(at * 1e9)
		w.Fail(uint32(at))
	}
	if stats := w.Stats(); stats.Ended < 5000 || stats.Cut == 0 {
		t.Errorf("%+v", stats)
	}
}

// checked is a policy that must choose a least loaded server.
type checked struct {
	*Fewest
	t *testing.T
}

func (c checked) Choose(flow uint64, loads []int32) uint32 {
	chosen := c.Fewest.Choose(flow, loads)
	if loads[chosen] != slices.Min(loads) {
		c.t.Fatalf("%d of %v", chosen, loads)
	}
	return chosen
}

// Connections that never end: in the end everybody has them by weight.
func TestPoliciesThatKnowLoadsShareByWeight(t *testing.T) {
	shares := []model.Share{{ID: 1, Weight: 1}, {ID: 2, Weight: 2}, {ID: 3, Weight: 0}, {ID: 4, Weight: 5}}
	round, everybody := Rounds(shares)
	if len(round) != 8 || len(everybody) != 3 {
		t.Fatalf("%v, %v", round, everybody)
	}
	const flows = 8000
	twoLoads, leastLoads := make([]int32, len(shares)), make([]int32, len(shares))
	two, least := TwoChoices{Round: round, Numbers: random.Keyed(1, "p2c")}, NewLeast(shares)
	for flow := range uint64(flows) {
		twoLoads[two.Choose(flow, twoLoads)]++
		leastLoads[least.Choose(flow, leastLoads)]++
	}
	for i, share := range shares {
		want := flows * int32(share.Weight) / 8
		if leastLoads[i] != want || twoLoads[i] < want-20 || twoLoads[i] > want+20 {
			t.Errorf("weight %d: least %d, p2c %d, want %d", share.Weight, leastLoads[i], twoLoads[i], want)
		}
	}
}

func TestChoosingForManyIsChoosingForEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Uint16Range(1, 9), 1, 20).Draw(t, "weights")
		policies := func() []flows.Oblivious {
			var shares []model.Share
			var round []uint32
			for s, weight := range weights {
				shares, round = append(shares, model.Share{ID: uint16(s + 1), Weight: weight}), append(round, uint32(s))
			}
			numbers := random.Keyed(2, "counters")
			return []flows.Oblivious{&Turns{Round: round}, &Turns{Round: round, Counters: 3, Numbers: numbers}, &Classes{Classes: awfd.NewClasses(shares), Numbers: random.Keyed(1, "choices")}}
		}
		many := make([]uint32, rapid.IntRange(1, 50).Draw(t, "flows"))
		first, one := rapid.Uint64().Draw(t, "first"), policies()
		for i, policy := range policies() {
			policy.ChooseAll(first, many)
			for n, server := range many {
				if want := one[i].Choose(first+uint64(n), nil); server != want {
					t.Fatalf("%T chose %d instead of %d", policy, server, want)
				}
			}
		}
	})
}

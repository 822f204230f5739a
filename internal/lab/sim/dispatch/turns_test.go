package dispatch

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

func TestEachCounterWalksTheWholeRound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers, counters := rapid.IntRange(1, 9).Draw(t, "servers"), rapid.IntRange(1, 9).Draw(t, "counters")
		turns := &Turns{Round: Everybody(servers), Counters: counters, Numbers: random.Keyed(rapid.Uint64().Draw(t, "seed"), "counters")}
		last := map[int]uint32{}
		for flow := range uint64(200) {
			counter := turns.counterOf(flow)
			server := turns.Choose(flow, nil)
			if before, known := last[counter]; known && server != (before+1)%uint32(servers) {
				t.Fatalf("a counter goes from server %d to server %d of %d", before, server, servers)
			}
			last[counter] = server
		}
		if len(turns.next) > counters {
			t.Fatalf("%d counters instead of %d", len(turns.next), counters)
		}
	})
}

// One counter is exactly even, a thousand are nearly as uneven as chance.
func TestTheMoreCountersTheLessEven(t *testing.T) {
	const seed, servers, flows = 1, 10, 1000
	spread := func(counters int) int {
		turns, loads := &Turns{Round: Everybody(servers), Counters: counters, Numbers: random.Keyed(seed, "counters")}, make([]int, servers)
		for flow := range uint64(flows) {
			loads[turns.Choose(flow, nil)]++
		}
		return slices.Max(loads) - slices.Min(loads)
	}
	if one, many := spread(1), spread(1000); one != 0 || many < 15 {
		t.Errorf("seed %d: connections differ by %d with one counter, by %d with a thousand", seed, one, many)
	}
}

func TestCountersThatStayKeepTheirPlaces(t *testing.T) {
	turns := &Turns{Round: Everybody(5), Counters: 4, Numbers: random.Keyed(1, "counters")}
	for flow := range uint64(100) {
		turns.Choose(flow, nil)
	}
	before := slices.Clone(turns.next)
	turns.SetCounters(2)
	if !slices.Equal(turns.next, before[:2]) {
		t.Errorf("%v became %v", before, turns.next)
	}
	turns.SetCounters(3)
	chosen := map[uint32]bool{}
	for flow := range uint64(100) {
		chosen[turns.Choose(flow, nil)] = true
	}
	if len(turns.next) != 3 || len(chosen) != 5 {
		t.Errorf("%d counters choose %d servers, want 3 and 5", len(turns.next), len(chosen))
	}
}

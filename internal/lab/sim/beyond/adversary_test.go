package beyond

import (
	"maps"
	"math/bits"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestWhoAimsAtAServerNeedsTheKeyOrEyes(t *testing.T) { holds(t, aimExperiment()) }

func TestIdleBotsTakeEntriesAndNoServers(t *testing.T) { holds(t, idleExperiment()) }

// Half of them are of the other key, and 28 of 128 ids are nobody's.
func TestGuessesTakeEntriesBecauseTheyAreValid(t *testing.T) {
	g := newGuesses(1, 1000, 0, second)
	var table *carried
	newTalks(1, 0, maglev.Table(model.DefaultSlots, everyServer(talkServers, nil)), func(t *talks) []hearer {
		table = newCarried(t, 4096, g)
		return []hearer{table}
	})
	table.until(second)
	taken := 0
	for _, e := range table.entries.all {
		if e.state == conntable.StateNew {
			taken++
		}
	}
	if g.sent != 1000 || taken != int(g.valid) || g.valid < 340 || g.valid > 440 {
		t.Errorf("%d of %d guesses are valid, of which some 390 should be, and %d took an entry", g.valid, g.sent, taken)
	}
}

// claimed returns a claim.
func claimed(t *testing.T, experiment sim.Experiment, id string) sim.Claim {
	t.Helper()
	i := slices.IndexFunc(experiment.Claims, func(c sim.Claim) bool { return c.ID == id })
	if i < 0 {
		t.Fatalf("%s claims nothing of %s", experiment.Name, id)
	}
	return experiment.Claims[i]
}

func TestLinuxsMapForgetsNewConnections(t *testing.T) {
	if os.Getenv("BALLAST_LONG") == "" {
		t.Skip("BALLAST_LONG is not set: 20000 connections for minutes at fourteen load balancers")
	}
	holds(t, synsExperiment(synsConnections))
}

// Linux's map is not as it is because of proportions, but of numbers: its claims hold for the full size only.
func TestAFloodOfSYNsTakesTheMemoryOfThoseThatRememberSYNs(t *testing.T) {
	const seed = 3
	small := synsExperiment(2000)
	outcome, err := sim.Once(t.Context(), small, seed)
	if err != nil {
		t.Fatal(err)
	}
	for _, claim := range small.Claims {
		if value := outcome.Values[claim.ID]; !strings.HasPrefix(claim.ID, "kernel-") && (value < claim.Low/1.2 || value > claim.High*1.2) {
			t.Errorf("seed %d: %s is %g %s, outside of %g to %g", seed, claim.ID, value, claim.Unit, claim.Low, claim.High)
		}
	}
	if mutant, claim := outcome.Values["unseen-at-syn-1"], claimed(t, small, "unseen-1"); mutant < 10*claim.High {
		t.Errorf("with entries at the SYN %g %% go unseen: the claim of at most %g %% would not notice", mutant, claim.High)
	}
	again, err := sim.Once(t.Context(), small, seed)
	if err != nil || !reflect.DeepEqual(again, outcome) {
		t.Errorf("seed %d: another outcome: %v", seed, err)
	}
}

func TestOurHashWithoutAKeyWouldFail(t *testing.T) {
	claim := claimed(t, aimExperiment(), "blind-keyed")
	mutant := aim{name: claim.ID, server: byHash(cookie.Key{})}
	_, err := sim.Once(t.Context(), sim.Experiment{Name: "x", Run: func(run *sim.Run) {
		load := mutant.play(run, 0, 1)
		if load < 2*claim.High {
			t.Errorf("load %g: the claim of at most %g would not notice", load, claim.High)
		}
	}}, 1)
	if err != nil {
		t.Fatal(err)
	}
}

// "Nothing broke" is measured: with another hash than the one that a cookie was made with, it names another server.
func TestConnectionsWhoseCookieIsReadByAnotherHashBreak(t *testing.T) {
	var ours *carried
	talks := newTalks(1, 500, maglev.Table(model.DefaultSlots, everyServer(talkServers, nil)), func(t *talks) []hearer {
		ours = newCarried(t, 1024, newFlood(1, 0, 0, 0))
		return []hearer{ours}
	})
	talks.judgeTo = second
	for n := range talks.list {
		if n%2 == 0 {
			talks.list[n].marked ^= 1 << 3
		}
	}
	talks.runUntil(second)
	for n := range uint32(500) {
		if wrong := ours.fate(n)&wentWrong != 0; talks.list[n].begun == 0 && wrong != (n%2 == 0) {
			t.Fatalf("connection %d: wrong server %v", n, wrong)
		}
	}
}

// dumbEntries is a connection table without words: a map by partition and index.
type dumbEntries struct {
	partitions uint32
	used       map[[2]uint32]entry
}

func (d *dumbEntries) packet(flow uint64, index uint16, now int64, last bool) uint16 {
	partition := conntable.PartitionOf(flow, d.partitions)
	at := [2]uint32{partition, uint32(index)}
	if e, ok := d.used[at]; ok && index != 0 && e.flow == flow {
		if e.state == conntable.StateNew {
			e.state = conntable.StateOpen
		}
		if e.last = now; last {
			e.state = conntable.StateFinished
		}
		d.used[at] = e
		return index
	}
	for _, ended := range []bool{false, true} {
		for i := uint32(1); i < 64 && !last; i++ {
			at = [2]uint32{partition, i}
			if e, ok := d.used[at]; !ok && !ended || ok && ended && e.state == conntable.StateFinished {
				d.used[at] = entry{flow: flow, last: now, state: conntable.StateNew}
				return uint16(i)
			}
		}
	}
	return 0
}

func TestEntriesAreThoseOfATableWithoutWords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		clever := newEntries(2 * conntable.BlockEntries)
		dumb := &dumbEntries{partitions: clever.partitions, used: map[[2]uint32]entry{}}
		reported, now := map[uint64]uint16{}, int64(0)
		for range rapid.IntRange(1, 600).Draw(t, "packets") {
			now += rapid.Int64Range(0, second/4).Draw(t, "gap")
			for clever.swept <= now {
				at, block := clever.swept, clever.block
				clever.sweep()
				maps.DeleteFunc(dumb.used, func(place [2]uint32, e entry) bool {
					return place[0] == block && at-e.last >= map[conntable.State]int64{conntable.StateNew: 10, conntable.StateOpen: 300, conntable.StateFinished: 5}[e.state]*second
				})
			}
			flow := rapid.Uint64Range(0, 300).Draw(t, "flow") * 0x9e3779b97f4a7c15
			last := rapid.IntRange(0, 9).Draw(t, "last") == 0
			have, want := clever.packet(flow, reported[flow], now, last), dumb.packet(flow, reported[flow], now, last)
			if have != want {
				t.Fatalf("at %d ns, flow %x with %d: index %d, want %d", now, flow, reported[flow], have, want)
			}
			if have != 0 {
				reported[flow] = have
			}
		}
		free := 0
		for _, word := range clever.words {
			free += bits.OnesCount64(word.Free)
		}
		if free+len(dumb.used) != int(clever.partitions)*63 {
			t.Fatalf("%d free and %d used of %d", free, len(dumb.used), clever.partitions*63)
		}
	})
}

func TestAnExactLRUGivesAwayWhatWasSilentLongest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		places := rapid.IntRange(1, 20).Draw(t, "places")
		lru, order := newExactLRU(places), []uint32{} // the latest last
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			if len(order) == 0 || rapid.Bool().Draw(t, "take") {
				place := lru.take()
				if at := slices.Index(order, place); at > 0 || at < 0 && len(order) == places {
					t.Fatalf("%d of %v", place, order)
				}
				order = append(slices.DeleteFunc(order, func(p uint32) bool { return p == place }), place)
				continue
			}
			place := rapid.SampledFrom(order).Draw(t, "touch")
			lru.touch(place)
			order = append(slices.DeleteFunc(order, func(p uint32) bool { return p == place }), place)
		}
	})
}

// Whatever is read, every place is in one list, and nobody has two places.
func TestLinuxsMapLosesNoPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		places := rapid.IntRange(kernelBatch, 5*kernelBatch).Draw(t, "places")
		lru := newKernelLRU(places)
		reads := random.New(rapid.Uint64().Draw(t, "seed"), "reads")
		often := rapid.IntRange(0, 20).Draw(t, "reads for each that is taken")
		for range rapid.IntRange(0, 5*places).Draw(t, "taken") {
			lru.take()
			for range often {
				lru.touch(uint32(reads.Intn(places)))
			}
		}
		seen := slices.Concat(lru.fresh, lru.ready, lru.pending)
		for i, active := range []bool{false, true} {
			count := len(seen)
			for place := lru.chains[lru.head(active)].next; place != lru.head(active); place = lru.chains[place].next {
				seen = append(seen, place)
			}
			if len(seen)-count != lru.count[i] {
				t.Fatalf("%d places on the list of %d", len(seen)-count, lru.count[i])
			}
		}
		slices.Sort(seen)
		if len(slices.Compact(seen)) != places || len(seen) != places {
			t.Fatalf("%d places of %d", len(seen), places)
		}
	})
}

// A flood of entries that nobody reads passes those by that are read; only the order of packets keeps them otherwise.
func TestLinuxsMapKeepsWhatIsRead(t *testing.T) {
	const places, kept = 4 * kernelBatch, 100
	lru, owners := newKernelLRU(places), map[uint32]int{}
	for n := range kept {
		owners[lru.take()] = n + 1
	}
	for range 20 * places {
		for place := range owners {
			lru.touch(place)
		}
		if place := lru.take(); owners[place] != 0 {
			t.Fatalf("the place of %d was given away", owners[place])
		}
	}
}

package estimate

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// fleet is what one load balancer with dispatch least believes of servers, and what is true.
type fleet struct {
	servers []Server
	open    []int // in truth
	random  *rand.Rand
}

func newFleet(seed uint64, servers int) *fleet {
	f := &fleet{servers: make([]Server, servers), open: make([]int, servers), random: rand.New(rand.NewPCG(seed, 1))}
	for i := range f.servers {
		f.servers[i] = Server{Weight: 1, TakesNew: true, Counted: true}
	}
	return f
}

// begin dispatches connections; refusing servers, -1: none, end theirs without a word. It returns how many each got.
func (f *fleet) begin(connections, refusing int) (got []int) {
	got = make([]int, len(f.servers))
	for range connections {
		least := 0
		for i := range f.servers {
			if f.servers[i].Open < f.servers[least].Open {
				least = i
			}
		}
		got[least]++
		f.servers[least].Open++
		if least != refusing {
			f.open[least]++
		}
	}
	return got
}

// end ends a share of the connections that are open, and the load balancer sees it.
func (f *fleet) end(share float64) {
	for i := range f.open {
		ended := int(float64(f.open[i])*share + f.random.Float64())
		f.open[i] -= ended
		f.servers[i].Open = max(0, f.servers[i].Open-int32(ended))
	}
}

// die ends a server's connections, and the load balancer sees nothing of it.
func (f *fleet) die(i int) { f.open[i] = 0 }

func (f *fleet) correct(onlyDown bool, begun uint64) {
	for i := range f.servers {
		f.servers[i].Count = float64(f.open[i])
	}
	for i, by := range Correct(f.servers, onlyDown, begun, f.random.Float64) {
		f.servers[i].Open += by
	}
}

func TestAServerThatDiedUnseenGetsItsShareAgainAndNotEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers, perRound := rapid.IntRange(3, 12).Draw(t, "servers"), rapid.IntRange(60, 2000).Draw(t, "connections")
		f := newFleet(rapid.Uint64().Draw(t, "seed"), servers)
		ends, onlyDown := rapid.Float64Range(0.2, 0.9).Draw(t, "ends"), rapid.Bool().Draw(t, "only down")
		round := func(refusing int) []int {
			got := f.begin(perRound, refusing)
			f.end(ends)
			f.correct(onlyDown, uint64(perRound))
			return got
		}
		for range 20 {
			round(-1)
		}
		f.die(0)
		f.servers[0].Open += int32(rapid.IntRange(0, 5000).Draw(t, "refused"))
		fair := float64(perRound) / float64(servers)
		for n := range 40 {
			got := float64(round(-1)[0])
			if most := 2.5*fair + 10; got > most {
				t.Fatalf("round %d: it got %v of %d connections, more than %.0f", n, got, perRound, most)
			}
			if n >= 30 && got < 0.5*fair-5 {
				t.Fatalf("round %d: it got %v of %d connections, its fair share is %.0f", n, got, perRound, fair)
			}
		}
	})
}

// replace ends connections one by one, drawn from all that are open, each followed by a new one. It returns how many each server got.
func (f *fleet) replace(connections int) (got []int) {
	got = make([]int, len(f.servers))
	for range connections {
		total := 0
		for _, open := range f.open {
			total += open
		}
		for i, at := 0, f.random.IntN(total); ; i++ {
			if at < f.open[i] {
				f.open[i]--
				f.servers[i].Open = max(0, f.servers[i].Open-1)
				break
			}
			at -= f.open[i]
		}
		for i, n := range f.begin(1, -1) {
			got[i] += n
		}
	}
	return got
}

// Clients that replace each connection when it ends would never come to it by estimates alone.
//
// Promise: With `p2c` and `least`, an application that restarts begins with the mean of the others and gets at
// most about twice its share until it has caught up; agents' counts correct the rest.
// Also held by TestAServerThatDiedUnseenGetsItsShareAgainAndNotEverything,
// TestLoadBalancersAreToldTheNewestCountsWithTheirOwnShare and
// TestARestartedApplicationGetsItsShareOfNewConnections.
func TestAServerThatBeganWithTheMeanGetsItsShareAmongConnectionsThatAreReplaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers, each := rapid.IntRange(3, 12).Draw(t, "servers"), rapid.IntRange(4, 200).Draw(t, "open")
		f := newFleet(rapid.Uint64().Draw(t, "seed"), servers)
		f.begin(servers*each, -1)
		f.die(0)
		f.begin(each, 0)
		f.servers[0].TakesNew = true
		mean, _ := Mean(f.servers, 0)
		f.servers[0].Open = int32(mean)
		given := make([]int32, servers)
		given[0] = f.servers[0].Open
		perRound := servers * each / rapid.IntRange(1, 4).Draw(t, "rounds a lifetime")
		fair, last := float64(perRound)/float64(servers), 0.
		const rounds = 60
		for n := range rounds {
			got := float64(f.replace(perRound)[0])
			if most := 2.5*fair + 10; got > most {
				t.Fatalf("round %d: it got %v of %d connections, more than %.0f", n, got, perRound, most)
			}
			if n >= rounds/2 {
				last += got / (rounds / 2)
			}
			for i, by := range Release(f.servers, given, uint64(perRound), f.random.Float64) {
				f.servers[i].Open += by
				given[i] = max(0, given[i]+by)
			}
		}
		if given[0] != 0 || last < 0.7*fair-1 {
			t.Fatalf("it got %.1f a round, its fair share is %.1f; %d were not released", last, fair, given[0])
		}
	})
}

func TestACountThatNothingDisturbsIsTakenOverSoon(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	servers := []Server{{Open: 1, Weight: 1, TakesNew: true, Counted: true}, {Weight: 1, TakesNew: true, Counted: true}}
	for n := 0; servers[0].Open > 0; n++ {
		if n == 16 { // as often as unchanged counts are told at the short period
			t.Fatal("a connection that nobody counts is still in the estimate")
		}
		servers[0].Open += Correct(servers, false, 0, random.Float64)[0]
	}
}

func TestEstimatesThatAreRightStayRight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFleet(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 8).Draw(t, "servers"))
		f.begin(rapid.IntRange(0, 1000).Draw(t, "connections"), -1)
		before := slices.Clone(f.servers)
		for range 20 {
			f.correct(rapid.Bool().Draw(t, "only down"), 0)
		}
		for i := range before {
			if f.servers[i].Open != before[i].Open {
				t.Fatalf("server %d: %d, was %d", i, f.servers[i].Open, before[i].Open)
			}
		}
	})
}

func TestAloneEstimatesComeToWhatIsCounted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFleet(rapid.Uint64().Draw(t, "seed"), 1)
		f.open[0] = rapid.IntRange(0, 5000).Draw(t, "open")
		f.servers[0].Open = int32(rapid.IntRange(0, 5000).Draw(t, "estimate"))
		for range 120 {
			f.correct(false, 0)
		}
		if off := int(f.servers[0].Open) - f.open[0]; off < -1 || off > 1 {
			t.Fatalf("%d, want %d", f.servers[0].Open, f.open[0])
		}
	})
}

func TestABoundRaisesNoEstimate(t *testing.T) {
	servers := []Server{{Open: 10, Weight: 1, TakesNew: true, Counted: true, Count: 500}, {Open: 10, Weight: 1, TakesNew: true}}
	if by := Correct(servers, true, 100, func() float64 { return 0.99 }); by[0] != 0 || by[1] != 0 {
		t.Errorf("it adds %v", by)
	}
}

func TestServersWithoutACountKeepTheirEstimate(t *testing.T) {
	servers := []Server{{Open: 4000, Weight: 1, TakesNew: true}, {Open: 10, Weight: 1, TakesNew: true, Counted: true, Count: 10}}
	if by := Correct(servers, false, 100, func() float64 { return 0.99 }); by[0] != 0 || by[1] != 0 {
		t.Errorf("it adds %v", by)
	}
}

func TestTheMeanGoesByWeightAndByThoseThatTakeNewConnections(t *testing.T) {
	servers := []Server{{Open: 900, Weight: 2}, {Open: 30, Weight: 3, TakesNew: true}, {Open: 10, Weight: 1, TakesNew: true}, {Open: 5000, Weight: 1}}
	if mean, ok := Mean(servers, 0); !ok || mean != 20 {
		t.Errorf("%v, %t: want 20", mean, ok)
	}
	if _, ok := Mean(servers[3:], 0); ok {
		t.Error("there are no others")
	}
}

func TestEstimatesDecayWithinMinutesAndNeverBelowZero(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, begin := range []int32{1, 20, 100_000} {
		open := begin
		for range 120 {
			open += Decayed(open, time.Second, random.Float64())
		}
		if float64(open) > 0.45*float64(begin)+1 {
			t.Errorf("%d are %d after two minutes", begin, open)
		}
		for range 1800 {
			open += Decayed(open, time.Second, random.Float64())
		}
		if open != 0 {
			t.Errorf("%d are %d after half an hour", begin, open)
		}
	}
	if by := Decayed(5, time.Hour, 0.99); by != -5 {
		t.Errorf("after an hour: %d", by)
	}
}

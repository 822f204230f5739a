package flows

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// exponentialLives are lives with a mean of one second.
func exponentialLives() data.Distribution {
	d := data.Distribution{Smooth: true}
	for i := range 400 {
		p := float64(i) / 400
		d.Points = append(d.Points, data.Point{Value: -math.Log(1 - p), UpTo: p})
	}
	d.Points = append(d.Points, data.Point{Value: 8, UpTo: 1})
	return d.WithMean(1)
}

// ownEach is a table of as many cells for each server.
func ownEach(servers, cells int) []uint32 {
	owners := make([]uint32, servers*cells)
	for i := range owners {
		owners[i] = uint32(i % servers)
	}
	return owners
}

// turns is round robin.
type turns struct{ next, servers uint32 }

func (t *turns) Choose(uint64, []int32) uint32 {
	t.next = (t.next + 1) % t.servers
	return t.next
}

// atOnce is round robin that may be asked for many.
type atOnce struct{ turns }

func (t *atOnce) ChooseAll(_ uint64, servers []uint32) {
	for i := range servers {
		servers[i] = t.Choose(0, nil)
	}
}

func TestFillIsTheEquilibrium(t *testing.T) {
	const rate, seconds = 20_000, 20
	w := New(Config{Seed: 3, Servers: 10, Rate: rate, Durations: exponentialLives(), Chooser: &turns{servers: 10}})
	w.Fill()
	for second := range seconds {
		if live := float64(w.Live()); math.Abs(live-rate) > 5*math.Sqrt(rate) {
			t.Errorf("after %d s: %g connections instead of %d", second, live, rate)
		}
		w.RunUntil(int64(second+1) * 1e9)
	}
	if stats := w.Stats(); math.Abs(float64(stats.Arrived)-rate*(seconds+1)) > 5*math.Sqrt(rate*seconds) {
		t.Errorf("%d arrived", stats.Arrived)
	}
}

// Arrivals are Poisson and servers are infinite: the loads of N servers under a perfect hash are Poisson with the mean of their share.
func TestLoadsUnderAPerfectHashArePoisson(t *testing.T) {
	const servers, mean = 1000, 50
	w := New(Config{Seed: 4, Servers: servers, Rate: servers * mean, Durations: exponentialLives(), Table: &Table{Owners: ownEach(servers, 1)}})
	w.Fill()
	w.RunUntil(3e9)
	variance := 0.0
	for _, load := range w.Loads() {
		variance += (float64(load) - mean) * (float64(load) - mean) / servers
	}
	if math.Abs(variance-mean) > 5*mean*math.Sqrt(2.0/servers) {
		t.Errorf("variance %g instead of %d", variance, mean)
	}
}

// The oracle of evaluation.md: a bucket moves when its server leaves, so that its moves are Poisson. Plain hash breaks with the first move
// in a life, Beamer's daisy chain with the second.
func TestBrokenConnectionsAreThoseOfTheFormula(t *testing.T) {
	const servers, rate, perSecond, seconds = 50, 20_000, 20.0, 40
	lives := data.Distribution{Points: []data.Point{{Value: 0.1, UpTo: 0.3}, {Value: 2, UpTo: 1}}}
	const cells = 4000
	w := New(Config{Seed: 5, Servers: servers, Rate: rate, Durations: lives, Table: &Table{Owners: ownEach(servers, cells/servers), Depth: 2}})
	updates := random.New(5, "updates")
	w.Fill()
	next := uint32(servers)
	for at := 0.0; at < seconds; at += updates.Exp(1 / perSecond / cells * servers) { // one bucket at a time: less noise
		if w.RunUntil(int64(at * 1e9)); at < 2 {
			w.Reset() // the longest life has not passed yet
		}
		w.AddServer()
		w.Place(updates.Intn(cells), next) // a server that never was
		next++
	}
	stats := w.Stats()
	if stats.Broken != stats.BrokenAt(2) {
		t.Errorf("%+v", stats)
	}
	for depth, want := range map[int]func(x float64) float64{
		1: func(x float64) float64 { return 1 - math.Exp(-x) },
		2: func(x float64) float64 { return 1 - math.Exp(-x)*(1+x) },
		3: func(x float64) float64 { return 1 - math.Exp(-x)*(1+x+x*x/2) },
	} {
		expected := 0.3*want(0.1*perSecond/servers) + 0.7*want(2*perSecond/servers)
		if have := float64(stats.BrokenAt(depth)) / float64(stats.Ended); math.Abs(have-expected) > 0.04*expected {
			t.Errorf("depth %d: %g instead of %g", depth, have, expected)
		}
	}
}

func TestCookiesSurviveEverythingButFailures(t *testing.T) {
	const servers = 10
	w := New(Config{Seed: 6, Servers: servers, Rate: 10_000, Durations: exponentialLives(), Chooser: &turns{servers: servers}})
	w.Fill()
	w.RunUntil(1e9)
	if stats := w.Stats(); stats.Broken != 0 || stats.Ended == 0 {
		t.Errorf("%+v", stats)
	}
	before := w.Load(3)
	if cut := w.Fail(3); cut != int(before) || w.Load(3) != 0 {
		t.Errorf("cut %d of %d, %d are left", cut, before, w.Load(3))
	}
	w.SetRate(0)
	w.RunUntil(100e9)
	if stats := w.Stats(); stats.Broken != int64(before) || stats.Ended != stats.Arrived || w.Live() != 0 || slices.Max(w.Loads()) != 0 {
		t.Errorf("%+v, %d live", stats, w.Live())
	}
}

func TestTheSameConnectionsComeWhateverThePolicy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		owners := ownEach(5, 2)
		base := Config{Seed: seed, Servers: 5, Rate: 1000, Durations: exponentialLives()}
		table, exact, cookie := base, base, base
		table.Table, exact.Table, cookie.Chooser = &Table{Owners: owners}, &Table{Owners: owners, Depth: 3}, &turns{servers: 5}
		exact.Imbalance = true
		var have [3]Stats
		for i, c := range []Config{table, exact, cookie} {
			w := New(c)
			w.Fill()
			w.RunUntil(1e9)
			w.SetRate(0)
			w.RunUntil(2e9)
			w.SetRate(3000)
			w.RunUntil(3e9)
			have[i] = w.Stats()
			have[i].Imbalance, have[i].Depths, have[i].Broken = 0, [MaxDepth + 2]int64{}, 0
		}
		if have[0] != have[1] || have[1] != have[2] {
			t.Errorf("%+v", have)
		}
	})
}

func TestImbalanceIsTheTimeAverageOfTheSpread(t *testing.T) {
	w := New(Config{Seed: 7, Servers: 20, Rate: 400, Durations: exponentialLives(), Imbalance: true, Table: &Table{Owners: ownEach(20, 3)}})
	w.Fill()
	w.RunUntil(1e9)
	w.Reset()
	sum, samples := 0.0, 0
	for at := int64(1e9); at < 21e9; at += 1e6 {
		w.RunUntil(at)
		sum += w.Spread()
		samples++
		if at == 11e9 {
			w.SetActive(4, false)
			w.Fail(5)
		}
	}
	if have, want := w.Stats().Imbalance, sum/float64(samples); math.Abs(have-want) > 0.005*want {
		t.Errorf("have %g, want %g", have, want)
	}
}

func TestAskingForManyAtOnceMakesNoDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const servers = 5
		base := Config{Seed: rapid.Uint64().Draw(t, "seed"), Servers: servers, Rate: 2000, Durations: exponentialLives()}
		one, many := base, base
		one.Chooser, many.Chooser = &turns{servers: servers}, &atOnce{turns{servers: servers}}
		a, b := New(one), New(many)
		a.Fill()
		b.Fill()
		for now := int64(0); now < 3e8; {
			now += rapid.Int64Range(1, 1e8).Draw(t, "step")
			a.RunUntil(now)
			b.RunUntil(now)
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				server := rapid.Uint32Range(0, servers-1).Draw(t, "fails")
				if x, y := a.Fail(server), b.Fail(server); x != y {
					t.Fatalf("%d instead of %d were cut", y, x)
				}
			case 1:
				rate := rapid.Float64Range(0, 4000).Draw(t, "rate")
				a.SetRate(rate)
				b.SetRate(rate)
			case 2:
				if !slices.Equal(a.Loads(), b.Loads()) {
					t.Fatalf("%d instead of %d", b.Loads(), a.Loads())
				}
			}
			if a.Stats() != b.Stats() || a.Live() != b.Live() {
				t.Fatalf("%+v, %d live, instead of %+v, %d", b.Stats(), b.Live(), a.Stats(), a.Live())
			}
		}
	})
}

// watcher writes down the loads that it is shown.
type watcher struct {
	turns
	seen [][]int32
}

func (w *watcher) Choose(flow uint64, loads []int32) uint32 {
	w.seen = append(w.seen, slices.Clone(loads))
	return w.turns.Choose(flow, loads)
}

func TestEveryArrivalSeesWhatEndedBeforeIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const servers, until = 3, int64(3e7)
		seed := rapid.Uint64().Draw(t, "seed")
		rate := rapid.SampledFrom([]float64{50, 1000, 10_000}).Draw(t, "rate")
		// Nanoseconds to a second: some end before the next one begins, or when it does.
		lives := data.Distribution{Points: []data.Point{{Value: 1e-9, UpTo: 0.1}, {Value: 1e-4, UpTo: 0.4}, {Value: 3e-3, UpTo: 0.8}, {Value: 1, UpTo: 1}}}
		chooser := &watcher{turns: turns{servers: servers}}
		w := New(Config{Seed: seed, Servers: servers, Rate: rate, Durations: lives, Chooser: chooser})
		for now := int64(0); now < until; w.RunUntil(now) {
			now = min(until, now+rapid.Int64Range(1, until).Draw(t, "step"))
		}
		gaps, lifeOf, sampler := random.New(seed, "arrivals"), random.Keyed(seed, "durations"), random.NewSampler(lives.Scaled(second))
		dumb := turns{servers: servers}
		var ends []int64
		var chosen []uint32
		flow := uint64(0)
		for next := gaps.Exp(1) / (rate / second); next < float64(until); next += gaps.Exp(second / rate) {
			want := make([]int32, servers)
			for i, end := range ends {
				if end >= int64(next) {
					want[chosen[i]]++
				}
			}
			if !slices.Equal(chooser.seen[flow], want) {
				t.Fatalf("connection %d: loads %d instead of %d", flow, chooser.seen[flow], want)
			}
			ends = append(ends, int64(next)+int64(sampler.At(lifeOf.Float64At(flow))))
			chosen = append(chosen, dumb.Choose(flow, nil))
			flow++
		}
		if int(flow) != len(chooser.seen) {
			t.Errorf("%d arrivals instead of %d", len(chooser.seen), flow)
		}
	})
}

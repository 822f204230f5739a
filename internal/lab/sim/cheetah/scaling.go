package cheetah

import (
	"math"

	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/algo/modulo"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

// Figure 9: 24 servers, 7 more as the load rises, 8 less as it falls (section V-C).
const (
	scalingFirst   = 24
	scalingAdded   = 7
	scalingDrained = 8
	scalingAll     = scalingFirst + scalingAdded
	scalingSlots   = 4093 // of tables by modulo and maglev; a prime
	scalingPeriod  = 40   // s
	lowestRate     = 1500.0
	highestRate    = 2500.0
	rateStep       = second / 10
	scalingTimes   = 8 // in a run, with others drained: what breaks depends on whom
)

func brokenByScaling() sim.Experiment {
	const notKnown = "not known: neither counting breaks when clients give up, 15 or 30 s later, nor shorter connections give the paper's value"
	return sim.Experiment{
		Name: "cheetah-9", Source: "Cheetah, figure 9",
		Title: "broken requests while 24 servers become 31 and then 23",
		Method: "From 1500 to 2500 requests/s and back in 40 s (sinusoidal, Poisson, open loop). Seven servers are added while the rate rises, eight drawn at random " +
			"are drained while it falls. Web-server durations. Hash: slot i belongs to server i modulo their number. Consistent: Maglev. Beamer: 3100 buckets and " +
			"one previous owner. Cookies: round robin by one counter; how many there are changes nothing that breaks.",
		Claims: []sim.Claim{
			{ID: "hash", What: "broken by hash", Unit: "%", Low: 15, High: 25},
			{ID: "consistent", What: "broken by consistent hashing", Unit: "%", Low: 1, High: 3},
			{ID: "beamer", What: "broken by Beamer", Unit: "%", Low: 0.05, High: 0.3},
			{ID: "cookie", What: "broken with cookies", Unit: "%", Paper: "0", Low: 0, High: 0},
			{ID: "hash-by-consistent", What: "hash to consistent hashing", Unit: "x", Low: 1.5, High: math.Inf(1)},
			{ID: "consistent-by-beamer", What: "consistent hashing to Beamer", Unit: "x", Low: 8, High: 20},
			{ID: "peak-hash", What: "broken by hash in the worst second", Unit: "%", Paper: "up to 11 %", Low: 25, High: 45, Known: true, Note: notKnown},
			{ID: "peak-consistent", What: "broken by consistent hashing in the worst second", Unit: "%", Paper: "up to 3 %", Low: 4, High: 6, Known: true, Note: notKnown},
			{ID: "peak-beamer", What: "broken by Beamer in the worst second", Unit: "%", Paper: "up to 0.5 %", Low: 0.3, High: 0.7},
		},
		Figures: []sim.Figure{{Title: "24 servers, 7 more, 8 less", X: "time, s", Y: "broken of completed requests, %"}},
		Run:     runScaling,
	}
}

// change is a server that comes, or is drained.
type change struct {
	at     int64 // ns
	server uint32
	comes  bool
}

func scalingChanges(seed uint64) (changes []change) {
	const half = scalingPeriod * second / 2
	for i := range int64(scalingAdded) {
		changes = append(changes, change{at: (i + 1) * half / (scalingAdded + 1), server: scalingFirst + uint32(i), comes: true})
	}
	drained, choice := dispatch.Everybody(scalingAll), random.New(seed, "drained")
	choice.Shuffle(len(drained), func(i, j int) { drained[i], drained[j] = drained[j], drained[i] })
	for i := range int64(scalingDrained) {
		changes = append(changes, change{at: half + (i+1)*half/(scalingDrained+1), server: drained[i]})
	}
	return changes
}

// scalingRate is the requests per second at a time.
func scalingRate(ns int64) float64 {
	return (lowestRate+highestRate)/2 - (highestRate-lowestRate)/2*math.Cos(2*math.Pi*float64(ns)/float64(scalingPeriod*second))
}

// steering is a way to find servers that figure 9 compares.
type steering struct {
	id, series string
	table      *flows.Table
	chooser    flows.Chooser
	apply      func(w *flows.World, c change, present []uint32)
}

// byTable places all flows anew by a table of the servers that are present.
func byTable(id, series string, fill func(slots uint32, shares []model.Share) []uint16) steering {
	owners := func(present []uint32) []uint32 { return dispatch.Servers(fill(scalingSlots, dispatch.Alike(present))) }
	return steering{id: id, series: series, table: &flows.Table{Owners: owners(dispatch.Everybody(scalingFirst))},
		apply: func(w *flows.World, _ change, present []uint32) { w.PlaceAll(owners(present)) }}
}

func byBeamer() steering {
	stable := newStable(scalingFirst, scalingAll, scalingAll*bucketsPerServer, nil)
	return steering{id: "beamer", series: "Beamer", table: &flows.Table{Owners: stable.Owners(), Depth: 2},
		apply: func(w *flows.World, c change, _ []uint32) {
			if c.comes {
				place(w, stable.Return(c.server))
			} else {
				place(w, stable.Remove(c.server))
			}
		}}
}

func byCookie() steering {
	turns := &dispatch.Turns{Round: dispatch.Everybody(scalingFirst)}
	return steering{id: "cookie", series: "cookies", chooser: turns, apply: func(_ *flows.World, _ change, present []uint32) { turns.Round = present }}
}

func steerings() []steering {
	return []steering{byTable("hash", "hash", modulo.Table), byTable("consistent", "consistent hashing", maglev.Table), byBeamer(), byCookie()}
}

func runScaling(run *sim.Run) {
	progress := meter{run: run}
	for range scalingTimes * len(steerings()) {
		progress.expect((lowestRate+highestRate)/2, scalingPeriod*second)
	}
	totals := map[string]*tally{}
	for draw := range uint64(scalingTimes) {
		for _, s := range steerings() {
			if totals[s.id] == nil {
				totals[s.id] = &tally{}
			}
			totals[s.id].play(&progress, run.Seed*scalingTimes+draw, s)
		}
	}
	for _, s := range steerings() {
		total := totals[s.id]
		run.Share(s.id, total.allBroken, total.allEnded)
		for i := range scalingPeriod {
			run.Point(s.series, float64(i+1), total.percentIn(i))
		}
		if s.id != "cookie" {
			run.Value("peak-"+s.id, total.peak())
		}
	}
	broken := func(id string) int64 { return totals[id].allBroken }
	run.Value("hash-by-consistent", ratio(broken("hash"), broken("consistent")))
	run.Value("consistent-by-beamer", ratio(broken("consistent"), broken("beamer")))
}

func ratio(a, b int64) float64 { return float64(a) / float64(max(b, 1)) }

// tally is what ended in each second, over all draws, and in all.
type tally struct {
	broken, ended       [scalingPeriod]int64
	allBroken, allEnded int64
}

// percentIn is the share of what ended in a second that was broken.
func (t *tally) percentIn(i int) float64 { return percent(t.broken[i], t.ended[i]) }

func (t *tally) peak() (highest float64) {
	for i := range scalingPeriod {
		highest = max(highest, t.percentIn(i))
	}
	return highest
}

// play plays the 40 s once more.
func (t *tally) play(progress *meter, seed uint64, s steering) {
	w := flows.New(flows.Config{Seed: seed, Servers: scalingAll, Durations: lives(), Rate: lowestRate, Table: s.table, Chooser: s.chooser})
	changes, present := scalingChanges(seed), dispatch.Everybody(scalingFirst)
	for now := int64(0); now < scalingPeriod*second; {
		w.SetRate(scalingRate(now + rateStep/2))
		now += rateStep
		for ; len(changes) > 0 && changes[0].at <= now; changes = changes[1:] {
			progress.runUntil(w, changes[0].at)
			present = changes[0].applied(present)
			s.apply(w, changes[0], present)
		}
		progress.runUntil(w, now)
		if now%second == 0 {
			t.count(int(now/second)-1, w.Stats())
			w.Reset()
		}
	}
}

// count adds what ended in a second.
func (t *tally) count(i int, stats flows.Stats) {
	t.broken[i] += stats.Broken
	t.ended[i] += stats.Ended
	t.allBroken += stats.Broken
	t.allEnded += stats.Ended
}

// applied returns who is there after a change, in a slice of its own.
func (c change) applied(present []uint32) []uint32 {
	after := make([]uint32, 0, len(present)+1)
	for _, server := range present {
		if server != c.server {
			after = append(after, server)
		}
	}
	if c.comes {
		after = append(after, c.server)
	}
	return after
}

package cheetah

import (
	"math"

	"github.com/ballast-lb/ballast/internal/algo/buckets"
	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/event"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// Figure 2a. SilkRoad's clusters have 1.5 to 80 updates a minute (section II-A).
const (
	updatesWarmUp   = longestLife
	updatesMeasured = 300 * second
	maxUpdateRate   = 80
)

var ratesPerMinute = []float64{1.5, 5, 10, 20, 40, maxUpdateRate} // updates per minute

func brokenByUpdates() sim.Experiment {
	return sim.Experiment{
		Name: "cheetah-2a", Source: "Cheetah, figure 2a", Seeds: 20,
		Title: "broken connections by updates of the servers per minute: plain hash, Beamer's daisy chain, cookies",
		Method: "468 servers, 70000 connections of web-server durations, 100 buckets per server. Servers leave at random, drained, and come back after SilkRoad's " +
			"downtimes: half of the updates are removals. One that comes back takes its part of the buckets at random, as the formula E[1-e^-x(1+x)], x = duration " +
			"* updates / servers, assumes; or the oldest ones (V-C), or those that it had (home). Broken: mapped to a second server; under Beamer, to one that is " +
			"neither the bucket's owner nor the one before.",
		Claims: []sim.Claim{
			{ID: "hash-80", What: "broken by plain hash at 80 updates/min", Unit: "%", Low: 5.9, High: 8.3},
			{ID: "beamer-80", What: "broken by Beamer at 80 updates/min", Unit: "%", Paper: "almost 1 %", Low: 0.65, High: 1.4},
			{ID: "beamer-oldest-80", What: "the same, when the oldest buckets are taken", Unit: "%", Paper: "almost 1 %", Low: 0.65, High: 1.4},
			{ID: "beamer-home-80", What: "the same, when buckets come home", Unit: "%", Paper: "almost 1 %", Low: 0.65, High: 1.4},
			{ID: "beamer-20", What: "broken by Beamer at 20 updates/min", Unit: "%", Low: 0.05, High: 0.1},
			{ID: "beamer-1.5", What: "broken by Beamer at 1.5 updates/min", Unit: "%", Low: 0, High: 0.001},
			{ID: "cookie-80", What: "broken with cookies at 80 updates/min", Unit: "%", Paper: "0", Low: 0, High: 0},
		},
		Figures: []sim.Figure{{Title: "broken connections (468 servers)", X: "updates of servers per minute", Y: "broken connections, %", LogY: true}},
		Run:     runUpdates,
	}
}

func runUpdates(run *sim.Run) {
	config := worldOf(run.Seed, connections)
	progress := meter{run: run}
	for range 3*len(ratesPerMinute) + 1 {
		progress.expect(config.Rate, updatesWarmUp+updatesMeasured)
	}
	for _, perMinute := range ratesPerMinute {
		runRate(&progress, config, perMinute)
	}
	turns := &dispatch.Turns{Round: dispatch.Everybody(servers)}
	config.Chooser = turns
	stats := play(&progress, flows.New(config), updatesOf(run.Seed, maxUpdateRate), func(u update) { turns.Round = u.present })
	run.Share("cookie-80", stats.BrokenAt(1), stats.Ended)
}

// runRate plays the updates of one rate with each controller of the buckets.
func runRate(progress *meter, config flows.Config, perMinute float64) {
	run, draw := progress.run, random.New(config.Seed, "buckets")
	stats := playBuckets(progress, config, perMinute, newStable(servers, servers, servers*bucketsPerServer, &draw))
	oldest := playBuckets(progress, config, perMinute, newStable(servers, servers, servers*bucketsPerServer, nil))
	home := playBuckets(progress, config, perMinute, buckets.New(servers, bucketsPerServer))
	run.Point("plain hash", perMinute, percent(stats.BrokenAt(1), stats.Ended))
	run.Point("Beamer", perMinute, percent(stats.BrokenAt(2), stats.Ended))
	run.Point("Beamer, formula", perMinute, 100*beamerFormula(perMinute/60/servers))
	run.Point("Beamer, oldest", perMinute, percent(oldest.BrokenAt(2), oldest.Ended))
	run.Point("Beamer, home", perMinute, percent(home.BrokenAt(2), home.Ended))
	run.Point("three owners (SHELL)", perMinute, percent(stats.BrokenAt(3), stats.Ended))
	switch perMinute {
	case 1.5:
		run.Share("beamer-1.5", stats.BrokenAt(2), stats.Ended)
	case 20:
		run.Share("beamer-20", stats.BrokenAt(2), stats.Ended)
	case maxUpdateRate:
		run.Share("hash-80", stats.BrokenAt(1), stats.Ended)
		run.Share("beamer-80", stats.BrokenAt(2), stats.Ended)
		run.Share("beamer-oldest-80", oldest.BrokenAt(2), oldest.Ended)
		run.Share("beamer-home-80", home.BrokenAt(2), home.Ended)
	}
}

// controller says which buckets move when a server leaves or comes back.
type controller interface {
	Owners() []uint32
	Remove(server uint32) []buckets.Move
	Return(server uint32) []buckets.Move
}

// playBuckets has servers come and go while connections are led by buckets.
func playBuckets(progress *meter, config flows.Config, perMinute float64, table controller) flows.Stats {
	config.Table = &flows.Table{Owners: table.Owners(), Depth: 2}
	w := flows.New(config)
	return play(progress, w, updatesOf(config.Seed, perMinute), func(u update) {
		if u.back {
			place(w, table.Return(u.server))
		} else {
			place(w, table.Remove(u.server))
		}
	})
}

// play runs a world through updates, and returns what was counted after the warm-up.
func play(progress *meter, w *flows.World, updates []update, apply func(u update)) flows.Stats {
	w.Fill()
	warm := false
	for _, u := range append(updates, update{at: updatesWarmUp + updatesMeasured}) {
		if !warm && u.at >= updatesWarmUp {
			progress.runUntil(w, updatesWarmUp)
			w.Reset()
			warm = true
		}
		progress.runUntil(w, u.at)
		if u.present != nil {
			apply(u)
		}
	}
	return w.Stats()
}

// update is a server that leaves or comes back.
type update struct {
	at      int64 // ns
	server  uint32
	back    bool
	present []uint32 // who is there from then on
}

// updatesOf returns the updates of the servers at a rate per minute, half of them removals. A quarter of the servers always stays.
func updatesOf(seed uint64, perMinute float64) []update {
	choice, gaps, downs := random.New(seed, "updates"), random.New(seed, "update gaps"), random.New(seed, "downtimes")
	const end = updatesWarmUp + updatesMeasured
	var updates []update
	downtimes, back, present := data.Downtimes(), event.New(second), dispatch.Everybody(servers)
	for leaves := int64(0); leaves < end; {
		leaves = min(end, leaves+int64(gaps.Exp(60/(perMinute/2))*float64(second)))
		for at, server, due := back.PopBefore(leaves); due; at, server, due = back.PopBefore(leaves) {
			present = append(present[:len(present):len(present)], server)
			updates = append(updates, update{at: at, server: server, back: true, present: present})
		}
		if leaves == end || len(present) <= servers/4 {
			continue
		}
		i := choice.Intn(len(present))
		server := present[i]
		present = append(append([]uint32(nil), present[:i]...), present[i+1:]...)
		updates = append(updates, update{at: leaves, server: server, present: present})
		back.Push(leaves+int64(downs.From(&downtimes)*float64(second)), server)
	}
	return updates
}

// beamerFormula is the share of connections that Beamer breaks when each bucket moves at a given rate, independently: those in whose life it
// moves twice.
func beamerFormula(movesPerSecond float64) float64 {
	return expectation(func(life float64) float64 {
		x := life * movesPerSecond
		return 1 - math.Exp(-x)*(1+x)
	})
}

// expectation is the mean over connections. Their durations take few values.
func expectation(of func(lifeSeconds float64) float64) (mean float64) {
	lives, before := lives(), 0.0
	for _, point := range lives.Points {
		mean += (point.UpTo - before) * of(point.Value*lives.Scale)
		before = point.UpTo
	}
	return mean
}

func percent(hits, of int64) float64 { return 100 * float64(hits) / float64(max(of, 1)) }

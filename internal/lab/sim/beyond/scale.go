package beyond

import (
	"fmt"
	"runtime"

	"github.com/ballast-lb/ballast/internal/algo/buckets"
	"github.com/ballast-lb/ballast/internal/algo/candidates"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// scale is the size of the largest experiment.
type scale struct {
	servers, bucketsPerServer int
	connections               int64 // alive on average
	updates                   int   // servers that leave or come back
	seconds                   int64 // in which they do
	downSeconds               float64
}

// fullScale takes about 1.1 GB, and half a minute or more for each of two worlds.
var fullScale = scale{servers: 100_000, bucketsPerServer: 100, connections: 100_000_000, updates: 10_000, seconds: 60, downSeconds: 10}

// candidateScale is a hundredth of it. The candidates of all slots are computed anew with every change: more would take hours.
var candidateScale = scale{servers: 1000, connections: 1_000_000, updates: 100, seconds: 60, downSeconds: 10}

const (
	candidateSlots   = 65_521 // the largest table of the data plane
	candidateChoices = 2
)

// scaleExperiment plays SHELL at a smaller size.
func scaleExperiment(size, smaller scale) sim.Experiment {
	return sim.Experiment{
		Name: "beyond-scale", Source: source, Seeds: 1, Extra: true,
		Title: "broken connections with 100K servers, 100M connections and 10K reconfigurations in a minute",
		Method: "Web-server durations. Servers leave, drained, and come back 10 s later on average, 10K times in 60 s. A hundred buckets per server, moved by stable " +
			"hashing to others and back home. Connections count that live at any time in that minute. SHELL: 65521 slots and two candidates by 6LB's algorithm 3, " +
			"at a hundredth of the size.",
		Claims: []sim.Claim{
			{ID: "hash", What: "broken by plain hash", Unit: "%", Low: 1.4, High: 1.9},
			{ID: "history-2", What: "broken with one previous owner (Beamer)", Unit: "%", Low: 0.004, High: 0.02},
			{ID: "history-3", What: "broken with a history of three owners", Unit: "%", Low: 0, High: 0.001},
			{ID: "history-4", What: "broken with a history of four owners", Unit: "%", Low: 0, High: 0.0001},
			{ID: "cookie", What: "broken with cookies", Unit: "%", Low: 0, High: 0},
			{ID: "shell-1", What: "broken by SHELL, h = 1, at a hundredth of the size", Unit: "%", Low: 3.3, High: 4.5},
			{ID: "shell-2", What: "broken by SHELL, h = 2, at a hundredth of the size", Unit: "%", Low: 0.35, High: 0.6},
			{ID: "shell-3", What: "broken by SHELL, h = 3, at a hundredth of the size", Unit: "%", Low: 0.13, High: 0.25},
			{ID: "connections", What: "connections alive at once, at the end", Unit: "M", Low: 0.95 * float64(size.connections) / 1e6, High: 1.05 * float64(size.connections) / 1e6},
		},
		Run: func(run *sim.Run) { runScale(run, size, smaller) },
	}
}

func runScale(run *sim.Run, size, smaller scale) {
	lives, longest := webDurations()
	config := flows.Config{Seed: run.Seed, Servers: size.servers, Durations: lives, Rate: float64(size.connections) / lives.Mean()}
	events := int64(2*config.Rate*float64(size.seconds)) + 2*size.connections

	table := buckets.New(size.servers, size.bucketsPerServer)
	byTable := config
	byTable.Table = &flows.Table{Owners: table.Owners()}
	stats, live := size.play(run, flows.New(byTable), longest, 0, 2*events, func(w *flows.World, _ *turnover, who uint32, back bool) {
		follow(w, table, who, back)
	})
	run.Value("connections", float64(live)/1e6)
	run.Share("hash", stats.BrokenAt(1), stats.Ended)
	for _, depth := range []int{2, 3, 4} {
		run.Share(fmt.Sprintf("history-%d", depth), stats.BrokenAt(depth), stats.Ended)
	}

	runtime.GC() // the first world is no longer wanted: its memory is enough for the next one
	turns := &dispatch.Turns{}
	byCookie := config
	byCookie.Chooser = turns
	turns.Round = dispatch.Everybody(size.servers)
	stats, _ = size.play(run, flows.New(byCookie), longest, events, 2*events, func(_ *flows.World, servers *turnover, _ uint32, _ bool) {
		turns.Round = append(turns.Round[:0], servers.present...)
	})
	run.Share("cookie", stats.BrokenAt(1), stats.Ended)
	runCandidates(run, smaller, longest, 2*events)
}

// runCandidates plays SHELL. done are the events that were before.
func runCandidates(run *sim.Run, size scale, longest, done int64) {
	lives, _ := webDurations()
	mean := int32(size.connections / int64(size.servers))
	w := flows.New(flows.Config{
		Seed: run.Seed, Servers: size.servers, Durations: lives, Rate: float64(size.connections) / lives.Mean(),
		Table: &flows.Table{
			Owners: candidatesOf(dispatch.Everybody(size.servers)), Choices: candidateChoices,
			Accepts: func(_ uint32, load int32) bool { return load <= mean },
		},
	})
	stats, _ := size.play(run, w, longest, done, done, func(w *flows.World, servers *turnover, _ uint32, _ bool) {
		w.PlaceAll(candidatesOf(servers.present))
	})
	for _, depth := range []int{1, 2, 3} {
		run.Share(fmt.Sprintf("shell-%d", depth), stats.BrokenAt(depth), stats.Ended)
	}
}

// play fills a world, changes its servers, and lets everybody's connections end. done of all the run's events were before.
func (size scale) play(run *sim.Run, w *flows.World, longest, done, all int64,
	change func(w *flows.World, servers *turnover, who uint32, back bool)) (stats flows.Stats, live int64) {
	end := size.seconds * second
	w.Fill()
	servers := newServerTurnover(run.Seed, size.servers, 2*float64(end)/float64(size.updates), size.downSeconds*float64(second))
	report := func() {
		stats := w.Stats()
		run.Progress(min(done+stats.Arrived+stats.Ended, all), all)
	}
	changes := 0
	for at, who, back := servers.next(); at < end && changes < size.updates; at, who, back = servers.next() {
		w.RunUntil(at)
		change(w, servers, who, back)
		report()
		changes++
	}
	w.RunUntil(end)
	live = w.Live()
	w.SetRate(0)
	for at := end; at <= end+longest; at += longest / 64 {
		w.RunUntil(at)
		report()
	}
	w.RunUntil(end + longest + second)
	return w.Stats(), live
}

// newServerTurnover has servers leave at random, gapNS apart on average, and stay away for downNS on average.
func newServerTurnover(seed uint64, servers int, gapNS, downNS float64) *turnover {
	choice, gaps, downs := random.New(seed, "updates"), random.New(seed, "update gaps"), random.New(seed, "downtimes")
	return newTurnover(servers, &choice, func() int64 { return int64(gaps.Exp(gapNS)) }, func() int64 { return int64(downs.Exp(downNS)) })
}

// candidatesOf returns the cells of SHELL's table for the servers that are present.
func candidatesOf(present []uint32) []uint32 {
	return dispatch.Servers(candidates.Table(candidateSlots, candidateChoices, dispatch.Alike(present)))
}

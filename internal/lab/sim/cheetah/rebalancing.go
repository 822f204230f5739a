package cheetah

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/algo/buckets"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
)

// Figure 2c.
const (
	checkInterval     = second / 10 // not in the paper
	rebalanceMeasured = 300 * second
)

var thresholds = []int{5, 10, 15, 20, 30, 40} // percent above the mean

func brokenByRebalancing() sim.Experiment {
	return sim.Experiment{
		Name: "cheetah-2c", Source: "Cheetah, figure 2c",
		Title: "broken connections when Beamer takes servers above a threshold out of its table",
		Method: "468 servers, 70000 connections of web-server durations. Every 0.1 s, servers above the mean by the threshold give their hundred buckets to the others " +
			"in turn, and get them back below the mean. Broken as in figure 2a, by Beamer.",
		Claims: []sim.Claim{
			{ID: "threshold-10", What: "broken at a threshold of 10 %", Unit: "%", Paper: "3 %", Low: 3.4, High: 4.5},
			{ID: "threshold-20", What: "broken at a threshold of 20 %", Unit: "%", Low: 0, High: 0.1},
			{ID: "threshold-40", What: "broken at a threshold of 40 %", Unit: "%", Paper: "0.1 %", Low: 0, High: 0.01, Known: true,
				Note: "under Poisson arrivals hardly a server is ever 40 % (five standard deviations) above the mean; the paper explains its value by micro-bursts"},
		},
		Figures: []sim.Figure{
			{Name: "broken", Title: "what it costs to rebalance Beamer", X: "threshold, % above the mean", Y: "broken connections, %"},
			{Name: "imbalance", Title: "what it gains", X: "threshold, % above the mean", Y: "max/mean - 1, time average, %"},
		},
		Run: runRebalancing,
	}
}

func runRebalancing(run *sim.Run) {
	config := worldOf(run.Seed, connections)
	progress := meter{run: run}
	for range thresholds {
		progress.expect(config.Rate, longestLife+rebalanceMeasured)
	}
	for _, threshold := range thresholds {
		stats, uneven := rebalance(&progress, config, float64(threshold)/100)
		run.Point("broken/Beamer", float64(threshold), percent(stats.BrokenAt(2), stats.Ended))
		run.Point("broken/plain hash", float64(threshold), percent(stats.BrokenAt(1), stats.Ended))
		run.Point("imbalance/Beamer", float64(threshold), 100*uneven)
		switch threshold {
		case 10, 20, 40:
			run.Share(fmt.Sprintf("threshold-%d", threshold), stats.BrokenAt(2), stats.Ended)
		}
	}
}

// rebalance keeps servers out of the table that have too much. uneven is max/mean - 1 at the checks, on average.
func rebalance(progress *meter, config flows.Config, threshold float64) (stats flows.Stats, uneven float64) {
	table := buckets.New(servers, bucketsPerServer)
	config.Table = &flows.Table{Owners: table.Owners(), Depth: 2}
	w := flows.New(config)
	w.Fill()
	checks := 0
	for at := checkInterval; at <= longestLife+rebalanceMeasured; at += checkInterval {
		progress.runUntil(w, at)
		if at == longestLife {
			w.Reset()
		}
		if at > longestLife {
			uneven += w.Spread()
			checks++
		}
		mean := float64(w.Live()) / servers
		for server, load := range w.Loads() {
			switch server := uint32(server); {
			case table.Present(server) && float64(load) > (1+threshold)*mean:
				place(w, table.Remove(server))
			case !table.Present(server) && float64(load) < mean:
				place(w, table.Return(server))
			}
		}
	}
	return w.Stats(), uneven / float64(checks)
}

package beyond

import (
	"github.com/ballast-lb/ballast/internal/algo/buckets"
	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// Figure 2a of Cheetah at its right end, with load balancers that come and go as well.
const (
	bothServers       = 468
	bothBuckets       = 100 // of each server
	bothConnections   = 70_000
	bothRemovalsASec  = 40.0 / 60 // and as many come back
	bothNodes         = 16
	bothNodeSlots     = 4093
	bothNodesASec     = 3.0 / 60 // and as many come back
	bothNodeDownSec   = 20.0
	bothMeasureSecond = 600
)

func bothExperiment() sim.Experiment {
	return sim.Experiment{
		Name: "beyond-both", Source: source, Extra: true,
		Title: "broken connections when servers and load balancers come and go at the same time",
		Method: "468 servers, 70000 connections of web-server durations, 80 updates of servers a minute as in cheetah-2a. 16 load balancers behind plain ECMP; three " +
			"leave in a minute, for 20 s on average. Without local tables load balancers are all alike, and their changes break nothing.",
		Claims: []sim.Claim{
			{ID: "hash", What: "broken by plain hash", Unit: "%", Low: 5.5, High: 8.3},
			{ID: "beamer", What: "broken with one previous owner (Beamer)", Unit: "%", Low: 0.2, High: 1.4},
			{ID: "local-table", What: "broken with local connection tables", Unit: "%", Low: 3, High: 6},
			{ID: "local-table-beamer", What: "broken with local tables and one previous owner", Unit: "%", Low: 0.1, High: 0.9},
			{ID: "local-table-still", What: "broken with local tables while load balancers stay", Unit: "%", Low: 0, High: 0},
			{ID: "cookie", What: "broken with cookies", Unit: "%", Low: 0, High: 0},
		},
		Run: runBoth,
	}
}

func runBoth(run *sim.Run) {
	lives, _ := webDurations()
	base := flows.Config{Seed: run.Seed, Servers: bothServers, Durations: lives, Rate: bothConnections / lives.Mean()}
	worlds := []struct {
		name         string
		nodes, moves bool
	}{{"alike", false, false}, {"local", true, true}, {"still", true, false}}
	for i, world := range worlds {
		table := buckets.New(bothServers, bothBuckets)
		config := base
		config.Table = &flows.Table{Owners: table.Owners()}
		if world.nodes {
			config.Table.Nodes = nodesOf(dispatch.Everybody(bothNodes))
		}
		stats := playBoth(run, flows.New(config), float64(i)/4, world.moves, func(w *flows.World, _ *turnover, who uint32, back bool) {
			follow(w, table, who, back)
		})
		switch world.name {
		case "alike":
			run.Share("hash", stats.BrokenAt(1), stats.Ended)
			run.Share("beamer", stats.BrokenAt(2), stats.Ended)
		case "local":
			run.Share("local-table", stats.BrokenAt(1), stats.Ended)
			run.Share("local-table-beamer", stats.BrokenAt(2), stats.Ended)
		case "still":
			run.Share("local-table-still", stats.BrokenAt(1), stats.Ended)
		}
	}
	turns := &dispatch.Turns{Round: dispatch.Everybody(bothServers)}
	config := base
	config.Chooser = turns
	stats := playBoth(run, flows.New(config), 0.75, false, func(_ *flows.World, servers *turnover, _ uint32, _ bool) {
		turns.Round = append(turns.Round[:0], servers.present...)
	})
	run.Share("cookie", stats.BrokenAt(1), stats.Ended)
}

// playBoth has servers come and go, and load balancers if asked to, for the longest life and then for as long as is measured.
func playBoth(run *sim.Run, w *flows.World, before float64, nodesMove bool,
	change func(w *flows.World, servers *turnover, who uint32, back bool)) flows.Stats {
	_, longest := webDurations()
	end := longest + bothMeasureSecond*second
	servers, nodes := bothTurnovers(run.Seed)
	w.Fill()
	serverAt, server, serverBack := servers.next()
	nodeAt, _, _ := nodes.next()
	measuring := false
	for now := int64(0); now < end; {
		now = min(serverAt, end)
		if nodesMove {
			now = min(now, nodeAt)
		}
		if !measuring && now >= longest {
			w.RunUntil(longest)
			w.Reset()
			measuring = true
		}
		switch w.RunUntil(now); {
		case now == end:
		case now == serverAt:
			change(w, servers, server, serverBack)
			serverAt, server, serverBack = servers.next()
		default:
			for cell, node := range nodesOf(nodes.present) {
				w.PlaceNode(cell, node)
			}
			nodeAt, _, _ = nodes.next()
		}
		all := 4 * 2 * w.Rate() * float64(end/second) // four worlds, arrivals and ends
		run.Progress(int64(all*(before+float64(now)/float64(end)/4)), int64(all))
	}
	return w.Stats()
}

func bothTurnovers(seed uint64) (servers, nodes *turnover) {
	choice, gaps, downs := random.New(seed, "updates"), random.New(seed, "update gaps"), random.New(seed, "downtimes")
	lengths := data.Downtimes()
	servers = newTurnover(bothServers, &choice,
		func() int64 { return int64(gaps.Exp(float64(second) / bothRemovalsASec)) },
		func() int64 { return int64(downs.From(&lengths) * float64(second)) })
	nodeChoice, nodeGaps, nodeDowns := random.New(seed, "node updates"), random.New(seed, "node gaps"), random.New(seed, "node downtimes")
	nodes = newTurnover(bothNodes, &nodeChoice,
		func() int64 { return int64(nodeGaps.Exp(float64(second) / bothNodesASec)) },
		func() int64 { return int64(nodeDowns.Exp(bothNodeDownSec * float64(second))) })
	return servers, nodes
}

// nodesOf is what routers make of the load balancers that are present: plain equal-cost multipath.
func nodesOf(present []uint32) []uint32 {
	return dispatch.Owners("hash", bothNodeSlots, dispatch.Alike(present))
}

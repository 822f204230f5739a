// Package anolis has the experiments of Anolis ("Anolis: A Scalable, Fault-Tolerant Load Balancer for Stateful Network Functions"),
// with the nodes and the controller that replicate tables in production.
package anolis

import (
	"fmt"
	"math"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// Experiments returns the experiments of this package.
func Experiments() []sim.Experiment { return []sim.Experiment{reconfigure(), scaling(), wholeMinute()} }

// section65 are the parameters of section 6.5 and, where it is silent, ours.
func section65(chain int) parameters {
	return parameters{
		chain: chain, rate: 66_000, busy: [][2]int64{{0, 60e9}}, packets: 5, gap: 200e6, gapMore: 50e6,
		hop: 10e3, hopMore: 5e3, control: 1e6, controlMore: 1e6, loss: 0.001, retry: 50e6, period: 5e9,
		dies: 10e9, detected: 10.1e9, returns: 40e9,
	}
}

// around keeps the connections that may notice a change: all others begin and end while nothing happens.
var around = [][2]int64{{8.5e9, 11.5e9}, {38.5e9, 41.5e9}}

const method = "66 000 connections/s of five packets in about 1.2 s. At 10 s two alternate nodes of four die, at 40 s two new ones take their places. Assumed: the " +
	"gateway learns of deaths after 0.1 s and spreads connections by hash, so that most change their node; 0.1 % of messages are lost; views and syncs take " +
	"1 ms or more. Broken: two servers got packets. "

func reconfigure() sim.Experiment {
	e := sim.Experiment{
		Name:    "anolis-reconfigure",
		Title:   "Connections that break when two of four nodes fail and two are added",
		Source:  "Anolis 6.5, table 1",
		Method:  method + "Keep-alive interval 10 s. Only connections that begin within 1.5 s of a change are simulated.",
		Figures: []sim.Figure{{Name: "broken", Title: "Broken connections", X: "time (s)", Y: "broken so far"}},
		Claims: []sim.Claim{
			{ID: "broken-1", What: "connections broken, L = 1", Low: 1000, High: 999_999},
			{ID: "broken-2", What: "connections broken, L = 2", Paper: "0", Low: 0, High: 0},
			{ID: "broken-3", What: "connections broken, L = 3", Low: 0, High: 0},
		},
		Run: func(run *sim.Run) {
			for chain := 1; chain <= 3; chain++ {
				p := section65(chain)
				p.busy = around
				w := newWorld(run, p)
				w.before, w.all = int64(chain-1)*w.expected(), 3*w.expected()
				w.simulate()
				run.Value(fmt.Sprintf("broken-%d", chain), float64(w.broken))
				w.plot()
				if chain == 2 {
					w.tell()
				}
			}
		},
	}
	e.Claims = append(e.Claims, outcomes()...)
	return e
}

// wholeMinute is section 6.5 as it was run: every connection of the minute, and a keep-alive interval of a minute.
func wholeMinute() sim.Experiment {
	return sim.Experiment{
		Name:   "anolis-minute",
		Title:  "Every connection of the minute in which two of four nodes fail and two are added",
		Source: "Anolis 6.5, table 1",
		Method: method + "Keep-alive interval 60 s, L = 2.",
		Seeds:  1,
		Extra:  true,
		Claims: append([]sim.Claim{
			{ID: "attempted", What: "connections attempted", Paper: "3990780", Low: 3.9e6, High: 4e6},
			{ID: "broken-2", What: "connections broken", Paper: "0", Low: 0, High: 0},
		}, outcomes()...),
		Run: func(run *sim.Run) {
			p := section65(2)
			p.period = 30e9
			w := newWorld(run, p)
			w.all = w.expected()
			w.simulate()
			run.Value("attempted", float64(len(w.connections)))
			run.Value("broken-2", float64(w.broken))
			w.tell()
		},
	}
}

// outcomes are the claims of world.tell.
func outcomes() []sim.Claim {
	return []sim.Claim{
		{ID: "not-completed", What: "connections not completed at one server, L = 2", Unit: "%", Paper: "0", Low: 0, High: 0},
		{ID: "synced-1", What: "from two deaths told to synced, L = 2", Unit: "s", Low: math.Inf(-1), High: math.Inf(1)},
		{ID: "synced-2", What: "from two additions to synced, L = 2", Unit: "s", Low: math.Inf(-1), High: math.Inf(1)},
	}
}

// tell tells how it went.
func (w *world) tell() {
	attempted := int64(len(w.connections))
	w.run.Share("not-completed", attempted-w.completed(), attempted)
	w.run.Value("synced-1", w.synced[0])
	w.run.Value("synced-2", w.synced[1])
}

// plot draws how many connections were broken by each second.
func (w *world) plot() {
	broken := 0
	for second := range 60 {
		if second < len(w.brokenAt) {
			broken += w.brokenAt[second]
		}
		w.run.Point(fmt.Sprintf("broken/L = %d", w.chain), float64(second+1), float64(broken))
	}
}

package spotlight

import (
	"fmt"
	"math"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// setup is the size of a simulation of section VI-A.
type setup struct {
	traffic
	instances int
	overload  float64 // demand / capacity
	warmNS    int64
}

// paper is the setup of Spotlight: table II, and VI-A. It is silent about how much "slightly more than the total capacity" is, and
// about what is measured when.
var paper = setup{traffic: synthesized(maxServices, 100_000, 1e6), instances: 100, overload: 1.05, warmNS: 20e9}

const millisecond = int64(1e6) // ns

const method = "100K flows, 1 ms apart and 10 s long (exponential), with Pareto rates (alpha 2, 2 KB/s on average), each through 1 to 4 of 4 services. 100 instances " +
	"per service, half of them twice as large. Assumed where the paper is silent: demand of 1.05 of the capacity; an instance carries the smaller of its " +
	"load and its capacity; loads and weights are known at once. Measured from 20 s on. "

// arena has a run's policies dispatch the same trace.
type arena struct {
	setup
	run         *sim.Run
	trace       *trace
	games, done int
}

func (s setup) arena(run *sim.Run, games int) *arena {
	return &arena{setup: s, run: run, trace: newTrace(run.Seed, s.traffic), games: games}
}

// omega is the utilisation under a policy.
func (a *arena) omega(p policy) float64 {
	omega := a.trace.play(p, a.instances, a.demand()/a.overload, a.warmNS)
	a.done++
	changes := len(a.trace.changes)
	a.run.Progress(int64(a.done*changes), int64(a.games*changes))
	return omega
}

// figure8Intervals are in milliseconds.
var figure8Intervals = []int64{10, 25, 50, 100, 250, 500, 750, 1000, 1250, 1500, 1750, 2000, 2500, 3000}

func figure8(s setup) sim.Experiment {
	return sim.Experiment{
		Name: "spotlight-8", Source: source("figure 8"),
		Title:  "utilisation of services by how flows are dispatched and how often load is polled",
		Method: method + "AWFD has m = 4.",
		Claims: []sim.Claim{
			{ID: "ecmp", What: "utilisation with ECMP", Low: 0.83, High: 0.85},
			{ID: "wcmp", What: "utilisation with WCMP", Low: 0.92, High: 0.95},
			{ID: "heuristic", What: "utilisation with the heuristic: least congested first, always up to date", Low: 0.98, High: 1},
			{ID: "awfd-100", What: "utilisation with AWFD, polls every 100 ms", Paper: "very close to the heuristic", Low: 0.97, High: 0.99},
			{ID: "awfd-500", What: "utilisation with AWFD, polls every 500 ms", Low: 0.95, High: 0.97},
			{ID: "awfd-1000", What: "utilisation with AWFD, polls every second", Low: 0.94, High: 0.96},
			{ID: "awfd-lcf-10", What: "AWFD less LCF, polls every 10 ms", Paper: "very close to LCF when the update interval is very short", Low: -0.01, High: 0.01},
			{ID: "awfd-ecmp", What: "AWFD less ECMP, the least of all intervals", Paper: "always outperforms ECMP", Low: 0, High: 1},
			{ID: "lcf-ecmp", What: "LCF less ECMP, the most of all intervals from 250 ms on", Paper: "decreases significantly", Low: -1, High: 0},
			{ID: "crossover", What: "interval from which WCMP is better than AWFD", Unit: "s", Paper: "AWFD always outperforms WCMP", Low: 1.2, High: 1.9, Known: true,
				Note: "WCMP knows the sizes of the instances. AWFD must learn them from loads that grow old: at 1.5 s a seventh of the living flows was dispatched by one " +
					"poll."},
		},
		Figures: []sim.Figure{{Title: "Spotlight figure 8", X: "update interval (ms)", Y: "service utilisation", LogX: true}},
		Run:     s.runFigure8,
	}
}

// baselines are the utilisations by what has no update interval.
type baselines struct{ ecmp, wcmp, heuristic float64 }

// sweep measures and draws all that a figure compares, by update intervals in milliseconds. each gets the utilisations by AWFD and LCF.
func (s setup) sweep(run *sim.Run, intervals []int64, each func(known baselines, ms int64, awfd, lcf float64)) baselines {
	a := s.arena(run, 3+2*len(intervals))
	known := baselines{ecmp: a.omega(ecmp(s.instances)), wcmp: a.omega(weighted(s.instances)), heuristic: a.omega(heuristic())}
	run.Value("ecmp", known.ecmp)
	run.Value("wcmp", known.wcmp)
	run.Value("heuristic", known.heuristic)
	for _, ms := range intervals {
		awfd, lcf := a.omega(adaptive(4, ms*millisecond)), a.omega(leastCongested(ms*millisecond))
		each(known, ms, awfd, lcf)
		x := float64(ms)
		run.Point("heuristic", x, known.heuristic)
		run.Point("AWFD, m = 4", x, awfd)
		run.Point("WCMP", x, known.wcmp)
		run.Point("ECMP", x, known.ecmp)
		run.Point("LCF", x, lcf)
	}
	return known
}

func (s setup) runFigure8(run *sim.Run) {
	least, most := infinite, -infinite
	var margins []float64 // of AWFD over WCMP
	s.sweep(run, figure8Intervals, func(known baselines, ms int64, awfd, lcf float64) {
		switch ms {
		case 10:
			run.Value("awfd-lcf-10", awfd-lcf)
		case 100, 500, 1000:
			run.Value(fmt.Sprint("awfd-", ms), awfd)
		}
		least = min(least, awfd-known.ecmp)
		if ms >= 250 {
			most = max(most, lcf-known.ecmp)
		}
		margins = append(margins, awfd-known.wcmp)
	})
	run.Value("awfd-ecmp", least)
	run.Value("lcf-ecmp", most)
	run.Value("crossover", crossover(figure8Intervals, margins)/1000)
}

// crossover is the x at which margins that begin above 0 first come to 0, on straight lines between the points; the last x if they
// never do.
func crossover(xs []int64, margins []float64) float64 {
	for i, margin := range margins {
		if margin <= 0 {
			if i == 0 {
				return float64(xs[0])
			}
			part := margins[i-1] / (margins[i-1] - margin)
			return float64(xs[i-1]) + float64(part*float64(xs[i]-xs[i-1]))
		}
	}
	return float64(xs[len(xs)-1])
}

// asGoodAsInfinite is the largest m that package awfd takes. Weights of 1/255 are as exact as loads can be known.
const asGoodAsInfinite = math.MaxUint8

func figure10(s setup) sim.Experiment {
	return sim.Experiment{
		Name: "spotlight-10", Source: source("figure 10"),
		Title:  "utilisation of services by the largest weight m of AWFD, polls every 500 ms",
		Method: "As spotlight-8. Infinite m is 255.",
		Claims: []sim.Claim{
			{ID: "m-1", What: "utilisation with m = 1", Low: 0.53, High: 0.59},
			{ID: "m-1-lcf", What: "m = 1 less LCF: they are the same", Low: 0, High: 0},
			{ID: "m-4", What: "utilisation with m = 4", Low: 0.95, High: 0.97},
			{ID: "m-4-part", What: "utilisation with m = 4, as part of that with infinite m", Unit: "%", Paper: "close to the ideal case", Low: 98, High: 100},
		},
		Figures: []sim.Figure{{Title: "Spotlight figure 10", X: "m", Y: "service utilisation"}},
		Run:     s.runFigure10,
	}
}

func (s setup) runFigure10(run *sim.Run) {
	const interval, most = 500 * millisecond, 16
	a := s.arena(run, most+2)
	ideal := a.omega(adaptive(asGoodAsInfinite, interval))
	for m := uint8(1); m <= most; m++ {
		omega := a.omega(adaptive(m, interval))
		run.Point("AWFD", float64(m), omega)
		run.Point("infinite m", float64(m), ideal)
		switch m {
		case 1:
			run.Value("m-1", omega)
			run.Value("m-1-lcf", omega-a.omega(leastCongested(interval)))
		case 4:
			run.Value("m-4", omega)
			run.Value("m-4-part", 100*omega/ideal)
		}
	}
}

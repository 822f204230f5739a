package spotlight

import (
	"math"

	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// Specification constants of MAWI's trace of 9 May 2018 (Spotlight VI-A, table II).
const (
	mawiFlows      = 357_630
	mawiGapNS      = 2.5e6
	mawiDurationNS = 33e9
	mawiRate       = 50_700 // bytes/s
)

// Assumed: rates are lognormal. The paper says of them that they are more spread out than the synthesized ones, with more medium-sized flows.
const (
	mawiSigma   = 2 // of the rates' logarithms
	narrowSigma = 1
)

// mawi is the setup of figure 9 with rates of a spread.
func mawi(sigma float64) setup {
	s := paper
	s.traffic = traffic{services: maxServices, flows: mawiFlows, gapNS: mawiGapNS, durationNS: mawiDurationNS, rate: mawiRate, draw: lognormal(mawiRate, sigma)}
	s.warmNS = 2 * mawiDurationNS
	return s
}

// lognormal is a distribution of rates: of their mean and the standard deviation of their logarithms.
func lognormal(mean, sigma float64) func(*random.Stream) float64 {
	median := mean * math.Exp(-sigma*sigma/2)
	return func(rates *random.Stream) float64 {
		return median * math.Exp(sigma*math.Sqrt2*math.Erfinv(2*rates.Float64()-1))
	}
}

// figure9Intervals are in milliseconds.
var figure9Intervals = []int64{100, 250, 500, 1000, 2000, 3000}

// figure9 compares spread-out and narrow rates with the synthesized trace.
func figure9(spread, narrow, synthesized setup) sim.Experiment {
	const fitted = "The spread of the rates, sigma 2, is chosen for this: with sigma 1 WCMP is as far from ECMP as in figure 8."
	return sim.Experiment{
		Name: "spotlight-9", Source: source("figure 9"), Seeds: 3,
		Title: "utilisation of services by how flows are dispatched, with traffic like MAWI's",
		Method: "The trace is public, and was not to be had here: traffic is made from table II, 357,630 flows, 2.5 ms apart and 33 s long (exponential), 50.7 KB/s on average. " +
			"Rates are assumed to be lognormal with sigma 2. Measured from 66 s on. Otherwise as spotlight-8.",
		Claims: []sim.Claim{
			{ID: "ecmp", What: "utilisation with ECMP", Low: 0.74, High: 0.79},
			{ID: "wcmp", What: "utilisation with WCMP", Low: 0.79, High: 0.84},
			{ID: "heuristic", What: "utilisation with the heuristic: least congested first, always up to date", Low: 0.89, High: 0.95},
			{ID: "wcmp-ecmp", What: "WCMP less ECMP, as part of the same with the synthesized trace", Unit: "%", Paper: "WCMP much closer to ECMP", Low: 40, High: 65,
				Fitted: true, Note: fitted},
			{ID: "wcmp-ecmp-narrow", What: "the same with sigma 1", Unit: "%", Low: 90, High: 120},
			{ID: "heuristic-awfd", What: "the heuristic less AWFD, polls every 500 ms", Paper: "AWFD slightly off the heuristic", Low: 0, High: 0.02},
			{ID: "awfd-wcmp", What: "AWFD less WCMP, the least of intervals up to 3 s", Paper: "AWFD much better than WCMP and ECMP", Low: 0.04, High: 0.2},
			{ID: "awfd-lcf", What: "AWFD less LCF, the least of intervals up to 3 s", Paper: "AWFD outperforms LCF", Low: 0, High: 1},
		},
		Figures: []sim.Figure{{Title: "Spotlight figure 9", X: "update interval (ms)", Y: "service utilisation", LogX: true}},
		Run:     func(run *sim.Run) { runFigure9(run, spread, narrow, synthesized) },
	}
}

func runFigure9(run *sim.Run, spread, narrow, synthesized setup) {
	byWCMP := func(s setup) float64 { // WCMP less ECMP
		a := s.arena(run, 2)
		return a.omega(weighted(s.instances)) - a.omega(ecmp(s.instances))
	}
	before := byWCMP(synthesized)
	run.Value("wcmp-ecmp-narrow", 100*byWCMP(narrow)/before)
	overWCMP, overLCF := infinite, infinite
	known := spread.sweep(run, figure9Intervals, func(known baselines, ms int64, awfd, lcf float64) {
		overWCMP, overLCF = min(overWCMP, awfd-known.wcmp), min(overLCF, awfd-lcf)
		if ms == 500 {
			run.Value("heuristic-awfd", known.heuristic-awfd)
		}
	})
	run.Value("wcmp-ecmp", 100*(known.wcmp-known.ecmp)/before)
	run.Value("awfd-wcmp", overWCMP)
	run.Value("awfd-lcf", overLCF)
}

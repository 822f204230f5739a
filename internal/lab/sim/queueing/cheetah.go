package queueing

import (
	"fmt"
	"math"
	"slices"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// Cheetah's test bed (section V): 64 web servers, each with a core of its own.
const (
	cheetahServers = 64
	cheetahWarmNS  = 10 * second
)

// Experiments returns all of this package.
func Experiments() []sim.Experiment {
	return []sim.Experiment{completionExperiment(), varianceExperiment(), bimodalExperiment(), countersExperiment(),
		yuzRateExperiment(), yuzTimeExperiment(), yuzSizeExperiment(), yuzBalanceExperiment()}
}

// constantWorkNS is what a request of figures 6 and 7 takes. The paper has 100 to 200 requests a second for each server, depending on the
// load aimed at: 200 are taken for all that a server can do.
const constantWorkNS = 5 * millisecond

func constantFarm(servers int, load float64, countNS int64) *farm {
	return &farm{
		servers: servers, load: load, mean: float64(constantWorkNS), work: func(uint64) int64 { return constantWorkNS },
		warmNS: cheetahWarmNS, countNS: countNS,
	}
}

const constantMethod = "Single-core servers that share their processor among all requests, constant work of 5 ms, Poisson arrivals, one request per connection; network and " +
	"balancer take no time. The hash is perfect: the paper's three hash functions are not told apart."

func completionExperiment() sim.Experiment {
	return sim.Experiment{
		Name: "cheetah-6", Source: "Cheetah, figure 6",
		Title:  "99th percentile of completion time by load, round robin against hash, 64 servers with equal work",
		Method: constantMethod + countersMethod + " 20 s counted at each load.",
		Claims: []sim.Claim{
			{ID: "order", What: "loads of six at which round robin by eight counters has the lower p99", Paper: "all", Low: 6, High: 6, Note: countersNote},
			{ID: "ratio-60", What: "p99 of hash to round robin by eight counters, load 0.6", Unit: "x", Paper: "2x-3x", Low: 1.7, High: 3},
			{ID: "ratio-70", What: "p99 of hash to round robin by eight counters, load 0.7", Unit: "x", Paper: "2x-3x", Low: 2, High: 3},
			{ID: "ratio-80", What: "p99 of hash to round robin by eight counters, load 0.8", Unit: "x", Paper: "2x-3x", Low: 3, High: 5, Known: true,
				Note: "Tested at loads 0.4 to 0.9: the ratio rises from 1.5x to 7.5x by eight counters, from 5x to 29x by one. Up to which load the paper measured, its text does not say."},
			{ID: "one-60", What: "p99 of hash to round robin by one counter, load 0.6", Unit: "x", Low: 6, High: 14},
			{ID: "one-80", What: "p99 of hash to round robin by one counter, load 0.8", Unit: "x", Low: 11, High: 26},
			{ID: "rr-80", What: "p99 of round robin by eight counters, load 0.8", Unit: "ms", Low: 5, High: math.Inf(1)},
			{ID: "hash-80", What: "p99 of hash, load 0.8", Unit: "ms", Low: 5, High: math.Inf(1)},
		},
		Figures: []sim.Figure{{Title: "Completion time with equal work", X: "load", Y: "p99 (ms)", LogY: true}},
		Run:     runCompletion,
	}
}

// cheetahCounters are round robin's in the test bed: Cheetah's load balancer runs on eight cores (V), which share nothing.
const cheetahCounters = 8

const countersMethod = " Round robin by independent counters; the paper does not say that cores share one. " + countersNote

const countersNote = "Eight counters are for the eight cores of the paper's load balancer; Ballast has one for each load balancer."

// turnsOfCheetah are the two round robins of figures 6 and 7.
var turnsOfCheetah = []struct {
	series, claim string
	counters      int
	judged        []int // percent: loads of figure 6
}{{"rr, 8 counters", "ratio", cheetahCounters, []int{60, 70, 80}}, {"rr, 1 counter", "one", 1, []int{60, 80}}}

func runCompletion(run *sim.Run) {
	percents, lower := []int{40, 50, 60, 70, 80, 90}, 0
	for i, percent := range percents {
		load := float64(percent) / 100
		p99 := func(build maker) float64 { // ms
			played := constantFarm(cheetahServers, load, 20*second).run(run, build(run.Seed, cheetahServers))
			return 1000 * Quantile(played.Times(), 0.99)
		}
		hashed := p99(hash)
		run.Point("hash", load, hashed)
		for _, turns := range turnsOfCheetah {
			value := p99(roundRobin(turns.counters))
			run.Point(turns.series, load, value)
			if turns.counters == cheetahCounters && value < hashed {
				lower++
			}
			if slices.Contains(turns.judged, percent) {
				run.Value(fmt.Sprint(turns.claim, "-", percent), hashed/value)
			}
			if turns.counters == cheetahCounters && percent == 80 {
				run.Value("hash-80", hashed)
				run.Value("rr-80", value)
			}
		}
		run.Progress(int64(i+1), int64(len(percents)))
	}
	run.Value("order", float64(lower))
}

func varianceExperiment() sim.Experiment {
	experiment := sim.Experiment{
		Name: "cheetah-7", Source: "Cheetah, figure 7",
		Title: "variance of load between 16, 32 and 64 servers, round robin against hash",
		Method: constantMethod + countersMethod + " Load is the part of a second that a server is busy, 0.6 on average. The paper does not say over what time it measured " +
			"load, and gives no numbers: bands are around ours.",
		Figures: []sim.Figure{{Title: "Variance between servers", X: "servers", Y: "variance of load (percent squared)", LogY: true}},
		Run:     runVariance,
	}
	for _, servers := range []int{16, 32, 64} {
		what := fmt.Sprintf("variance of hash to round robin by eight counters, %d servers", servers)
		experiment.Claims = append(experiment.Claims,
			sim.Claim{ID: fmt.Sprint("ratio-", servers), What: what, Unit: "x", Paper: "RR is smaller", Low: 80, High: 320, Note: countersNote},
			sim.Claim{ID: fmt.Sprint("one-", servers), What: fmt.Sprintf("the same by one counter, %d servers", servers), Unit: "x", Low: 1800, High: 7200})
	}
	return experiment
}

func runVariance(run *sim.Run) {
	for i, servers := range []int{16, 32, 64} {
		variance := func(build maker) float64 {
			return 1e4 * constantFarm(servers, 0.6, 30*second).run(run, build(run.Seed, servers)).Variance()
		}
		hashed := variance(hash)
		run.Point("hash", float64(servers), hashed)
		for _, turns := range turnsOfCheetah {
			value := variance(roundRobin(turns.counters))
			run.Point(turns.series, float64(servers), value)
			run.Value(fmt.Sprint(turns.claim, "-", servers), hashed/value)
		}
		run.Progress(int64(i+1), 3)
	}
}

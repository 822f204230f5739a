package queueing

import (
	"fmt"
	"math"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// Cheetah's test bed (section V): 64 web servers, each with a core of its own.
const (
	cheetahServers = 64
	cheetahWarmNS  = 10 * second
)

// Experiments returns all of this package.
func Experiments() []sim.Experiment {
	return []sim.Experiment{completionExperiment(), varianceExperiment(), bimodalExperiment(),
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
		Method: constantMethod + " 20 s counted at each load.",
		Claims: []sim.Claim{
			{ID: "order", What: "loads of six at which round robin has the lower p99", Paper: "all", Low: 6, High: 6},
			{ID: "ratio-60", What: "p99 of hash to round robin, load 0.6", Unit: "x", Paper: "2x-3x", Low: 6, High: 14, Known: true, Note: completionNote},
			{ID: "ratio-80", What: "p99 of hash to round robin, load 0.8", Unit: "x", Paper: "2x-3x", Low: 11, High: 26, Known: true, Note: completionNote},
			{ID: "rr-80", What: "p99 of round robin, load 0.8", Unit: "ms", Low: 5, High: math.Inf(1)},
			{ID: "hash-80", What: "p99 of hash, load 0.8", Unit: "ms", Low: 5, High: math.Inf(1)},
		},
		Figures: []sim.Figure{{Title: "Completion time with equal work", X: "load", Y: "p99 (ms)", LogY: true}},
		Run:     runCompletion,
	}
}

const completionNote = "Only queues count here, and round robin's are nearly empty. In the test bed the time of network, kernel and client, which no policy changes, is part " +
	"of both."

func runCompletion(run *sim.Run) {
	percents, lower := []int{40, 50, 60, 70, 80, 90}, 0
	for i, percent := range percents {
		load := float64(percent) / 100
		var p99 [2]float64 // ms
		for which, build := range []maker{hash, roundRobin} {
			played := constantFarm(cheetahServers, load, 20*second).run(run, build(run.Seed, cheetahServers))
			p99[which] = 1000 * Quantile(played.Times(), 0.99)
		}
		run.Point("hash", load, p99[0])
		run.Point("rr", load, p99[1])
		if p99[1] < p99[0] {
			lower++
		}
		if percent == 60 || percent == 80 {
			run.Value(fmt.Sprint("ratio-", percent), p99[0]/p99[1])
		}
		if percent == 80 {
			run.Value("hash-80", p99[0])
			run.Value("rr-80", p99[1])
		}
		run.Progress(int64(i+1), int64(len(percents)))
	}
	run.Value("order", float64(lower))
}

func varianceExperiment() sim.Experiment {
	experiment := sim.Experiment{
		Name: "cheetah-7", Source: "Cheetah, figure 7",
		Title:   "variance of load between 16, 32 and 64 servers, round robin against hash",
		Method:  constantMethod + " Load is the part of a second that a server is busy, 0.6 on average. The paper does not say over what time it measured load.",
		Figures: []sim.Figure{{Title: "Variance between servers", X: "servers", Y: "variance of load (percent squared)", LogY: true}},
		Run:     runVariance,
	}
	for _, servers := range []int{16, 32, 64} {
		experiment.Claims = append(experiment.Claims, sim.Claim{
			ID: fmt.Sprint("ratio-", servers), What: fmt.Sprintf("variance of hash to round robin, %d servers", servers), Unit: "x",
			Paper: "RR is smaller", Low: 1, High: math.Inf(1),
		})
	}
	return experiment
}

func runVariance(run *sim.Run) {
	for i, servers := range []int{16, 32, 64} {
		var variance [2]float64
		for which, build := range []maker{hash, roundRobin} {
			played := constantFarm(servers, 0.6, 30*second).run(run, build(run.Seed, servers))
			variance[which] = 1e4 * played.Variance()
		}
		run.Point("hash", float64(servers), variance[0])
		run.Point("rr", float64(servers), variance[1])
		run.Value(fmt.Sprint("ratio-", servers), variance[0]/variance[1])
		run.Progress(int64(i+1), 3)
	}
}

package queueing

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// countersLoads are the loads at which round robin is compared, in tenths.
var countersLoads = []int{6, 8}

// countersCases are numbers of counters, up to 16 load balancers of 16 cores each, with the bands at each load.
var countersCases = []struct {
	counters int
	bands    map[int]sim.Band // by load
}{
	{1, map[int]sim.Band{6: {Low: 6, High: 14}, 8: {Low: 11, High: 26}}},
	{2, map[int]sim.Band{6: {Low: 3, High: 6}, 8: {Low: 7, High: 14}}},
	{8, map[int]sim.Band{6: {Low: 1.6, High: 2.4}, 8: {Low: 2.8, High: 5}}},
	{16, map[int]sim.Band{6: {Low: 1.2, High: 1.8}, 8: {Low: 1.8, High: 3.2}}},
	{64, map[int]sim.Band{6: {Low: 1, High: 1.4}, 8: {Low: 1.1, High: 2}}},
	{256, map[int]sim.Band{6: {Low: 0.9, High: 1.2}, 8: {Low: 0.9, High: 1.5}}},
}

// countersExperiment asks how much of round robin's evenness is left when many counters take turns.
func countersExperiment() sim.Experiment {
	experiment := sim.Experiment{
		Name: "beyond-counters", Source: "beyond the papers", Seeds: 5, Extra: true,
		Title: "99th percentile of completion time, round robin against hash, by the number of counters that take turns",
		Method: constantMethod + " 64 servers. Counters are independent, and begin at random; a request meets one by chance. Ballast has one counter for each load balancer. " +
			"20 s counted.",
		Figures: []sim.Figure{{Title: "What is left of round robin's advantage", X: "counters", Y: "p99 of hash to that of round robin", LogX: true, LogY: true}},
		Run:     runCounters,
	}
	for _, load := range countersLoads {
		for _, c := range countersCases {
			experiment.Claims = append(experiment.Claims, sim.Claim{
				ID: fmt.Sprintf("k%d-%d0", c.counters, load), What: fmt.Sprintf("p99 of hash to round robin, counters: %d, load 0.%d", c.counters, load),
				Unit: "x", Low: c.bands[load].Low, High: c.bands[load].High,
			})
		}
	}
	return experiment
}

func runCounters(run *sim.Run) {
	for i, load := range countersLoads {
		p99 := func(build maker) float64 {
			return Quantile(constantFarm(cheetahServers, float64(load)/10, 20*second).run(run, build(run.Seed, cheetahServers)).Times(), 0.99)
		}
		hashed := p99(hash)
		for done, c := range countersCases {
			ratio := hashed / p99(roundRobin(c.counters))
			run.Point(fmt.Sprintf("load 0.%d", load), float64(c.counters), ratio)
			run.Value(fmt.Sprintf("k%d-%d0", c.counters, load), ratio)
			run.Progress(int64(i*len(countersCases)+done+1), int64(len(countersLoads)*len(countersCases)))
		}
	}
}

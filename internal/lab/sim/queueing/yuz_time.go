package queueing

import (
	"fmt"
	"math"

	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// Fitted, both: with them the tail of L4 is about what the paper has. They are not measured anywhere.
var fittedStalls = stalls{part: 0.007, lengthNS: 280 * millisecond}

func yuzTimeExperiment() sim.Experiment {
	return sim.Experiment{
		Name: "yuz-9", Source: "Yuz, figures 9 and 10",
		Title: "response time by requests a second, mean and 99th percentile",
		Method: "The model of yuz-7. Sessions of ten requests begin at random (Poisson) and pause for 1 s after each answer. With stalls (fitted), 0.7 % of accesses to " +
			"the database wait for 280 ms: that shows what a tail like the paper's takes, not that it is so.",
		Claims: []sim.Claim{
			{ID: "mean-l7", What: "mean of L7 to Yuz, 3000 requests/s", Unit: "x", Paper: "Yuz outperforms", Low: 1, High: math.Inf(1)},
			{ID: "mean-l7-l4", What: "mean of L7 to L4, 4000 requests/s", Unit: "x", Paper: "L4 lower", Low: 1, High: math.Inf(1),
				Note: "Near the most that the proxy carries. Below 3000 requests a second L4 is the slower one here: what session data are assumed to take is more than an idle " +
					"proxy does."},
			{ID: "mean-l4", What: "mean of L4 to Yuz, 11000 requests/s", Unit: "x", Paper: "2", Low: 1, High: math.Inf(1)},
			{ID: "tail-l4", What: "p99 of L4 to Yuz, 11000 requests/s", Unit: "x", Paper: "14", Low: 1.5, High: 4, Known: true,
				Note: "Tested by stalls of the database (below): queues alone make the tail no longer than the mean, in proportion. Fourteen times takes accesses to the database that wait long now and then."},
			{ID: "tail-stalls", What: "p99 of L4 with stalls (fitted) to Yuz, 11000 requests/s", Unit: "x", Paper: "14", Low: 10, High: 18, Fitted: true,
				Note: "Fitted: 280 ms for 0.7 % of accesses are chosen so that it comes out. It shows what it takes, not that it is so: such a tail is as " +
					"long at any rate, and the paper's grows towards the most that L4 carries."},
			{ID: "mean-stalls", What: "mean of L4 with stalls (fitted) to Yuz, 11000 requests/s", Unit: "x", Paper: "2", Low: 2.6, High: 3.8, Known: true,
				Note: "Tested by what fits the tail: such stalls make the mean too long, so they are not what the paper has."},
			{ID: "yuz-load", What: "Yuz: mean at 18000 requests a second for that at 1000", Unit: "x", Paper: "not considerably affected", Low: 1, High: 5},
		},
		Figures: []sim.Figure{
			{Name: "mean", Title: "Mean response time", X: "requests a second", Y: "ms", LogY: true},
			{Name: "p99", Title: "99th percentile of response time", X: "requests a second", Y: "ms", LogY: true},
		},
		Run: runYuzTime,
	}
}

// timeCase is a curve of the experiment.
type timeCase struct {
	name     string
	balancer balancer
	stalls   stalls
}

var timeCases = []timeCase{{"l4", layer4, stalls{}}, {"l4, database stalls", layer4, fittedStalls}, {"yuz", yuz, stalls{}}, {"l7", layer7, stalls{}}}

// timeRates are those of the figure, requests a second.
var timeRates = []float64{1000, 2000, 3000, 4000, 6000, 9000, 11_000, 12_000, 15_000, 18_000, 21_000, 23_000}

func runYuzTime(run *sim.Run) {
	mean, p99 := map[string]float64{}, map[string]float64{}
	for i, c := range timeCases {
		for _, rate := range timeRates {
			world := &cluster{
				balancer: c.balancer, dataMB: usualMB, rate: rate, requests: always(usualRequest), think: always(thinkNS), stalls: c.stalls,
				warmNS: 2 * second, countNS: 5 * second,
			}
			if rate > 0.97*world.boundOf(1-1.0/usualRequest) {
				break
			}
			played := world.run(run)
			at := fmt.Sprint(c.name, " ", rate)
			mean[at], p99[at] = 1000*played.meanSeconds(), 1000*played.quantile(0.99)
			run.Point("mean/"+c.name, rate, mean[at])
			run.Point("p99/"+c.name, rate, p99[at])
		}
		run.Progress(int64(i+1), int64(len(timeCases)))
	}
	run.Value("mean-l7", mean["l7 3000"]/mean["yuz 3000"])
	run.Value("mean-l7-l4", mean["l7 4000"]/mean["l4 4000"])
	run.Value("mean-l4", mean["l4 11000"]/mean["yuz 11000"])
	run.Value("tail-l4", p99["l4 11000"]/p99["yuz 11000"])
	run.Value("tail-stalls", p99["l4, database stalls 11000"]/p99["yuz 11000"])
	run.Value("mean-stalls", mean["l4, database stalls 11000"]/mean["yuz 11000"])
	run.Value("yuz-load", mean["yuz 18000"]/mean["yuz 1000"])
}

// balanceLoad is what servers are busy in figure 12.
const balanceLoad = 0.6

func yuzBalanceExperiment() sim.Experiment {
	return sim.Experiment{
		Name: "yuz-12", Source: "Yuz, figure 12",
		Title: "how even the active connections of servers are when sessions keep their server, and when connections take turns",
		Method: "The model of yuz-7. Sessions of 1 to 19 requests with pauses of 1 s on average, servers busy 60 % of their time. Connections of each server are " +
			"counted every 10 ms.",
		Claims: []sim.Claim{
			{ID: "yuz", What: "coefficient of variation, Yuz", Low: 1, High: 1.3},
			{ID: "l4", What: "coefficient of variation, turns for each connection (L4)", Low: 0.7, High: 1},
			{ID: "ratio", What: "Yuz for L4", Unit: "x", Paper: "Yuz higher, not very unbalanced", Low: 1, High: 2},
		},
		Figures: []sim.Figure{{Title: "Connections of a server", X: "part of the most connections seen (%)", Y: "part of the time that a server has no more"}},
		Run:     runYuzBalance,
	}
}

func runYuzBalance(run *sim.Run) {
	variation := map[string]float64{}
	for i, b := range []balancer{layer4, yuz} {
		world := &cluster{
			balancer: b, dataMB: usualMB,
			requests: func(drawn uint64) int { return 1 + int(random.Below(drawn, 2*usualRequest-1)) },
			think:    func(drawn uint64) int64 { return int64(-math.Log1p(-float64(drawn>>11)*0x1p-53) * float64(thinkNS)) },
			sampleNS: 10 * millisecond, warmNS: 20 * second, countNS: 10 * second,
		}
		world.rate = balanceLoad * yuzServers / world.serverSeconds(1-1.0/usualRequest)
		played := world.run(run)
		variation[b.name] = played.variation()
		run.Value(b.name, variation[b.name])
		played.draw(run, b.name)
		run.Progress(int64(i+1), 2)
	}
	run.Value("ratio", variation["yuz"]/variation["l4"])
}

// draw adds the distribution of the connections of servers, in parts of the most seen.
func (s *shift) draw(run *sim.Run, series string) {
	most, count := int32(0), map[int32]int{}
	for _, active := range s.samples {
		most = max(most, active)
		count[active]++
	}
	const steps = 20
	for step := 0; step <= steps; step++ {
		below := 0
		for active := int32(0); active*steps <= most*int32(step); active++ {
			below += count[active]
		}
		run.Point(series, 100*float64(step)/steps, float64(below)/float64(len(s.samples)))
	}
}

package queueing

import (
	"fmt"
	"math"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

const yuzMethod = "48 single-core servers that share their processor among all requests, a database and a balancer of eight cores each. The paper gives no times. " +
	"Assumed: 2 ms of work per request; without persistence also 1.2 ms and 0.8 ms/MB at the server and twice 0.05 ms and 0.1 ms/MB at the database; at the " +
	"balancer 0.18 ms (L4), 10 % more (Yuz), ten times as much (L7). Fitted so that L4 carries half as much as Yuz at 1 MB and L7 overtakes it near 10 MB: " +
	"only the order is a result."

// Implementation constants of how the most that a cluster can do is found.
const (
	crowding     = 1.3        // sessions, for those that the bound on its rate needs: so many seconds from a session's request to its next
	rateWarmNS   = 2 * second // several times what a request waits: 1.3 s less the pause
	rateRequests = 50_000     // that are counted, as many whatever the rate. Sessions that begin together keep together for long.
)

// mostOf returns the most requests a second that a cluster can do, and the part of their time that the balancer's processors are in use.
func mostOf(run *sim.Run, b balancer, requests int, dataMB float64) (rate, balancerBusy float64) {
	c := &cluster{balancer: b, dataMB: dataMB, requests: always(requests), think: always(thinkNS), warmNS: rateWarmNS}
	bound := c.boundOf(1 - 1/float64(requests))
	c.population, c.countNS = int(crowding*bound), int64(rateRequests/bound*float64(second))
	played := c.run(run)
	return played.throughput(), float64(played.busyNS(balancerStation)) / float64(balancerCores*played.now)
}

var yuzBalancers = []balancer{layer4, yuz, layer7}

func yuzRateExperiment() sim.Experiment {
	return sim.Experiment{
		Name: "yuz-7", Source: "Yuz, figures 7 and 8",
		Title:  "most requests a second that a cluster carries, by requests of a session: L4 without persistence, Yuz, and an L7 proxy",
		Method: yuzMethod + " A fixed number of sessions, 1.3 times as many as it takes, pause for 1 s between requests.",
		Claims: []sim.Claim{
			{ID: "l4-falls", What: "L4: at 1 request of a session for at 50", Unit: "x", Paper: "decreases", Low: 1.7, High: 2.3, Fitted: true, Note: "It follows from the cost of session data, which is fitted."},
			{ID: "yuz-flat", What: "Yuz: at 1 request of a session for at 50", Unit: "x", Paper: "not affected", Low: 0.95, High: 1.05, Fitted: true, Note: "Data that stay at their server are taken to cost nothing."},
			{ID: "yuz-l4", What: "Yuz for L4, 20 requests of a session", Unit: "x", Paper: "about twice", Low: 1.7, High: 2.3, Fitted: true, Note: "The cost of session data is fitted to this."},
			{ID: "l4-l7", What: "L4 for L7, 50 requests of a session", Unit: "x", Paper: "L7 significantly lower", Low: 2, High: 3.5},
			{ID: "l7-busy", What: "L7: use of the balancer's processors at its most", Unit: "%", Paper: "the bottleneck", Low: 95, High: 100},
			{ID: "yuz-busy", What: "Yuz: use of the balancer's processors at its most", Unit: "%", Low: 0, High: 90},
		},
		Figures: []sim.Figure{{Title: "Most that a cluster carries", X: "requests of a session", Y: "requests a second", LogX: true}},
		Run:     runYuzRate,
	}
}

func runYuzRate(run *sim.Run) {
	sizes := []int{1, 2, 5, 10, 20, 50}
	rates, busy := map[string]float64{}, map[string]float64{}
	for i, requests := range sizes {
		for _, b := range yuzBalancers {
			rate, use := mostOf(run, b, requests, usualMB)
			run.Point(b.name, float64(requests), rate)
			rates[fmt.Sprint(b.name, requests)], busy[b.name] = rate, 100*use
		}
		run.Progress(int64(i+1), int64(len(sizes)))
	}
	run.Value("l4-falls", rates["l41"]/rates["l450"])
	run.Value("yuz-flat", rates["yuz1"]/rates["yuz50"])
	run.Value("yuz-l4", rates["yuz20"]/rates["l420"])
	run.Value("l4-l7", rates["l450"]/rates["l750"])
	run.Value("l7-busy", busy["l7"])
	run.Value("yuz-busy", busy["yuz"])
}

func yuzSizeExperiment() sim.Experiment {
	return sim.Experiment{
		Name: "yuz-11", Source: "Yuz, figure 11",
		Title:  "most requests a second that a cluster carries, by the size of session data",
		Method: "The model of yuz-7: a fixed number of sessions of ten requests. The flat lines of Yuz and L7 are assumed: data that stay at their server cost nothing.",
		Claims: []sim.Claim{
			{ID: "l4-l7-1mb", What: "L4 for L7, 1 MB", Unit: "x", Paper: "L4 higher", Low: 2, High: 3.5},
			{ID: "l4-l7-20mb", What: "L4 for L7, 20 MB", Unit: "x", Paper: "L4 lower", Low: 0, High: 1},
			{ID: "crossing", What: "size from which L7 carries more than L4", Unit: "MB", Paper: "10", Low: 8, High: 12, Fitted: true, Note: "The cost of session data is fitted to this."},
		},
		Figures: []sim.Figure{{Title: "Most that a cluster carries", X: "MB of session data", Y: "requests a second", LogX: true, LogY: true}},
		Run:     runYuzSize,
	}
}

func runYuzSize(run *sim.Run) {
	sizes := []float64{0.1, 0.5, 1, 2, 5, 10, 20, 50}
	rates := map[string][]float64{}
	for i, b := range yuzBalancers {
		for at, size := range sizes {
			if b.persistent && at > 0 {
				rates[b.name] = append(rates[b.name], rates[b.name][0])
			} else {
				rate, _ := mostOf(run, b, usualRequest, size)
				rates[b.name] = append(rates[b.name], rate)
			}
			run.Point(b.name, size, rates[b.name][at])
		}
		run.Progress(int64(i+1), int64(len(yuzBalancers)))
	}
	ratio := func(i int) float64 { return rates["l4"][i] / rates["l7"][i] }
	run.Value("l4-l7-1mb", ratio(2))
	run.Value("l4-l7-20mb", ratio(6))
	run.Value("crossing", crossing(sizes, ratio))
}

// crossing returns where a ratio that falls becomes 1, between two sizes on logarithmic axes; the last size, if it does not.
func crossing(sizes []float64, ratio func(i int) float64) float64 {
	for i := 1; i < len(sizes); i++ {
		if before, after := math.Log(ratio(i-1)), math.Log(ratio(i)); after < 0 {
			part := before / (before - after)
			return sizes[i-1] * math.Pow(sizes[i]/sizes[i-1], part)
		}
	}
	return sizes[len(sizes)-1]
}

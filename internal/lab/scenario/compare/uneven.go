// uneven: servers of unequal capacity under a load close to what all of them can do, as in the testbed of Spotlight.
package compare

import (
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// The experiment of Spotlight VI-B: half of the servers are larger, demand is close to the capacity of all, the sizes of requests
// are those of a data centre.
const (
	unevenServers = 8
	unevenDemand  = 1.0 // of the capacity of all servers
)

// Implementation constants: what fits on one machine. All servers together get less than one CPU.
const (
	smallCPUs  = 0.05
	largeCPUs  = 0.1
	workMean   = 5000 // microseconds of CPU of one request and bytes of its answer; their distribution is that of flow sizes
	smallLink  = 10e6 // bits a second
	largeLink  = 20e6
	linkShrink = 16 // flow sizes are divided by this

	compareShort  = 5 * time.Second // measurements of the short form
	compareWarmup = 5               // the first fifth of a measurement is not counted
	compareLong   = 3               // repetitions when a duration is given
)

// betterMin is by how much a policy that follows load must beat hash: the paper's 20 % less the noise of a machine that clients,
// load balancers and servers share. A short form, of one measurement for each policy, only expects it to be no worse.
const (
	betterMin      = 1.1
	betterMinShort = 1.0
)

var spotlightIntervals = []time.Duration{100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second}

// unevenServer reports whether server i (0-based) is a large one: they alternate.
func unevenServer[T any](i int, small, large T) T {
	if i%2 == 0 {
		return small
	}
	return large
}

// unevenCPUs are servers with unequal shares of CPU and requests that need it.
func unevenCPUs(run *scenario.Run) comparison {
	topology := world.Topology{LBs: 2, Servers: make([]world.ServerNode, unevenServers)}
	capacity := 0.0
	what := world.Setup{Name: "uneven", Topology: topology, Services: []*fleet.Service{scenario.CookieService(scenario.VIP4)}, Reports: true}
	for i := range topology.Servers {
		cpus := unevenServer(i, smallCPUs, largeCPUs)
		topology.Servers[i].App = &world.AppServer{CPUs: cpus, Shared: true}
		what.Weights = append(what.Weights, unevenServer(i, uint16(1), 2))
		capacity += cpus
	}
	work := data.SearchFlows().WithMean(workMean)
	return uneven(run, what, unevenDemand*capacity*1e6/workMean, "http://:80/load", traffic.Request{
		Path: "/work?cost=" + traffic.Drawn + "&bytes=" + traffic.Drawn, Draw: work,
	})
}

// unevenLinks are servers with links of unequal bandwidth and downloads from their nginx.
func unevenLinks(run *scenario.Run) comparison {
	topology := world.Topology{LBs: 2, Servers: make([]world.ServerNode, unevenServers)}
	capacity := 0.0
	what := world.Setup{Name: "uneven-links", Topology: topology, Services: []*fleet.Service{scenario.CookieService(scenario.VIP4)}, Reports: true}
	for i := range topology.Servers {
		topology.Servers[i].BitsPerSecond = unevenServer[int64](i, smallLink, largeLink)
		what.Weights = append(what.Weights, unevenServer(i, uint16(1), 2))
		capacity += float64(topology.Servers[i].BitsPerSecond) / 8
	}
	sizes := data.SearchFlows().Scaled(1.0 / linkShrink)
	return uneven(run, what, unevenDemand*capacity/sizes.Mean(), "http://:8080/status", traffic.Request{Path: world.PathBlob, Draw: sizes})
}

// uneven compares a few policies in the short form; applications tell their load at the endpoint.
func uneven(run *scenario.Run, what world.Setup, rate float64, endpoint string, request traffic.Request) comparison {
	run.Result.Measure("offered_per_second", rate)
	c := comparison{
		setup: what, length: run.Length(compareShort),
		contenders: append(plain(model.DispatchHash, model.DispatchP2C), contender{dispatch: model.DispatchAWRR, interval: 250 * time.Millisecond}, spotlight(0)),
		flows: func(target string, seed uint64, length time.Duration) []traffic.Flow {
			return []traffic.Flow{{
				Name: "request", Target: target, Arrivals: &traffic.Arrivals{Seed: seed, PerSecond: rate, Length: length},
				Requests: []traffic.Request{request},
			}}
		},
	}
	c.warmup = c.length / compareWarmup
	if run.Duration != 0 {
		c.repetitions = compareLong
	}
	asking, guessing := spotlight(0), spotlight(0)
	asking.endpoint, guessing.estimate = endpoint, true
	c.contenders = append(c.contenders, guessing, asking)
	return c
}

// spotlight is what Spotlight recommends, with a share of the updates lost.
func spotlight(loss float64) contender {
	return contender{dispatch: model.DispatchAWFD, classes: 4, interval: 250 * time.Millisecond, loss: loss}
}

func runUneven(run *scenario.Run)      { compareUneven(run, unevenCPUs(run)) }
func runUnevenLinks(run *scenario.Run) { compareUneven(run, unevenLinks(run)) }

// compareUneven measures all policies at every interval when a duration is given.
func compareUneven(run *scenario.Run, c comparison) {
	if run.Duration != 0 {
		c.contenders = append(c.contenders[len(c.contenders)-2:], plain(model.DispatchHash, model.DispatchMaglev, model.DispatchRR, model.DispatchWRR, model.DispatchWCMP, model.DispatchP2C, model.DispatchLeast)...)
		c.contenders = append(c.contenders, following(model.DispatchAWRR, 0, spotlightIntervals...)...)
		c.contenders = append(c.contenders, following(model.DispatchLCF, 0, spotlightIntervals...)...)
		for _, classes := range []int{1, 2, 4, 8} {
			c.contenders = append(c.contenders, following(model.DispatchAWFD, classes, spotlightIntervals...)...)
		}
	}
	compare(run, c)
	expectBetter(run, "p2c", "awrr-250ms", "awfd-m4-250ms", "awfd-m4-250ms-endpoint", "awfd-m4-250ms-estimate")
}

// expectBetter expects policies to beat hash.
func expectBetter(run *scenario.Run, policies ...string) {
	least := betterMin
	if run.Duration == 0 {
		least = betterMinShort
	}
	for _, policy := range policies {
		run.Result.Expect(better(run.Result, policy) >= least, "%s is only %.2f times as good as hash", policy, better(run.Result, policy))
	}
}

// The experiment of Spotlight VI-B2: shares of the updates that each load balancer loses, and what the throughput may lose by a
// fifth of them. The paper finds no change up to there; one run on a busy machine varies by more.
var spotlightLosses = []float64{0, 0.1, 0.2, 0.33}

const keptMin = 0.75

// runWeightLoss: weights that are lost on the way to load balancers cost little throughput. So there is a way: a controller weighs.
func runWeightLoss(run *scenario.Run) {
	c := unevenLinks(run)
	c.setup.Name, c.contenders = "weight-loss", plain(model.DispatchHash)
	c.setup.Topology.Management, c.setup.Topology.Controllers, c.setup.Topology.EtcdMembers, c.setup.Topology.Relays = true, 1, 1, true
	for _, loss := range spotlightLosses {
		c.contenders = append(c.contenders, spotlight(loss))
	}
	compare(run, c)
	whole := run.Result.Measurements[spotlight(0).name()+"_bytes_per_second"]
	for _, loss := range spotlightLosses[1:] {
		kept := run.Result.Measurements[spotlight(loss).name()+"_bytes_per_second"] / whole
		run.Result.Measure(fmt.Sprintf("throughput_ratio_at_loss_%g", 100*loss), kept)
		run.Result.Expect(loss > 0.2 || kept >= keptMin, "with %g %% of updates lost only %.2f of the throughput is left", 100*loss, kept)
	}
}

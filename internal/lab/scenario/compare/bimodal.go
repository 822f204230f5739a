// bimodal: one request in ten is slow, as in figure 8 of Cheetah.
package compare

import (
	"time"

	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// The experiment of Cheetah V-B, figure 8.
const (
	bimodalSlowShare = 0.1
	bimodalSlow      = 500 * time.Millisecond // on an idle server
	bimodalLoad      = 0.6                    // of the servers' capacity
)

// Implementation constants: the paper's 64 servers of one CPU each become servers of a twentieth.
const (
	bimodalServers = 16
	bimodalCPUs    = 0.05
	bimodalQuick   = 300 * time.Microsecond // of CPU: "a few hundred microseconds"
)

func runBimodal(run *scenario.Run) {
	topology := world.Topology{LBs: 2, Servers: make([]world.ServerNode, bimodalServers)}
	for i := range topology.Servers {
		topology.Servers[i].App = &world.AppServer{CPUs: bimodalCPUs, Shared: true}
	}
	slow := time.Duration(bimodalCPUs * float64(bimodalSlow))
	mean := bimodalSlowShare*slow.Seconds() + (1-bimodalSlowShare)*bimodalQuick.Seconds()
	rate := bimodalLoad * bimodalServers * bimodalCPUs / mean
	run.Result.Measure("offered_per_second", rate)
	work := data.Distribution{Points: []data.Point{
		{Value: float64(bimodalQuick.Microseconds()), UpTo: 1 - bimodalSlowShare}, {Value: float64(slow.Microseconds()), UpTo: 1},
	}}
	c := comparison{
		setup:  world.Setup{Name: "bimodal", Topology: topology, Services: []*fleet.Service{scenario.CookieService(scenario.VIP4)}, Reports: true},
		length: run.Length(compareShort),
		flows: func(target string, seed uint64, length time.Duration) []traffic.Flow {
			return []traffic.Flow{{
				Name: "work", Target: target, Arrivals: &traffic.Arrivals{Seed: seed, PerSecond: rate, Length: length},
				Requests: []traffic.Request{{Path: "/work?bytes=1000&cost=" + traffic.Drawn, Draw: work}},
			}}
		},
	}
	c.warmup = c.length / compareWarmup
	// The paper reports load 100 and 10 times a second.
	often, seldom := 10*time.Millisecond, 100*time.Millisecond
	c.contenders = append(plain(model.DispatchHash, model.DispatchRR, model.DispatchP2C), contender{dispatch: model.DispatchAWRR, interval: seldom},
		contender{dispatch: model.DispatchAWFD, classes: 4, interval: seldom})
	if run.Duration != 0 {
		c.repetitions = compareLong
		c.contenders = plain(model.DispatchHash, model.DispatchRR, model.DispatchP2C, model.DispatchLeast)
		c.contenders = append(c.contenders, following(model.DispatchAWRR, 0, often, seldom)...)
		c.contenders = append(c.contenders, following(model.DispatchAWFD, 4, often, seldom)...)
		c.contenders = append(c.contenders, following(model.DispatchLCF, 0, often, seldom)...)
	}
	compare(run, c)
	expectBetter(run, "p2c", "awrr-100ms", "awfd-m4-100ms")
}

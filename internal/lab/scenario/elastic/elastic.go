// Package elastic has the pool follow the load up and down, as in figure 9 of Cheetah, with real HTTP.
package elastic

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

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "elastic", Deadline: 4 * time.Minute, Do: runElastic,
		Promise: "the pool follows the load up and down: cookies break nothing, hash, Maglev and second chance in falling order",
	},
}

// The experiment of Cheetah V-C, figure 9.
const (
	elasticServers = 24
	elasticAdded   = 7
	elasticDrained = 8
	elasticRate    = 1500 // requests a second at the beginning and at the end
	elasticPeak    = 2500
	elasticLength  = 40 * time.Second
)

// Implementation constants: its share that fits on one machine with every policy at once, and the short form. Time is
// compressed as a whole, connections and events alike, so that as much happens during the life of a connection.
const (
	elasticScale = 16 // the paper's rates are divided by this
	elasticShort = 8 * time.Second
	elasticBytes = 2000
)

func runElastic(run *scenario.Run) {
	length := run.Length(elasticShort)
	compression := float64(elasticLength) / float64(length)
	compared := scenario.ElasticPolicies()
	topology := world.Topology{LBs: 2, Servers: make([]world.ServerNode, elasticServers+elasticAdded)}
	for i := range topology.Servers {
		topology.Servers[i].App = &world.AppServer{CPUs: 1, Sleep: true} // its answers only last: it does no work
	}
	what := world.Setup{Name: "all", Topology: topology, Services: compared}
	for i := range elasticServers {
		what.Members = append(what.Members, i+1)
	}
	run.Progress("elastic: %d -> %d -> %d requests/s for each of %d policies (those of the paper divided by %d), %v (time compressed %.2g times)",
		elasticRate/elasticScale, elasticPeak/elasticScale, elasticRate/elasticScale, len(compared), elasticScale, length, compression)
	run.Result.Measure("rate_divided_by", elasticScale)
	run.Result.Measure("time_compressed_by", compression)
	var ended []traffic.Connection
	var began time.Time
	outcome := run.Uncounted(what, func(t *world.Trial) {
		running := t.Traffic.Generate(elasticTraffic(compared, run.Seed, length, compression)...)
		began = time.Now()
		elasticEvents(t, began, length)
		running.Wait(t.Context)
		ended = running.Connections
	})
	judgeElastic(run, outcome, ended, began, length, compared)
}

// elasticTraffic are the same arrivals and durations for every policy.
func elasticTraffic(compared []*fleet.Service, seed uint64, length time.Duration, compression float64) []traffic.Flow {
	var flows []traffic.Flow
	for _, policy := range compared {
		flows = append(flows, traffic.Flow{
			Name: policy.Name, Target: policy.Target(),
			Arrivals: &traffic.Arrivals{
				Seed: seed, PerSecond: elasticRate / elasticScale, Peak: elasticPeak / elasticScale, Length: length,
			},
			Requests: []traffic.Request{{
				Path: fmt.Sprintf("/hold?for=%s&bytes=%d", traffic.Drawn, elasticBytes), Bytes: elasticBytes,
				Draw: data.WebDurations().Scaled(1 / compression),
			}},
		})
	}
	return flows
}

// addedAt is when a server is added after the beginning, one by one while the load rises.
func addedAt(i int, length time.Duration) time.Duration {
	return length / 2 * time.Duration(i+1) / (elasticAdded + 1)
}

// drainedAt is when a server is drained, one by one while the load falls.
func drainedAt(i int, length time.Duration) time.Duration {
	return length/2 + length/2*time.Duration(i+1)/(elasticDrained+1)
}

// elasticEvents adds servers and drains others.
func elasticEvents(t *world.Trial, begin time.Time, length time.Duration) {
	for i := range elasticAdded {
		added := elasticServers + 1 + i
		t.AtTime(begin.Add(addedAt(i, length)), fmt.Sprintf("add server s%d", added), func() { t.Pool.AddServer(added); t.Rollout.Apply() })
	}
	for i := range elasticDrained {
		drained := 1 + i
		t.AtTime(begin.Add(drainedAt(i, length)), fmt.Sprintf("drain server s%d", drained), func() { t.Pool.Drain(drained); t.Rollout.Apply() })
	}
}

// judgeElastic reports every policy as a trial of its own and compares them.
func judgeElastic(run *scenario.Run, outcome world.Result, connections []traffic.Connection, began time.Time, length time.Duration, compared []*fleet.Service) {
	broken, balance := map[string]float64{}, map[string]float64{}
	run.Result.PerSecond = map[string][]scenario.Second{}
	for _, policy := range compared {
		one := world.Result{Name: policy.Name}
		for _, connection := range connections {
			if connection.Flow == policy.Name {
				one.Add(connection)
			}
		}
		cookie := policy.Affinity == model.AffinityCookie
		if cookie {
			one.Events, one.Counters, one.TCP = outcome.Events, outcome.Counters, outcome.TCP
			run.Unbroken(one)
		}
		run.Result.AddTrial(one, !cookie)
		run.Result.PerSecond[policy.Name] = perSecond(connections, began, policy.Name)
		broken[policy.Name] = 100 * float64(one.Broken) / float64(max(one.Attempted, 1))
		run.Result.Measure("broken_percent_"+policy.Name, broken[policy.Name])
		balance[policy.Name] = balanceOf(connections, policy.Name, began, length)
		run.Result.Measure("balance_"+policy.Name, balance[policy.Name])
		worst := 0.0
		for _, second := range run.Result.PerSecond[policy.Name] {
			worst = max(worst, 100*float64(second.Broken)/float64(max(second.Broken+second.Completed, 1)))
		}
		run.Result.Measure("broken_percent_worst_second_"+policy.Name, worst)
	}
	run.Result.Expect(broken["hash"] > broken["maglev"] && broken["maglev"] > broken["second-chance"],
		"hash broke %.3g %%, maglev %.3g %%, with second chance %.3g %%: not in that order",
		broken["hash"], broken["maglev"], broken["second-chance"])
	run.Result.Compare(scenario.Figure{What: "% broken with cookies", Paper: "0 (Cheetah, figure 9)", Here: broken["cookie"]})
	run.Result.Compare(scenario.Figure{What: "balance of connections, awrr / Maglev with second chance", Paper: "above 1 (Cheetah, figure 9)",
		Here: balance["cookie"] / balance["second-chance"], Why: "the paper compares with Beamer, and has 16 times as many connections"})
}

// perSecond counts the ends of a flow's connections by the second after begin. What ends before counts for the first.
func perSecond(connections []traffic.Connection, begin time.Time, flow string) []scenario.Second {
	var seconds []scenario.Second
	for _, one := range connections {
		if one.Flow != flow {
			continue
		}
		at := max(int(one.Ended.Sub(begin).Seconds()), 0)
		for len(seconds) <= at {
			seconds = append(seconds, scenario.Second{})
		}
		if one.Class == traffic.Completed {
			seconds[at].Completed++
		} else {
			seconds[at].Broken++
		}
	}
	return seconds
}

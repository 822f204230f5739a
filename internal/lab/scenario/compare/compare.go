// Package compare measures policies under the same load: one network, one pool of servers, the policy switched live from one measurement to
// the next, the same arrivals for each.
package compare

import (
	"fmt"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "bimodal", Deadline: 4 * time.Minute, Lengths: 50, Do: runBimodal,
		Promise: "one request in ten is slow: p2c and policies that follow load beat hash",
	},
	{
		Name: "choices", Deadline: 4 * time.Minute, Lengths: 60, Do: runChoices,
		Promise: "servers of unequal speed, other work that moves from one to the next: servers that accept or pass on beat hash",
	}, {
		Name: "even", Deadline: 4 * time.Minute, Lengths: 20, Do: runEven,
		Promise: "equal servers, equal work: rr at least halves the p99 of hash, and each server has as many requests as the next",
	}, {
		Name: "quic-full", Deadline: 4 * time.Minute, Lengths: 40, Do: runQUICFull,
		Promise: "more HTTP/3 requests than the servers can do: as many or more are done by turns as by hash",
	}, {
		Name: "quic-tail", Deadline: 4 * time.Minute, Lengths: 40, Do: runQUICTail,
		Promise: "HTTP/3 requests of unequal length close to the servers' capacity: rr, awrr and awfd beat hash",
	},
	{
		Name: "uneven", Deadline: 4 * time.Minute, Lengths: 200, Do: runUneven,
		Promise: "servers of unequal CPU: p2c and policies that follow load beat hash",
	},
	{
		Name: "uneven-links", Deadline: 4 * time.Minute, Lengths: 200, Do: runUnevenLinks,
		Promise: "servers of unequal bandwidth: p2c and policies that follow load beat hash",
	},
	{
		Name: "weight-loss", Deadline: 4 * time.Minute, Lengths: 60, Do: runWeightLoss,
		Promise: "a fifth of the updates of weights lost at each load balancer costs little throughput",
	},
}

// patience is how long a request may wait in an overloaded server before it counts as broken.
const patience = time.Minute

// A contender is a policy with its settings.
type contender struct {
	dispatch model.Dispatch
	classes  int           // awfd: m
	interval time.Duration // of load reports; 0: the policy follows none
	loss     float64       // share of the updates of weights that is lost on the way to each load balancer
	endpoint string        // that the application tells its load at; empty: the agent tells of its connections
	estimate bool          // nobody is asked: load balancers go by what they see (Spotlight V-D1)
	offers   *offers       // choices: how connections are offered, and what leads to who has accepted
}

// name is what results call it, such as "awfd-m4-250ms".
func (c contender) name() string {
	name := c.dispatch.String()
	if c.dispatch == model.DispatchAWFD {
		name += fmt.Sprintf("-m%d", c.classes)
	}
	if c.offers != nil {
		name += fmt.Sprintf("-%v-%v", c.offers.choices.Accept.Policy, c.offers.affinity)
	}
	if c.interval != 0 {
		name += fmt.Sprintf("-%v", c.interval)
	}
	if c.endpoint != "" {
		name += "-endpoint"
	}
	if c.estimate {
		name += "-estimate"
	}
	if c.loss != 0 {
		name += fmt.Sprintf("-lose%g", 100*c.loss)
	}
	return name
}

// following makes a contender of one policy at each interval.
func following(dispatch model.Dispatch, classes int, intervals ...time.Duration) []contender {
	var all []contender
	for _, interval := range intervals {
		all = append(all, contender{dispatch: dispatch, classes: classes, interval: interval})
	}
	return all
}

// plain makes contenders of policies that follow no load.
func plain(dispatches ...model.Dispatch) []contender {
	var all []contender
	for _, dispatch := range dispatches {
		all = append(all, contender{dispatch: dispatch})
	}
	return all
}

// A comparison is a list of contenders and the load that each of them is put under.
type comparison struct {
	setup       world.Setup
	contenders  []contender
	repetitions int           // of the whole list, each with arrivals of its own
	length      time.Duration // of the arrivals of one measurement
	warmup      time.Duration // at its beginning, which is not counted
	flows       func(target string, seed uint64, length time.Duration) []traffic.Flow
	meanwhile   func(t *world.Trial, begin time.Time) // what happens during a measurement; nil: nothing
	refuses     bool                                  // servers may refuse: that breaks no promise
}

// compare measures all contenders and adds a cell to the result for each measurement. Repetitions are interleaved, so that a
// change of the machine's own load meets all of them.
func compare(run *scenario.Run, c comparison) {
	if c.repetitions == 0 {
		c.repetitions = 1
	}
	total := c.repetitions * len(c.contenders)
	run.Progress("%s: %d measurements of %v", c.setup.Name, total, c.length)
	outcome := run.Uncounted(c.setup, func(t *world.Trial) {
		run.Result.Work = t.Servers.Work
		if c.setup.Services[0].Affinity == model.AffinityQUIC {
			t.Endpoints.AwaitHTTP3()
		}
		for repetition := range c.repetitions {
			for i := range c.contenders {
				one := c.contenders[(i+repetition)%len(c.contenders)]
				var cell scenario.Cell
				script.Checkf(script.Try(func() { cell = measure(t, c, one, run.Seed+uint64(repetition)) }), "%s", one.name())
				cell.Repetition = repetition + 1
				run.Result.Comparison = append(run.Result.Comparison, cell)
				run.Progress("%s: %d of %d: %-22s %7.1f/s, mean %6.0f ms, p50 %6.0f ms, p99 %6.0f ms, %d of %d broken", c.setup.Name, len(run.Result.Comparison),
					total, cell.Policy, cell.PerSecond, cell.MeanMS, cell.P50MS, cell.P99MS, cell.Broken, cell.Offered)
			}
		}
	})
	run.Result.AddTrial(outcome, false)
	if c.refuses {
		run.Result.Expect(outcome.Broken == outcome.BrokenBy[traffic.Refused], "connections broke otherwise than by a refusal: %v", outcome.BrokenBy)
	} else {
		run.Unbroken(outcome)
	}
	summarize(run)
}

// measure puts one contender under the load, from a pool without connections until there are none again.
func measure(t *world.Trial, c comparison, one contender, seed uint64) scenario.Cell {
	use(t, one)
	before := passedOn(t)
	running := t.Traffic.GeneratePatiently(patience, c.flows(t.Fleet.Target(), seed, c.length)...)
	begin := time.Now()
	if c.meanwhile != nil {
		c.meanwhile(t, begin)
	}
	running.Wait(t.Context)
	return scenario.Cell{
		Policy: one.name(), PassedOn: passedOn(t) - before,
		Completions: complete(running.Connections, len(t.Network.Servers), begin.Add(c.warmup), begin.Add(c.length)),
	}
}

// use switches every service of the trial to a contender.
func use(t *world.Trial, one contender) {
	for _, service := range t.Fleet.Services {
		service.Dispatch = one.dispatch
		service.Load = model.Load{Source: model.LoadUnset, Interval: model.Duration(one.interval), Endpoint: one.endpoint, Classes: uint8(one.classes)}
		service.Choices = model.Choices{}
		if service.Affinity != model.AffinityQUIC {
			service.Affinity = model.AffinityCookie
		}
		if one.offers != nil {
			service.Affinity, service.Choices = one.offers.affinity, one.offers.choices
		}
		if one.estimate {
			service.Load.Source = model.LoadEstimate
		}
	}
	t.Controllers.LoseWeights(one.loss)
	t.Rollout.Apply()
}

// summarize reports, for every contender, its medians over the repetitions and how many times better it is than hash: the
// median of the ratios in equal repetitions, above 1 where it is better.
func summarize(run *scenario.Run) {
	baseline := map[int]scenario.Cell{}
	byPolicy := map[string][]scenario.Cell{}
	for _, cell := range run.Result.Comparison {
		if cell.Policy == "hash" {
			baseline[cell.Repetition] = cell
		}
		byPolicy[cell.Policy] = append(byPolicy[cell.Policy], cell)
	}
	for policy, cells := range byPolicy {
		for name, value := range map[string]func(scenario.Cell) float64{
			"per_second": func(c scenario.Cell) float64 { return c.PerSecond }, "bytes_per_second": func(c scenario.Cell) float64 { return c.BytesPerSecond },
			"mean_ms": func(c scenario.Cell) float64 { return c.MeanMS }, "p50_ms": func(c scenario.Cell) float64 { return c.P50MS }, "p99_ms": func(c scenario.Cell) float64 { return c.P99MS },
		} {
			var values, ratios []float64
			for _, cell := range cells {
				values = append(values, value(cell))
				ratio := value(cell) / value(baseline[cell.Repetition])
				if strings.HasSuffix(name, "_ms") {
					ratio = 1 / ratio
				}
				ratios = append(ratios, ratio)
			}
			run.Result.Measure(policy+"_"+name, scenario.Median(values))
			run.Result.Measure(policy+"_"+name+"_ratio_to_hash", scenario.Median(ratios))
		}
	}
}

// better tells by which factor a policy is better than hash, in throughput or in completion time.
func better(r *scenario.Result, policy string) float64 {
	best := 0.0
	for _, name := range []string{"per_second", "bytes_per_second", "mean_ms", "p99_ms"} {
		best = max(best, r.Measurements[policy+"_"+name+"_ratio_to_hash"])
	}
	return best
}

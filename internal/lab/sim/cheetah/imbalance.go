package cheetah

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/algo/modulo"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// Figure 2b.
const (
	settled    = 60 * second // policies that follow loads forget how they began
	smallTable = 4096        // slots of a table that is not even: some servers have 8 of them, others 9
)

// imbalanceActive are the active connections, and for how long each is measured: the fewer, the cheaper.
var imbalanceActive = []struct {
	connections float64
	measured    int64 // ns
}{{20_000, 700 * second}, {connections, 300 * second}, {120_000, 200 * second}, {200_000, 150 * second}}

func imbalanceOfPolicies() sim.Experiment {
	const notByHash = "with a perfect hash the loads are Poisson: the largest of 468 is 25.6 % above the mean"
	return sim.Experiment{
		Name: "cheetah-2b", Source: "Cheetah, figure 2b",
		Title: "imbalance of the servers by active connections: hash, round robin, two choices, least loaded",
		Method: "468 servers, web-server durations, Poisson arrivals. Imbalance is max/mean - 1 of the servers' connections, averaged over time. Loads are known " +
			"exactly. Hash is perfect unless a table is named. Least loaded is the least of all 468, as in the paper; the data plane's least knows the least loaded of 16 groups.",
		Claims: []sim.Claim{
			{ID: "hash-70k", What: "hash, 70K connections", Unit: "%", Paper: "30 %", Low: 24, High: 26, Known: true, Note: notByHash + ". A table of 4096 slots gives the paper's value."},
			{ID: "hash-4096-70k", What: "hash with a table of 4096 slots, 70K connections", Unit: "%", Paper: "30 %", Low: 27, High: 31},
			{ID: "rr-70k", What: "round robin, 70K connections", Unit: "%", Low: 21.5, High: 23},
			{ID: "p2c-70k", What: "two choices, 70K connections", Unit: "%", Low: 2.2, High: 2.5},
			{ID: "least-70k", What: "least loaded, 70K connections", Unit: "%", Low: 0.3, High: 0.45},
			{ID: "least-groups-70k", What: "the data plane's least, 70K connections", Unit: "%", Low: 0.55, High: 0.75},
			{ID: "hash-20k", What: "hash, 20K connections", Unit: "%", Low: 46, High: 50},
			{ID: "rr-20k", What: "round robin, 20K connections", Unit: "%", Low: 40, High: 45},
			{ID: "p2c-20k", What: "two choices, 20K connections", Unit: "%", Low: 7.5, High: 8.5},
			{ID: "least-20k", What: "least loaded, 20K connections", Unit: "%", Low: 1.15, High: 1.35},
			{ID: "hash-by-rr", What: "imbalance, hash to round robin, 70K connections", Unit: "x", Paper: "1.2x", Low: 1.04, High: 1.21},
			{ID: "hash-by-p2c", What: "imbalance, hash to two choices, 70K connections", Unit: "x", Paper: "10x", Low: 9.6, High: 11.8},
			{ID: "hash-by-least", What: "imbalance, hash to least loaded, 70K connections", Unit: "x", Paper: "40x", Low: 53, High: 87, Known: true,
				Note: "exact least loaded keeps all servers within a connection or two of each other; looking at a few of them gives the paper's value"},
			{ID: "hash-by-least-groups", What: "imbalance, hash to the data plane's least, 70K connections", Unit: "x", Paper: "40x", Low: 36, High: 44},
		},
		Figures: []sim.Figure{{Title: "imbalance of 468 servers", X: "active connections", Y: "max/mean - 1, time average, %", LogY: true}},
		Run:     runImbalance,
	}
}

// contender is a policy of figure 2b.
type contender struct {
	id, series string
	warmUp     int64 // ns, from an equilibrium of connections without history of the policy to its own
	config     func(c *flows.Config)
	only       float64 // active connections; 0: all
}

// contenders are new ones: they remember connections.
func contenders(seed uint64) []contender {
	shares := dispatch.Alike(dispatch.Everybody(servers))
	round, _ := dispatch.Rounds(shares)
	return []contender{
		{id: "hash", series: "hash", config: func(c *flows.Config) { c.Table = &flows.Table{Owners: dispatch.Everybody(servers)} }},
		{id: "hash-4096", series: "hash, 4096 slots", only: connections, config: func(c *flows.Config) {
			c.Table = &flows.Table{Owners: dispatch.Servers(modulo.Table(smallTable, dispatch.Alike(dispatch.Everybody(servers))))}
		}},
		{id: "rr", series: "round robin", warmUp: longestLife, config: func(c *flows.Config) { c.Chooser = &dispatch.Turns{Round: dispatch.Everybody(servers)} }},
		{id: "p2c", series: "two choices", warmUp: settled, config: func(c *flows.Config) {
			c.Chooser = &dispatch.TwoChoices{Round: round, Numbers: random.Keyed(seed, "p2c")}
		}},
		{id: "least", series: "least loaded", warmUp: settled, config: func(c *flows.Config) { c.Chooser = dispatch.NewFewest(servers) }},
		{id: "least-groups", series: "least of 16 groups", only: connections, warmUp: settled, config: func(c *flows.Config) { c.Chooser = dispatch.NewLeast(shares) }},
	}
}

func (c *contender) runsAt(active float64) bool { return c.only == 0 || c.only == active }

func runImbalance(run *sim.Run) {
	progress := meter{run: run}
	for _, active := range imbalanceActive {
		for _, c := range contenders(run.Seed) {
			if c.runsAt(active.connections) {
				progress.expect(worldOf(run.Seed, active.connections).Rate, c.warmUp+active.measured)
			}
		}
	}
	for _, active := range imbalanceActive {
		uneven := map[string]float64{} // percent
		for _, c := range contenders(run.Seed) {
			if !c.runsAt(active.connections) {
				continue
			}
			measured := c.imbalance(&progress, active.connections, active.measured)
			uneven[c.id] = 100 * measured
			run.Point(c.series, active.connections, uneven[c.id])
			if c.only > 0 || active.connections <= connections {
				run.Value(fmt.Sprintf("%s-%.0fk", c.id, active.connections/1000), uneven[c.id])
			}
		}
		if active.connections == connections {
			for _, other := range []string{"rr", "p2c", "least", "least-groups"} {
				run.Value("hash-by-"+other, uneven["hash"]/uneven[other])
			}
		}
	}
}

// imbalance returns the time average of max/mean - 1 under a policy.
func (c *contender) imbalance(progress *meter, active float64, measuredNS int64) float64 {
	config := worldOf(progress.run.Seed, active)
	config.Imbalance = true
	c.config(&config)
	w := flows.New(config)
	w.Fill()
	progress.runUntil(w, c.warmUp)
	w.Reset()
	progress.runUntil(w, c.warmUp+measuredNS)
	return w.Stats().Imbalance
}

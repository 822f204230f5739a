package queueing

import (
	"math"

	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// Cheetah V-B, figure 8: one request in ten takes 500 ms, the others "a few hundred microseconds".
const (
	bimodalLoad    = 0.6
	bimodalPart    = 0.1
	bimodalLongNS  = 500 * millisecond
	bimodalShortNS = 300 * microsecond
	bimodalCountNS = 80 * second
)

// bimodalFarm is the world of figure 8.
func bimodalFarm(seed uint64) *farm {
	key := random.Keyed(seed, "work")
	return &farm{
		servers: cheetahServers, load: bimodalLoad, mean: bimodalPart*float64(bimodalLongNS) + (1-bimodalPart)*float64(bimodalShortNS),
		work: func(flow uint64) int64 {
			if key.Float64At(flow) < bimodalPart {
				return bimodalLongNS
			}
			return bimodalShortNS
		},
		warmNS: cheetahWarmNS, countNS: bimodalCountNS,
	}
}

func bimodalExperiment() sim.Experiment {
	return sim.Experiment{
		Name: "cheetah-8", Source: "Cheetah, figure 8",
		Title: "99th percentile of completion time when one request in ten takes 500 ms, by policy and by how often servers report",
		Method: "64 single-core servers that share their processor among all requests, load 0.6: 764 requests a second, Poisson. One in ten takes 500 ms of CPU, the " +
			"others 300 us. p2c and least by reported load add to a report what a connection brings on average, for each since, as Ballast does. rr by eight counters, one for each core of the paper's load balancer. All servers report together how busy they were; reports are used at once. Ratios are p99 of hash for that of the policy: above 1 is " +
			"better than hash.",
		Claims:  bimodalClaims(),
		Figures: []sim.Figure{{Title: "One request in ten takes 500 ms", X: "ms between reports", Y: "p99 (s)", LogX: true, LogY: true}},
		Run:     runBimodal,
	}
}

func bimodalClaims() []sim.Claim {
	const byReports, byConnections = " by reported load", " by open connections, which the balancer counts: no reports"
	return []sim.Claim{
		{ID: "awrr-100hz", What: "awrr by one counter at 100 Hz", Unit: "x", Paper: "2.2", Low: 1.7, High: 2.3},
		{ID: "awrr-10hz", What: "awrr by one counter at 10 Hz", Unit: "x", Paper: "similar performance at 10Hz", Low: 1.7, High: 2.3},
		{ID: "awrr-8-100hz", What: "awrr by eight counters at 100 Hz", Unit: "x", Paper: "2.2", Low: 1.3, High: 1.7, Known: true,
			Note: "Tested with one counter (1.75x): eight that know nothing of each other spread the 7.6 requests between two reports hardly better than chance. " +
				"The paper does not say that its eight cores share AWRR's; figure 6 needs eight that do not."},
		{ID: "awrr-8-10hz", What: "awrr by eight counters at 10 Hz", Unit: "x", Low: 1.3, High: 1.7},
		{ID: "p2c-100hz", What: "p2c" + byReports + " at 100 Hz", Unit: "x", Paper: "1.9", Low: 1.6, High: 2.2},
		{ID: "p2c-10hz", What: "p2c" + byReports + " at 10 Hz", Unit: "x", Paper: "similar performance at 10Hz", Low: 1.5, High: 2.2},
		{ID: "least-reported-100hz", What: "least" + byReports + " at 100 Hz", Unit: "x", Low: 4, High: 6},
		{ID: "least-reported-10hz", What: "least" + byReports + " at 10 Hz", Unit: "x", Low: 1.8, High: 2.5},
		{ID: "rr", What: "rr", Unit: "x", Paper: "very high FCTs", Low: 0.85, High: 1.4},
		{ID: "least-10hz", What: "everything to the server of the least reported load, 10 Hz", Unit: "x", Paper: "performs poorly", Low: 0, High: 0.9,
			Note: "One server gets all 76 requests between two reports, with 3.8 s of work in them."},
		{ID: "least-16", What: "the same among 16 servers: against their hash", Unit: "x", Low: 0.8, High: 1.3,
			Note: "19 requests between two reports instead of 76, no better and no worse than hash: a small pool does not show the collapse."},
		{ID: "least-100hz", What: "everything to the server of the least reported load, 100 Hz", Unit: "x", Paper: "performs poorly", Low: 1.3, High: 1.9, Known: true,
			Note: "In 10 ms the one server gets 7.6 requests, less than one of them long: better than chance. It collapses when reports are rarer, or later."},
		{ID: "lcf-10hz", What: "lcf at 10 Hz: those share that report the lowest load", Unit: "x", Low: 1.3, High: 2.2},
		{ID: "p2c-open", What: "p2c" + byConnections, Unit: "x", Low: 2, High: 2.8},
		{ID: "least-open", What: "least" + byConnections, Unit: "x", Low: 3.5, High: 6},
		{ID: "hash-p99", What: "p99 of hash", Unit: "s", Low: 0.5, High: math.Inf(1)},
	}
}

// bimodalCase is a policy of figure 8.
type bimodalCase struct {
	series string
	build  func(interval int64) maker
	claims map[int64]string // by interval
}

// bimodalIntervals are those of the figure, in ns.
var bimodalIntervals = []int64{10 * millisecond, 20 * millisecond, 50 * millisecond, 100 * millisecond, 200 * millisecond, 500 * millisecond}

// bimodalStatic are policies without reports.
var bimodalStatic = []struct {
	series, claim string
	build         maker
}{{"rr", "rr", roundRobin(cheetahCounters)}, {"p2c, open connections", "p2c-open", twoChoices}, {"least, open connections", "least-open", least}}

var bimodalCases = []bimodalCase{
	{"awrr, 1 counter", awrrBy(1), map[int64]string{10 * millisecond: "awrr-100hz", 100 * millisecond: "awrr-10hz"}},
	{"awrr, 8 counters", awrrBy(cheetahCounters), map[int64]string{10 * millisecond: "awrr-8-100hz", 100 * millisecond: "awrr-8-10hz"}},
	{"p2c, reported", twoReported, map[int64]string{10 * millisecond: "p2c-100hz", 100 * millisecond: "p2c-10hz"}},
	{"least, reported", leastReported, map[int64]string{10 * millisecond: "least-reported-100hz", 100 * millisecond: "least-reported-10hz"}},
	{"lowest report", lowestReported, map[int64]string{10 * millisecond: "least-100hz", 100 * millisecond: "least-10hz"}},
	{"lcf", leastCongested, map[int64]string{100 * millisecond: "lcf-10hz"}},
}

func awrrBy(counters int) func(interval int64) maker {
	return func(interval int64) maker { return weighted(interval, counters) }
}

func runBimodal(run *sim.Run) {
	m := &bimodal{run: run, world: bimodalFarm(run.Seed)}
	hashed := m.p99(hash)
	run.Value("hash-p99", hashed)
	m.flat("hash", hashed)
	for _, static := range bimodalStatic {
		value := m.p99(static.build)
		run.Value(static.claim, hashed/value)
		m.flat(static.series, value)
	}
	for _, c := range bimodalCases {
		for _, interval := range bimodalIntervals {
			value := m.p99(c.build(interval))
			run.Point(c.series, float64(interval/millisecond), value)
			if claim, ok := c.claims[interval]; ok {
				run.Value(claim, hashed/value)
			}
		}
	}
	m.world.servers = 16
	run.Value("least-16", m.p99(hash)/m.p99(lowestReported(100*millisecond)))
}

// bimodal is a run of the experiment.
type bimodal struct {
	run   *sim.Run
	world *farm
	done  int64
}

// p99 of a policy, in seconds.
func (m *bimodal) p99(build maker) float64 {
	played := m.world.run(m.run, build(m.run.Seed, m.world.servers))
	m.done++
	m.run.Progress(m.done, int64(3+len(bimodalStatic)+len(bimodalCases)*len(bimodalIntervals)))
	return Quantile(played.Times(), 0.99)
}

// flat draws what does not depend on reports.
func (m *bimodal) flat(series string, value float64) {
	for _, interval := range bimodalIntervals {
		m.run.Point(series, float64(interval/millisecond), value)
	}
}

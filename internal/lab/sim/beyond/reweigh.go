package beyond

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/algo/capacity"
	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/algo/wcmp"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

const (
	reweighServers     = 96 // of two sizes
	reweighConnections = 20_000
	reweighUnit        = 200 // connections that a server of size 1 can serve
	reweighShorter     = 0.1 // of web-server durations: else there are more tables to fill than time
	reweighSlots       = 1021
	reweighClasses     = 4
	reweighSeconds     = 30
)

func reweighExperiment() sim.Experiment {
	return sim.Experiment{
		Name: "beyond-reweigh", Source: source, Seeds: 3, Extra: true,
		Title: "AWFD weights that follow the load every 10 ms: what it does for evenness, and what it breaks without cookies",
		Method: "96 servers, half of them of twice the size, 20000 connections of a tenth of web-server durations; load 0.7. Spotlight's weights of four classes, known " +
			"at once. With cookies the weights choose for new connections only; without, they fill a table of 1021 slots.",
		Claims: []sim.Claim{
			{ID: "cookie-10ms", What: "broken with cookies, weights every 10 ms", Unit: "%", Low: 0, High: 0},
			{ID: "maglev-10ms", What: "broken without, Maglev, weights every 10 ms", Unit: "%", Low: 15, High: 60},
			{ID: "wcmp-10ms", What: "broken without, WCMP, weights every 10 ms", Unit: "%", Low: 25, High: 80},
			{ID: "maglev-1s", What: "broken without, Maglev, weights every second", Unit: "%", Low: 8, High: 40},
			{ID: "uneven-10ms", What: "max/mean of connections per size, cookies, weights every 10 ms", Unit: "x", Low: 1.05, High: 1.13},
			{ID: "uneven-1s", What: "max/mean of connections per size, cookies, weights every second", Unit: "x", Low: 1.07, High: 1.16},
			{ID: "uneven-static", What: "max/mean of connections per size, cookies, weights that are the sizes", Unit: "x", Low: 1.17, High: 1.24},
		},
		Run: runReweigh,
	}
}

// reweighCase is one world of the experiment.
type reweighCase struct {
	intervalNS int64 // 0: never
	table      func(slots uint32, shares []model.Share) []uint16
	broken     string // claims
	uneven     string
}

func runReweigh(run *sim.Run) {
	cases := []reweighCase{
		{intervalNS: 10 * millisecond, broken: "cookie-10ms", uneven: "uneven-10ms"},
		{intervalNS: second, uneven: "uneven-1s"},
		{uneven: "uneven-static"},
		{intervalNS: 10 * millisecond, table: maglev.Table, broken: "maglev-10ms"},
		{intervalNS: 10 * millisecond, table: wcmp.Table, broken: "wcmp-10ms"},
		{intervalNS: second, table: maglev.Table, broken: "maglev-1s"},
	}
	for i, c := range cases {
		stats, uneven := c.play(run, int64(i), int64(len(cases)))
		if c.broken != "" {
			run.Share(c.broken, stats.Broken, stats.Ended)
		}
		if c.uneven != "" {
			run.Value(c.uneven, uneven)
		}
	}
}

// play runs one world: the longest life first, then what is measured. before of the cases were run already. uneven is the average of max/mean of
// connections per size.
func (c *reweighCase) play(run *sim.Run, before, cases int64) (stats flows.Stats, uneven float64) {
	lives, longest := webDurations()
	lives, longest = lives.Scaled(reweighShorter), int64(float64(longest)*reweighShorter)
	config := flows.Config{Seed: run.Seed, Servers: reweighServers, Durations: lives, Rate: reweighConnections / lives.Mean()}
	sizes := weights(nil)
	classes := &dispatch.Classes{Classes: awfd.NewClasses(sizes), Numbers: random.Keyed(run.Seed, "choices")}
	if c.table == nil {
		config.Chooser = classes
	} else {
		config.Table = &flows.Table{Owners: dispatch.Servers(c.table(reweighSlots, sizes))}
	}
	w := flows.New(config)
	w.Fill()
	step := max(c.intervalNS, 10*millisecond)
	end, samples := longest+reweighSeconds*second, 0
	for now := int64(0); now < end; now += step {
		if w.RunUntil(now); c.intervalNS != 0 {
			if now := weights(w.Loads()); !slices.Equal(now, sizes) {
				sizes = now
				c.apply(w, classes, now)
			}
		}
		if now <= longest {
			w.Reset()
		} else {
			uneven, samples = uneven+unevenness(w.Loads()), samples+1
		}
		events := int64(2 * w.Rate())
		run.Progress((before*end+now)/second*events, cases*end/second*events)
	}
	return w.Stats(), uneven / float64(samples)
}

func (c *reweighCase) apply(w *flows.World, classes *dispatch.Classes, shares []model.Share) {
	if c.table == nil {
		classes.Classes = awfd.NewClasses(shares)
		return
	}
	for cell, server := range dispatch.Servers(c.table(reweighSlots, shares)) {
		w.Place(cell, server)
	}
}

// size is how much a server can do: those with odd numbers are twice as large.
func size(server int) float64 { return float64(1 + server%2) }

// weights are those of AWFD for what servers have left beside their connections; without loads, for idle ones.
func weights(loads []int32) []model.Share {
	available := make([]awfd.Available, reweighServers)
	for s := range available {
		permille := 0.0
		if loads != nil {
			permille = min(1000*float64(loads[s])/(reweighUnit*size(s)), 1000)
		}
		available[s] = awfd.Available{ID: uint16(s + 1), Capacity: capacity.FromCPU(uint16(permille), size(s), 1)}
	}
	return awfd.Weights(available, reweighClasses)
}

func unevenness(loads []int32) float64 {
	most, sum, sizes := 0.0, 0.0, 0.0
	for s, load := range loads {
		most = max(most, float64(load)/size(s))
		sum, sizes = sum+float64(load), sizes+size(s)
	}
	return most * sizes / sum
}

package spotlight

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/algo/modulo"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/model"
)

const (
	testbedLoad  = 1.0   // of what is asked for: "close to the maximum capacity of the service"
	testbedSlots = 65521 // "a hash table of size 64K"
	// fittedOverhead is what makes hosts lose half of their rate at 100 open requests. Spotlight only says that "with hundreds of open
	// connections, the CPU becomes the bottleneck and the capacity of the pool drops".
	fittedOverhead = 1.0 / 100
	fittedLoad     = 0.8
)

const testbedMethod = "16 hosts, half with 3 Gbit/s and half with 2, divided evenly among their requests. Poisson requests for 60 s, as many as the hosts can just serve, to " +
	"two load balancers in turn; sizes of web-search flows, times 10. Hosts report mean open requests once in an interval; weights are A = Q/q. "

var testbedIntervals = []int64{250, 500, 1000} // ms

// trial has a run's settings serve the same requests.
type trial struct {
	run         *sim.Run
	base        setting
	games, done int
	requests    int64
}

func newTrial(run *sim.Run, games int) *trial {
	return &trial{run: run, base: setting{seed: run.Seed, load: testbedLoad}, games: games}
}

// measure is the outcome of a setting.
func (t *trial) measure(change func(*setting)) outcome {
	c := t.base
	change(&c)
	bed := newTestbed(c)
	result := bed.run()
	t.done++
	t.requests += int64(bed.number)
	t.run.Progress(t.requests, t.requests*int64(t.games)/int64(t.done))
	return result
}

func (t *trial) ecmp() outcome {
	return t.measure(func(c *setting) { c.table = modulo.Table(testbedSlots, dispatch.Alike(dispatch.Everybody(hosts))) })
}

func (t *trial) consistent() outcome {
	return t.measure(func(c *setting) { c.table = maglev.Table(testbedSlots, dispatch.Alike(dispatch.Everybody(hosts))) })
}

func (t *trial) lcf(ms int64) outcome {
	return t.measure(func(c *setting) { c.dispatch, c.intervalNS = model.DispatchLCF, ms*millisecond })
}

func (t *trial) awfd(m uint8, ms int64, loss float64) outcome {
	return t.measure(func(c *setting) {
		c.dispatch, c.classes, c.intervalNS, c.loss = model.DispatchAWFD, m, ms*millisecond, loss
	})
}

// by is by how much percent a is more than b.
func by(a, b float64) float64 { return 100 * (a/b - 1) }

func figure12() sim.Experiment {
	return sim.Experiment{
		Name: "spotlight-12", Source: source("figure 12"),
		Title: "throughput of the test bed by how requests are dispatched",
		Method: testbedMethod + "Fitted: with overhead, a host with n open requests has 1/(1 + n/100) of its rate, at 0.8 of the requests. The paper measured a test bed, so the order " +
			"is what is judged.",
		Claims: []sim.Claim{
			{ID: "ecmp", What: "ECMP", Unit: "Gbit/s", Paper: "< 20 of 40", Low: 34, High: 38, Known: true,
				Note: "Not known. The paper says that its hosts lose capacity with hundreds of open connections; these do not."},
			{ID: "consistent", What: "consistent hashing, more than ECMP", Unit: "%", Paper: "similar", Low: -2, High: 2},
			{ID: "awfd-4-2", What: "AWFD with m = 4, more than with m = 2, the least of all intervals", Unit: "%", Paper: "a larger m helps", Low: 0, High: infinite},
			{ID: "awfd-4", What: "AWFD with m = 4, more than ECMP, the least of all intervals", Unit: "%", Paper: "consistently more", Low: 0, High: infinite},
			{ID: "awfd-2-500", What: "AWFD with m = 2 and 500 ms, more than ECMP", Unit: "%", Paper: "consistently more", Low: 0, High: infinite},
			{ID: "awfd-2-1000", What: "AWFD with m = 2 and 1 s, more than ECMP", Unit: "%", Paper: "consistently more", Low: -3, High: 3, Known: true,
				Note: "Not known. With m = 2 only the few hosts with less than twice the shortest queue get the 330 requests of a second. That costs about what ECMP loses on the slow " +
					"hosts."},
			{ID: "awfd-4-500", What: "AWFD with m = 4 and 500 ms, more than ECMP", Unit: "%", Paper: "22 %", Low: 4, High: 11, Known: true,
				Note: "The test bed's hosts lose capacity when they have hundreds of open connections, which costs ECMP most; these do not. Tested by hosts with such overhead, fitted: 15 %."},
			{ID: "awfd-4-500-overhead", What: "the same, when hosts have overhead (fitted)", Unit: "%", Paper: "22 %", Low: 10, High: 30, Fitted: true, Note: "The overhead is chosen for this."},
			{ID: "lcf-1000", What: "LCF with 1 s, more than ECMP", Unit: "%", Paper: "worst", Low: -infinite, High: 0},
			{ID: "lcf-250", What: "LCF with 250 ms, more than ECMP", Unit: "%", Paper: "worst", Low: 2, High: 12, Known: true,
				Note: "Not known. A host that gets all requests of 250 ms is busy for seconds, then left alone: no host is idle. That costs completion time, and throughput only where " +
					"open connections cost capacity."},
		},
		Figures: []sim.Figure{{Title: "Spotlight figure 12", X: "update interval (ms)", Y: "throughput (Gbit/s)"}},
		Run:     runFigure12,
	}
}

func runFigure12(run *sim.Run) {
	t := newTrial(run, 4+3*len(testbedIntervals))
	equal, consistent := t.ecmp().gbps, t.consistent().gbps
	run.Value("ecmp", equal)
	run.Value("consistent", by(consistent, equal))
	finer, four := infinite, infinite
	for _, ms := range testbedIntervals {
		lcf, awfd2, awfd4 := t.lcf(ms).gbps, t.awfd(2, ms, 0).gbps, t.awfd(4, ms, 0).gbps
		finer, four = min(finer, by(awfd4, awfd2)), min(four, by(awfd4, equal))
		if ms >= 500 {
			run.Value(fmt.Sprint("awfd-2-", ms), by(awfd2, equal))
		}
		if ms == 500 {
			run.Value("awfd-4-500", by(awfd4, equal))
		} else {
			run.Value(fmt.Sprint("lcf-", ms), by(lcf, equal))
		}
		for _, point := range []struct {
			series string
			y      float64
		}{{"ECMP", equal}, {"consistent hashing", consistent}, {"LCF", lcf}, {"AWFD, m = 2", awfd2}, {"AWFD, m = 4", awfd4}} {
			run.Point(point.series, float64(ms), point.y)
		}
	}
	run.Value("awfd-4-2", finer)
	run.Value("awfd-4", four)
	t.base.overhead, t.base.load = fittedOverhead, fittedLoad
	run.Value("awfd-4-500-overhead", by(t.awfd(4, 500, 0).gbps, t.ecmp().gbps))
}

func figure13() sim.Experiment {
	return sim.Experiment{
		Name: "spotlight-13", Source: source("figure 13"),
		Title:  "mean completion time of the test bed's requests by polling interval",
		Method: "The test bed of spotlight-12.",
		Claims: []sim.Claim{
			{ID: "awfd-4-250", What: "AWFD with m = 4 and 250 ms, sooner than ECMP", Unit: "%", Paper: "20 to 30 %", Low: 20, High: 85},
			{ID: "awfd-4-500", What: "AWFD with m = 4 and 500 ms, sooner than ECMP", Unit: "%", Paper: "20 to 30 %", Low: 20, High: 75},
			{ID: "awfd-4-1000", What: "AWFD with m = 4 and 1 s, sooner than ECMP", Unit: "%", Paper: "20 to 30 %", Low: 0, High: 40},
			{ID: "lcf-250", What: "LCF with 250 ms, sooner than ECMP", Unit: "%", Paper: "37 %", Low: 25, High: 55},
			{ID: "lcf-1000", What: "LCF with 1 s, sooner than ECMP", Unit: "%", Paper: "vanishes", Low: -infinite, High: 0},
			{ID: "awfd-lcf-250", What: "AWFD with m = 4, sooner than LCF, both with 250 ms", Unit: "%", Paper: "LCF is better", Low: 30, High: 65, Known: true,
				Note: "Not tested: LCF gives the 80 requests of 250 ms to one host, and the paper says that its controller could not keep up with AWFD at 250 ms (VI-B1)."},
		},
		Figures: []sim.Figure{{Title: "Spotlight figure 13", X: "update interval (ms)", Y: "mean completion time (s)"}},
		Run: func(run *sim.Run) {
			t := newTrial(run, 2+2*len(testbedIntervals))
			equal, consistent := t.ecmp().seconds, t.consistent().seconds
			for _, ms := range testbedIntervals {
				lcf, awfd := t.lcf(ms).seconds, t.awfd(4, ms, 0).seconds
				run.Value(fmt.Sprint("awfd-4-", ms), -by(awfd, equal))
				switch ms {
				case 250:
					run.Value("awfd-lcf-250", -by(awfd, lcf))
					fallthrough
				case 1000:
					run.Value(fmt.Sprint("lcf-", ms), -by(lcf, equal))
				}
				x := float64(ms)
				run.Point("ECMP", x, equal)
				run.Point("consistent hashing", x, consistent)
				run.Point("LCF", x, lcf)
				run.Point("AWFD, m = 4", x, awfd)
			}
		},
	}
}

var figure14Losses = []int{0, 5, 10, 20, 33, 50} // percent

func figure14() sim.Experiment {
	return sim.Experiment{
		Name: "spotlight-14", Source: source("figure 14"),
		Title:  "throughput of the test bed when weights get lost on their way to load balancers",
		Method: "The test bed of spotlight-12, AWFD with m = 4 and 250 ms. A message has one weight for one load balancer, which keeps the old one when it is lost.",
		Claims: []sim.Claim{
			{ID: "loss-10", What: "throughput with 10 % loss, more than without", Unit: "%", Paper: "marginally less", Low: -1, High: 1},
			{ID: "loss-20", What: "throughput with 20 % loss, more than without", Unit: "%", Paper: "negligible under 20 %", Low: -1, High: 1},
			{ID: "ecmp-20", What: "throughput with 20 % loss, more than ECMP", Unit: "%", Paper: "more", Low: 2, High: infinite},
			{ID: "loss-33", What: "throughput with 33 % loss, more than without", Unit: "%", Paper: "significantly less", Low: -2, High: 0.5, Known: true,
				Note: "Tested by completion time, which is longer: a lost weight is 250 ms older than it should be. That costs completion time, hardly throughput, unless open connections cost capacity."},
		},
		Figures: []sim.Figure{
			{Name: "throughput", Title: "Spotlight figure 14", X: "lost messages (%)", Y: "throughput (Gbit/s)"},
			{Name: "completion", Title: "the same, completion time", X: "lost messages (%)", Y: "mean completion time (s)"},
		},
		Run: func(run *sim.Run) {
			t := newTrial(run, 1+len(figure14Losses))
			equal, whole := t.ecmp(), outcome{}
			for _, loss := range figure14Losses {
				measured := t.awfd(4, 250, float64(loss)/100)
				switch loss {
				case 0:
					whole = measured
				case 20:
					run.Value("ecmp-20", by(measured.gbps, equal.gbps))
					fallthrough
				case 10, 33:
					run.Value(fmt.Sprint("loss-", loss), by(measured.gbps, whole.gbps))
				}
				x := float64(loss)
				run.Point("throughput/AWFD, m = 4", x, measured.gbps)
				run.Point("throughput/ECMP", x, equal.gbps)
				run.Point("completion/AWFD, m = 4", x, measured.seconds)
				run.Point("completion/ECMP", x, equal.seconds)
			}
		},
	}
}

package beyond

import (
	"github.com/ballast-lb/ballast/internal/algo/buckets"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

const (
	rackServers     = 1000
	rackSize        = 40
	rackBuckets     = 100 // of each server
	rackConnections = 200_000
	rackLostAt      = 10 * second
	rackNoticed     = second // after a server is lost, its health check has failed often enough
	rackBackAt      = 60 * second
	rackRetrySecond = 1.0 // until a client tries again, on average
	rackStep        = 10 * millisecond
)

func rackExperiment() sim.Experiment {
	return sim.Experiment{
		Name: "beyond-rack", Source: source, Extra: true,
		Title: "a rack of servers is lost in one second, clients try again, and the rack comes back",
		Method: "1000 servers, 200000 connections of web-server durations. 40 servers are lost within one second; a second later load balancers know. Whoever is cut " +
			"off tries again after a second on average. After 50 s the rack is back. Others: connections of the 960 other servers.",
		Claims: []sim.Claim{
			{ID: "cut", What: "connections cut off, of those alive", Unit: "%", Low: 3.8, High: 4.3},
			{ID: "retries", What: "retries, for each connection that was alive on the rack", Unit: "x", Low: 1, High: 1.2},
			{ID: "others-hash", What: "connections of others that break, plain hash", Unit: "%", Low: 0.3, High: 0.8},
			{ID: "others-beamer", What: "connections of others that break, one previous owner", Unit: "%", Low: 0, High: 0},
			{ID: "others-cookie", What: "connections of others that break, cookies", Unit: "%", Low: 0, High: 0},
			{ID: "peak-hash", What: "largest max/mean of connections after the loss, plain hash", Unit: "x", Low: 1.22, High: 1.42},
			{ID: "peak-cookie", What: "largest max/mean of connections after the loss, cookies and round robin", Unit: "x", Low: 1.12, High: 1.3},
		},
		Figures: []sim.Figure{{Title: "a rack is lost at 10 s and back at 60 s", X: "time, s", Y: "max/mean of connections"}},
		Run:     runRack,
	}
}

// rackWorld is a world in which a rack is lost.
type rackWorld struct {
	*flows.World
	base    float64 // arrivals per second without retries
	retry   float64 // clients that will try again
	retries float64
	cut     int // by the loss itself
}

func runRack(run *sim.Run) {
	lives, longest := webDurations()
	base := flows.Config{Seed: run.Seed, Servers: rackServers, Durations: lives, Rate: rackConnections / lives.Mean()}

	table := buckets.New(rackServers, rackBuckets)
	byTable := base
	byTable.Table = &flows.Table{Owners: table.Owners()}
	byHash := playRack(run, base.Rate, flows.New(byTable), longest, "hash", 0, func(w *flows.World, who uint32, back bool) { follow(w, table, who, back) })
	stats := byHash.Stats()
	run.Share("cut", int64(byHash.cut), rackConnections)
	run.Value("retries", byHash.retries/float64(byHash.cut))
	run.Share("others-hash", stats.BrokenAt(1)-stats.Cut, stats.Ended-stats.Cut)
	run.Share("others-beamer", stats.BrokenAt(2)-stats.Cut, stats.Ended-stats.Cut)

	pool := newPool(rackServers)
	turns := &dispatch.Turns{Round: pool.present}
	byChoice := base
	byChoice.Chooser = turns
	byCookie := playRack(run, base.Rate, flows.New(byChoice), longest, "cookie", 0.5, func(_ *flows.World, who uint32, back bool) {
		pool.set(who, back)
		turns.Round = pool.present
	})
	stats = byCookie.Stats()
	run.Share("others-cookie", stats.BrokenAt(1)-stats.Cut, stats.Ended-stats.Cut)
}

// loss is a server that goes at one moment and is taken out at a later one.
type loss struct {
	at  int64
	who uint32
}

func losses(seed uint64) []loss {
	moments := random.New(seed, "losses")
	var lost []loss
	for who := range uint32(rackSize) {
		lost = append(lost, loss{at: rackLostAt + int64(moments.Float64()*float64(second))/rackStep*rackStep, who: who})
	}
	return lost
}

// playRack loses the rack and lets everything end. change is told who is no longer, or again, in the table or round. half is how much of the run
// was done before.
func playRack(run *sim.Run, rate float64, world *flows.World, longest int64, series string, half float64,
	change func(w *flows.World, who uint32, back bool)) *rackWorld {
	w, lost, peak := &rackWorld{World: world, base: rate}, losses(run.Seed), 0.0
	w.Fill()
	end := rackBackAt + 30*second
	for now := int64(0); now < end; now += rackStep {
		w.RunUntil(now)
		for _, l := range lost {
			switch now {
			case l.at:
				w.cut += w.lose(l.who)
				w.SetActive(l.who, false)
			case l.at + rackNoticed:
				change(w.World, l.who, false)
			case rackBackAt:
				change(w.World, l.who, true)
				w.SetActive(l.who, true)
			}
			if l.at < now && now <= l.at+rackNoticed {
				w.lose(l.who) // what came since
			}
		}
		w.addRetries()
		if now%(second/2) == 0 {
			spread := 1 + w.Spread()
			run.Point(series, float64(now)/float64(second), spread)
			if now > rackLostAt && now < rackBackAt {
				peak = max(peak, spread)
			}
			all := 2 * 2 * w.base * float64(end/second) // two worlds, arrivals and ends
			run.Progress(int64(all*(half+float64(now)/float64(end)/2)), int64(all))
		}
	}
	run.Value("peak-"+series, peak)
	w.SetRate(0)
	w.RunUntil(end + longest + second)
	return w
}

// lose cuts a server's connections off; their clients will try again.
func (w *rackWorld) lose(who uint32) int {
	cut := w.Fail(who)
	w.retry += float64(cut)
	return cut
}

// addRetries adds the retries of the next step to the arrivals.
func (w *rackWorld) addRetries() {
	part := w.retry * float64(rackStep) / float64(second) / rackRetrySecond
	if part < 1e-3 {
		part, w.retry = 0, 0
	}
	w.retry -= part
	w.retries += part
	w.SetRate(w.base + part*float64(second)/float64(rackStep))
}

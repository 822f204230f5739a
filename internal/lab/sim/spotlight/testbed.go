package spotlight

import (
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
)

// Specification constants (Spotlight VI-B).
const (
	hosts         = 16
	fastRate      = 3.0 / 8 // bytes/ns: the first VM of a machine
	slowRate      = 2.0 / 8 // the second
	loadBalancers = 2
	requestsNS    = int64(60e9) // how long they come
	largerFiles   = 10          // "the size of flows [is] multiplied by 10"
)

// setting is what is varied of the test bed.
type setting struct {
	seed       uint64
	load       float64        // part of the hosts' rates that is asked for
	overhead   float64        // of hosts, for each open request
	table      []uint16       // not nil: it stays as it is
	dispatch   model.Dispatch // else: what follows the load, by
	classes    uint8          // m of awfd
	intervalNS int64          // of reports, and of weights
	loss       float64        // part of the messages; each tells one load balancer one weight
}

// outcome is what is measured of it.
type outcome struct {
	gbps    float64 // served as long as requests come
	seconds float64 // mean from beginning to end, of all that have come
}

// testbed is clients that ask for files (open loop), load balancers that take turns, hosts, and a controller: what hosts tell becomes
// weights in package balance, and gets to load balancers by package follow, as in production.
type testbed struct {
	setting
	service  *model.Service
	balance  balance.Service
	weights  [loadBalancers]follow.Weights
	choosers [loadBalancers]chooser
	hosts    [hosts]host

	arrivalNS, weighNS   int64 // the next
	reportNS, reportedNS [hosts]int64

	number, ended  uint32 // requests
	tookNS         int64  // sum of those that have ended
	meanGapNS      float64
	gaps, files    random.Stream
	lost           random.Stream
	sizes          *random.Sampler
	dispatchNumber random.Key
}

func newTestbed(c setting) *testbed {
	sizes := data.SearchFlows().Scaled(largerFiles)
	b := &testbed{
		setting: c,
		service: &model.Service{Name: "files", Dispatch: c.dispatch, Load: model.Load{
			Source: model.LoadConnections, Interval: model.Duration(c.intervalNS), Classes: c.classes, QueueLimit: 128}},
		weighNS: never, gaps: random.New(c.seed, "arrivals"), files: random.New(c.seed, "files"), lost: random.New(c.seed, "loss"),
		sizes: random.NewSampler(sizes), dispatchNumber: random.Keyed(c.seed, "dispatch"),
	}
	rate, phases := 0.0, random.New(c.seed, "phases")
	for i := range b.hosts {
		b.hosts[i] = newHost([]float64{fastRate, slowRate}[i%2], c.overhead)
		rate += b.hosts[i].rate
		b.service.Servers = append(b.service.Servers, model.Server{Name: fmt.Sprint("dip", i), ID: uint16(i + 1), Weight: 1})
		b.reportNS[i] = never
		if c.table == nil {
			b.reportNS[i] = int64(phases.Float64() * float64(c.intervalNS)) // "asynchronously and at random times" (V-C)
		}
	}
	for lb := range b.choosers {
		b.choosers[lb].table = c.table
		b.hear(lb, 1, dispatch.Alike(dispatch.Everybody(hosts)), 0)
	}
	if c.table == nil {
		b.weighNS = c.intervalNS
	}
	b.meanGapNS = sizes.Mean() / (rate * c.load)
	b.arrivalNS = int64(b.gaps.Exp(b.meanGapNS))
	return b
}

// run has requests come, and waits for the last to end.
func (b *testbed) run() outcome {
	for b.step() {
	}
	served := 0.0
	for i := range b.hosts {
		h := &b.hosts[i]
		h.advance(requestsNS)
		served += h.served
		for h.dueNS != never {
			b.end(h)
		}
	}
	return outcome{gbps: 8 * served / float64(requestsNS), seconds: float64(b.tookNS) / float64(b.ended) / 1e9}
}

// step does what is next; false: nothing is while requests come. Of what is due at one time, ends come first, then reports.
func (b *testbed) step() bool {
	ends, tells := &b.hosts[0], 0
	for i := range b.hosts {
		if b.hosts[i].dueNS < ends.dueNS {
			ends = &b.hosts[i]
		}
		if b.reportNS[i] < b.reportNS[tells] {
			tells = i
		}
	}
	switch now := min(ends.dueNS, b.reportNS[tells], b.weighNS, b.arrivalNS); {
	case now >= requestsNS:
		return false
	case now == ends.dueNS:
		b.end(ends)
	case now == b.reportNS[tells]:
		b.tell(now, tells)
	case now == b.weighNS:
		b.weigh(now)
	default:
		b.begin(now)
	}
	return true
}

func (b *testbed) begin(now int64) {
	lb := &b.choosers[b.number%loadBalancers]
	i := lb.choose(uint32(b.dispatchNumber.At(uint64(b.number)) >> 32))
	b.hosts[i].begin(now, b.sizes.At(b.files.Float64()))
	b.number++
	b.arrivalNS = now + int64(b.gaps.Exp(b.meanGapNS))
}

func (b *testbed) end(h *host) {
	b.tookNS += h.end()
	b.ended++
}

// clock is a moment of the simulation for packages that take the time as such.
func clock(ns int64) time.Time { return time.Unix(0, ns) }

func (b *testbed) tell(now int64, i int) {
	h := &b.hosts[i]
	reported := balance.Report{HasQueue: true, MeanQueue: h.tell(now, now-b.reportedNS[i]), Connections: uint32(len(h.open))}
	b.balance.Report(clock(now), uint16(i+1), reported)
	b.reportedNS[i] = now
	b.reportNS[i] += b.intervalNS
}

func (b *testbed) weigh(now int64) {
	shares := b.balance.Weigh(clock(now), b.service)
	for lb := range b.choosers {
		b.hear(lb, uint64(1+now/b.intervalNS), shares, b.loss)
	}
	b.weighNS += b.intervalNS
}

// hear has a load balancer get the weights that are not lost.
func (b *testbed) hear(lb int, version uint64, shares []model.Share, loss float64) {
	update := &follow.Update{Term: 1, Version: version}
	for _, share := range shares {
		if b.lost.Float64() >= loss {
			update.Weights = append(update.Weights, share)
		}
	}
	known := &b.weights[lb]
	known.Merge(update)
	current := dispatch.Alike(dispatch.Everybody(hosts))
	for i := range current {
		current[i].Weight = known.Values[current[i].ID]
	}
	b.choosers[lb].classes = awfd.NewClasses(current)
}

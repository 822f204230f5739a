package scenario

import (
	"math"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/queueing"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/model"
)

// ofRequests is what is measured where servers work for each request.
var ofRequests = kind{
	measures: []measure{
		{"broken", "%", "requests cut off by failures"},
		{"mean", "ms", "response time"},
		{"p50", "ms", "half of the requests take no longer"},
		{"p99", "ms", "99 in 100 requests take no longer"},
		{"busy", "%", "of the time that cores work, mean of the servers"},
		{"spread", "%", "standard deviation between servers of how busy they are in a second, of all seconds"},
	},
	figures: []sim.Figure{
		{Name: "p99", Title: "99th percentile of response time, of the requests that just ended", X: "time, s", Y: "ms", LogY: true},
		{Name: "requests", Title: "Requests at all servers", X: "time, s", Y: "open"},
		{Name: "broken", Title: "Broken so far", X: "time, s", Y: "requests"},
	},
}

// requests is a world of requests: servers share their cores among those that they have.
type requests struct {
	*play
	queues  *queueing.World
	chooser dispatch.Policy
	recent  []int64 // ns: what requests took that have ended since the curves' last points

	// What the controller knows, where the policy follows reports: it is the one of production.
	service model.Service
	reports balance.Service
}

func newRequests(p *play) *requests {
	s := p.scenario
	r := &requests{play: p, chooser: chooserOf(s, p.policy, p.run.Seed)}
	sampler, numbers := random.NewSampler(s.Traffic.Work.Scaled(nsPerSecond)), random.Keyed(p.run.Seed, "work")
	config := queueing.Config{
		Seed: p.run.Seed, GapNS: gap(s.Traffic.Rate), Chooser: r.chooser,
		Work:  func(flow uint64) int64 { return int64(sampler.At(numbers.Float64At(flow))) },
		Ended: func(ns int64) { r.recent = append(r.recent, ns) },
	}
	for _, group := range p.pool.groups {
		config.Servers = append(config.Servers, s.Servers[group].size())
	}
	if p.policy.follows() {
		config.Interval, config.Report = p.policy.Interval, r.report
		r.service = serviceOf(p.policy)
	}
	r.queues = queueing.New(config)
	r.changed()
	return r
}

// serviceOf is what the controller is told of a policy that follows reports.
func serviceOf(p Policy) model.Service {
	service := model.NewService()
	service.Dispatch = map[string]model.Dispatch{"awrr": model.DispatchAWRR, "awfd": model.DispatchAWFD, "lcf": model.DispatchLCF}[p.Dispatch]
	service.Load.Source = map[string]model.LoadSource{"connections": model.LoadConnections, "cpu": model.LoadCPU}[p.Load]
	service.Load.Interval, service.Load.Classes = model.Duration(p.Interval), uint8(p.Classes)
	service.ApplyDefaults()
	return service
}

// gap is the time between requests on average, ns; 0: none come.
func gap(perSecond float64) float64 {
	if perSecond == 0 {
		return 0
	}
	return nsPerSecond / perSecond
}

func (g Group) size() queueing.Size { return queueing.Size{Cores: g.Cores, Speed: g.Speed} }

// report has the agents of all servers tell how busy they were and how many requests they had, and the policy make something of it.
func (r *requests) report(w *queueing.World) {
	for server, active := range r.pool.active {
		busy, open := w.Tell(server)
		if active {
			r.reports.Report(r.clock(), uint16(server+1), balance.Report{
				MeanQueue: open, HasQueue: true,
				CPUPermille: uint16(math.Round(1000 * busy)), CPUs: float64(r.scenario.Servers[r.pool.groups[server]].Cores), HasCPU: true,
			})
		}
	}
	r.changed()
}

// clock is the time as the controller has it.
func (r *requests) clock() time.Time { return time.Unix(0, r.queues.Now()) }

func (r *requests) changed() {
	shares := r.pool.shares()
	if r.policy.follows() {
		r.service.Servers = r.service.Servers[:0]
		for _, share := range shares {
			r.service.Servers = append(r.service.Servers, model.Server{ID: share.ID, Weight: share.Weight})
		}
		shares = r.reports.Weigh(r.clock(), &r.service)
	}
	r.chooser.Weigh(shares)
}

func (r *requests) fill() {}

func (r *requests) reset() {
	r.queues.Reset()
	r.recent = r.recent[:0]
}

func (r *requests) runUntil(until int64) {
	step := max(r.scenario.Length/samples, 1)
	for r.queues.Now() < until {
		r.queues.RunUntil(min(r.queues.Now()+step, until))
		r.run.StopIfUnwanted()
	}
}

func (r *requests) leave(server uint32, failed bool) {
	r.queues.SetActive(server, false)
	if failed {
		r.queues.Fail(server)
	}
}

func (r *requests) join(server uint32) { r.queues.SetActive(server, true) }

func (r *requests) grow(group int) { r.queues.AddServer(r.scenario.Servers[group].size()) }

func (r *requests) setSpeed(server uint32, part float64) {
	r.queues.SetSpeed(server, part*r.scenario.Servers[r.pool.groups[server]].Speed)
}

func (r *requests) setRate(perSecond float64) { r.queues.SetRate(gap(perSecond)) }

func (r *requests) setLoadBalancers(count int) { r.policy.setLoadBalancers(r.chooser, count) }

// sample draws no point of p99 where no request has ended since the last one: there is no such time, and 0 would be a short one.
func (r *requests) sample(seconds float64) {
	if len(r.recent) > 0 {
		slices.Sort(r.recent)
		r.run.Point("p99/"+r.policy.Name, seconds, milliseconds(r.recent, 0.99))
		r.recent = r.recent[:0]
	}
	r.run.Point("requests/"+r.policy.Name, seconds, float64(r.queues.Open()))
	r.run.Point("broken/"+r.policy.Name, seconds, float64(r.queues.Broken()))
}

// milliseconds returns the time that a part of sorted times does not exceed; 0 where there is none.
func milliseconds(times []int64, part float64) float64 {
	if len(times) == 0 {
		return 0
	}
	return 1000 * queueing.Quantile(times, part)
}

// finish waits as long again at most: servers that have more to do than they can may have more to do than anybody waits for.
func (r *requests) finish() { r.queues.Finish(2 * r.queues.Now()) }

func (r *requests) tell() {
	name, times, mean := r.policy.Name, r.queues.Times(), 0.0
	if len(times) > 0 {
		mean = 1000 * queueing.Mean(times)
	}
	r.run.Share(name+".broken", r.queues.Broken(), r.queues.Arrived())
	r.run.Value(name+".mean", mean)
	r.run.Value(name+".p50", milliseconds(times, 0.5))
	r.run.Value(name+".p99", milliseconds(times, 0.99))
	r.run.Value(name+".busy", 100*r.queues.Busy())
	r.run.Value(name+".spread", 100*math.Sqrt(max(r.queues.Variance(), 0)))
}

func (r *requests) events() int64 { return r.queues.Arrived() + int64(len(r.queues.Times())) }

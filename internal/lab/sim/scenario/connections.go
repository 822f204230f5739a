package scenario

import (
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
)

// ofConnections is what is measured where only connections are known.
var ofConnections = kind{
	measures: []measure{
		{"broken", "%", "connections led to another server, or cut off"},
		{"imbalance", "%", "load over its fair part, of the most loaded server, average over time"},
		{"peak", "%", "the same, at the worst moment"},
	},
	figures: []sim.Figure{
		{Name: "broken", Title: "Broken so far", X: "time, s", Y: "connections"},
		{Name: "imbalance", Title: "Load of the most loaded server over its fair part", X: "time, s", Y: "%"},
		{Name: "connections", Title: "Connections", X: "time, s", Y: "alive"},
	},
}

// connections is a world of connections: which server they are led to, and for how long.
type connections struct {
	*play
	flows     *flows.World
	contender *contender

	trace       []Connection // that are to come
	imbalances  float64      // sum over samples
	peak        float64
	samplesDone int
}

func newConnections(p *play) *connections {
	s := p.scenario
	config := flows.Config{Seed: p.run.Seed, Servers: s.servers(), Rate: s.Traffic.Rate, Durations: s.Traffic.Lifetimes}
	c := &connections{play: p, trace: s.Traffic.Trace, contender: contenderOf(s, p.policy, p.pool, &config)}
	c.flows = flows.New(config)
	return c
}

func (c *connections) fill() { c.flows.Fill() }

func (c *connections) reset() { c.flows.Reset() }

// runUntil lets time pass, with its reports and the connections of the trace.
func (c *connections) runUntil(until int64) {
	if c.policy.follows() {
		for at := c.flows.Now()/c.policy.Interval*c.policy.Interval + c.policy.Interval; at < until; at += c.policy.Interval {
			c.arrive(at)
			c.changed()
			c.run.StopIfUnwanted()
		}
	}
	c.arrive(until)
	c.run.StopIfUnwanted()
}

// arrive lets time pass between reports.
func (c *connections) arrive(until int64) {
	for len(c.trace) > 0 && c.trace[0].Start < until {
		c.flows.RunUntil(c.trace[0].Start)
		c.flows.Admit(c.trace[0].Life)
		c.trace = c.trace[1:]
	}
	c.flows.RunUntil(until)
}

func (c *connections) leave(server uint32, failed bool) {
	c.flows.SetActive(server, false)
	if failed {
		c.flows.Fail(server)
	}
}

func (c *connections) join(server uint32) { c.flows.SetActive(server, true) }

func (c *connections) grow(int) { c.flows.AddServer() }

func (c *connections) changed() { c.contender.changed(c.flows, c.pool) }

// setSpeed does nothing: check refuses it.
func (c *connections) setSpeed(uint32, float64) {}

func (c *connections) setRate(perSecond float64) { c.flows.SetRate(perSecond) }

func (c *connections) setLoadBalancers(count int) {
	if c.policy.Affinity == "local-table" {
		for cell, node := range routes(count) {
			c.flows.PlaceNode(cell, node)
		}
		return
	}
	c.policy.setLoadBalancers(c.contender.chooser, count)
}

func (c *connections) sample(seconds float64) {
	imbalance := 100 * c.pool.imbalance(c.flows.Loads())
	c.imbalances += imbalance
	c.peak = max(c.peak, imbalance)
	c.samplesDone++
	c.run.Point("broken/"+c.policy.Name, seconds, float64(c.flows.Stats().Broken))
	c.run.Point("imbalance/"+c.policy.Name, seconds, imbalance)
	c.run.Point("connections/"+c.policy.Name, seconds, float64(c.flows.Live()))
}

func (c *connections) finish() {
	c.flows.SetRate(0)
	c.flows.RunUntil(c.flows.Now() + int64(c.scenario.Traffic.Lifetimes.At(1)*nsPerSecond) + 1)
}

func (c *connections) tell() {
	stats := c.flows.Stats()
	c.run.Share(c.policy.Name+".broken", stats.Broken, stats.Ended)
	c.run.Value(c.policy.Name+".imbalance", c.imbalances/float64(c.samplesDone))
	c.run.Value(c.policy.Name+".peak", c.peak)
}

func (c *connections) events() int64 {
	stats := c.flows.Stats()
	return stats.Arrived + stats.Ended
}

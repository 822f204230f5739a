package scenario

import (
	"math"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/sim"
	"github.com/ballast-lb/ballast/internal/sim/flows"
)

// Experiment returns the scenario as an experiment that claims every measure of every policy. Those that the file expects something of
// are judged.
func (s *Scenario) Experiment(name string) sim.Experiment {
	e := sim.Experiment{
		Name: name, Title: s.Title, Source: "scenario", Method: explanation(), Run: s.run,
		Figures: []sim.Figure{
			{Name: "broken", Title: "Broken so far", X: "time, s", Y: "connections"},
			{Name: "imbalance", Title: "Load of the most loaded server over its fair part", X: "time, s", Y: "%"},
			{Name: "connections", Title: "Connections", X: "time, s", Y: "alive"},
		},
	}
	for _, policy := range s.Policies {
		for _, m := range measures {
			claim := sim.Claim{ID: policy.Name + "." + m.name, What: policy.Name + ": " + m.name, Unit: m.unit, Low: math.Inf(-1), High: math.Inf(1)}
			for _, expected := range s.Expect {
				if expected.Measure == m.name && (expected.Policy == "" || expected.Policy == policy.Name) {
					claim.Low, claim.High = max(claim.Low, expected.Low), min(claim.High, expected.High)
				}
			}
			e.Claims = append(e.Claims, claim)
		}
	}
	return e
}

// explanation tells what is measured.
func explanation() string {
	var parts []string
	for _, m := range measures {
		parts = append(parts, m.name+": "+m.what)
	}
	return strings.Join(parts, "; ") + "."
}

// run plays all policies, one after the other, in worlds that differ in nothing else.
func (s *Scenario) run(run *sim.Run) error {
	events := int64(0)
	for i, policy := range s.Policies {
		p := newPlay(s, policy, run)
		p.past, p.policies, p.eventsBefore = i, len(s.Policies), events
		if err := p.play(); err != nil {
			return err
		}
		events = p.events()
	}
	return nil
}

// play is one policy in its world.
type play struct {
	scenario  *Scenario
	policy    Policy
	run       *sim.Run
	pool      *pool
	world     *flows.World
	contender *contender

	past, policies int   // how many were played before, of how many
	eventsBefore   int64 // of those

	happenings  []happening
	trace       []Connection // that are to come
	imbalances  float64      // sum over samples
	peak        float64
	samplesDone int
}

// happening is an event at one of its times.
type happening struct {
	at    int64 // ns since the start of the world
	event int
}

func newPlay(s *Scenario, policy Policy, run *sim.Run) *play {
	p := &play{scenario: s, policy: policy, run: run, pool: newPool(s, run.Seed), trace: s.Traffic.Trace}
	config := flows.Config{Seed: run.Seed, Servers: s.servers(), Rate: s.Traffic.Rate, Durations: s.Traffic.Lifetimes}
	p.contender = contenderOf(s, policy, p.pool, &config)
	p.world = flows.New(config)
	for i, event := range s.Events {
		for time := range event.times() {
			p.happenings = append(p.happenings, happening{at: s.WarmUp + event.At + time*event.Every, event: i})
		}
	}
	slices.SortStableFunc(p.happenings, func(a, b happening) int { return int(min(max(a.at-b.at, -1), 1)) })
	return p
}

// play fills the world, lets the scenario happen, and waits for the end of all connections that saw it.
func (p *play) play() error {
	p.world.Fill()
	if err := p.runUntil(p.scenario.WarmUp); err != nil {
		return err
	}
	p.world.Reset()
	for i := range int64(samples) {
		until := p.scenario.WarmUp + p.scenario.Length*(i+1)/samples
		for len(p.happenings) > 0 && p.happenings[0].at <= until {
			if err := p.runUntil(p.happenings[0].at); err != nil {
				return err
			}
			p.happen(p.scenario.Events[p.happenings[0].event])
			p.happenings = p.happenings[1:]
		}
		if err := p.runUntil(until); err != nil {
			return err
		}
		p.sample()
		p.progress(i + 1)
	}
	p.world.SetRate(0)
	p.world.RunUntil(p.world.Now() + int64(p.scenario.Traffic.Lifetimes.At(1)*nsPerSecond) + 1)
	p.tell()
	return nil
}

// events counts arrivals and ends, since the first policy began.
func (p *play) events() int64 {
	stats := p.world.Stats()
	return p.eventsBefore + stats.Arrived + stats.Ended
}

// progress tells how many events there were, and how many there will be if it goes on as until now.
func (p *play) progress(samplesDone int64) {
	past, all := int64(p.past)*samples+samplesDone, int64(p.policies)*samples
	done := p.events()
	p.run.Progress(done, int64(float64(done)*float64(all)/float64(past)))
}

// runUntil lets time pass, with its reports and the connections of the trace.
func (p *play) runUntil(until int64) error {
	if p.policy.follows() {
		for at := p.world.Now()/p.policy.Interval*p.policy.Interval + p.policy.Interval; at < until; at += p.policy.Interval {
			p.arrive(at)
			p.contender.changed(p.world, p.pool)
			if err := p.run.Err(); err != nil {
				return err
			}
		}
	}
	p.arrive(until)
	return p.run.Err()
}

// arrive lets time pass between reports.
func (p *play) arrive(until int64) {
	for len(p.trace) > 0 && p.trace[0].Start < until {
		p.world.RunUntil(p.trace[0].Start)
		p.world.Admit(p.trace[0].Life)
		p.trace = p.trace[1:]
	}
	p.world.RunUntil(until)
}

// happen makes an event true in the pool, the world and the policy, in the order in which operators meet it.
func (p *play) happen(e Event) {
	group := slices.IndexFunc(p.scenario.Servers, func(g Group) bool { return g.Name == e.Group })
	for _, server := range p.pool.take(e.Remove, group) {
		p.world.SetActive(server, false)
	}
	for _, server := range p.pool.take(e.Fail, group) {
		p.world.SetActive(server, false)
		p.world.Fail(server)
	}
	back, fresh := p.pool.put(p.scenario, e.Add, group)
	for _, server := range back {
		p.world.SetActive(server, true)
	}
	for range fresh {
		p.world.AddServer()
	}
	if e.Remove+e.Fail+e.Add > 0 {
		p.contender.changed(p.world, p.pool)
	}
	if e.Rate >= 0 {
		p.world.SetRate(e.Rate)
	}
	if e.LoadBalancers > 0 && p.policy.Affinity == "local-table" {
		for cell, node := range routes(e.LoadBalancers) {
			p.world.PlaceNode(cell, node)
		}
	}
}

// sample looks at the world and draws a point of each curve.
func (p *play) sample() {
	seconds := float64(p.world.Now()-p.scenario.WarmUp) / nsPerSecond
	imbalance := 100 * p.pool.imbalance(p.world.Loads())
	p.imbalances += imbalance
	p.peak = max(p.peak, imbalance)
	p.samplesDone++
	p.run.Point("broken/"+p.policy.Name, seconds, float64(p.world.Stats().Broken))
	p.run.Point("imbalance/"+p.policy.Name, seconds, imbalance)
	p.run.Point("connections/"+p.policy.Name, seconds, float64(p.world.Live()))
}

func (p *play) tell() {
	stats := p.world.Stats()
	p.run.Share(p.policy.Name+".broken", stats.Broken, stats.Ended)
	p.run.Value(p.policy.Name+".imbalance", p.imbalances/float64(p.samplesDone))
	p.run.Value(p.policy.Name+".peak", p.peak)
}

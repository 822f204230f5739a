package scenario

import (
	"math"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// Experiment returns the scenario as an experiment that claims every measure of every policy. Those that the file expects something of
// are judged.
func (s *Scenario) Experiment(name string) sim.Experiment {
	kind := s.kind()
	e := sim.Experiment{Name: name, Title: s.Title, Source: "scenario", Method: kind.explanation(), Run: s.run, Figures: kind.figures}
	for _, policy := range s.Policies {
		for _, m := range kind.measures {
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
func (k *kind) explanation() string {
	var parts []string
	for _, m := range k.measures {
		parts = append(parts, m.name+": "+m.what)
	}
	return strings.Join(parts, "; ") + "."
}

// run plays all policies, one after the other, in worlds that differ in nothing else.
func (s *Scenario) run(run *sim.Run) {
	events := int64(0)
	for i, policy := range s.Policies {
		p := newPlay(s, policy, run)
		p.past, p.policies, p.eventsBefore = i, len(s.Policies), events
		p.play()
		events += p.world.events()
	}
}

// play is one policy in its world.
type play struct {
	scenario *Scenario
	policy   Policy
	run      *sim.Run
	pool     *pool
	world    world

	past, policies int   // how many were played before, of how many
	eventsBefore   int64 // of those
	calendar       *calendar
}

// world is what a policy is measured in, with the policy at work in it.
type world interface {
	fill()                                // begins
	runUntil(until int64)                 // ns since the start
	reset()                               // has only what happens from now on count
	leave(server uint32, failed bool)     // no new ones go there; if it failed, those that it has are lost
	join(server uint32)                   // one that left is back
	grow(group int)                       // adds a server
	changed()                             // has the policy look at the pool
	setSpeed(server uint32, part float64) // of what is its group's
	setRate(perSecond float64)
	setLoadBalancers(count int)
	sample(seconds float64) // draws a point of each curve
	finish()                // waits for the end of all that count
	tell()                  // tells the measures
	events() int64          // that there were
}

func newPlay(s *Scenario, policy Policy, run *sim.Run) *play {
	p := &play{scenario: s, policy: policy, run: run, pool: newPool(s, run.Seed), calendar: newCalendar(s)}
	if s.requests() {
		p.world = newRequests(p)
	} else {
		p.world = newConnections(p)
	}
	return p
}

// play fills the world, lets the scenario happen, and waits for the end of all that saw it.
func (p *play) play() {
	p.world.fill()
	p.world.runUntil(p.scenario.WarmUp)
	p.world.reset()
	for i := range int64(samples) {
		until := p.scenario.WarmUp + p.scenario.Length*(i+1)/samples
		for {
			h, ok := p.calendar.popUntil(p.scenario, until)
			if !ok {
				break
			}
			p.world.runUntil(h.at)
			p.happen(p.scenario.Events[h.event])
		}
		p.world.runUntil(until)
		p.world.sample(float64(until-p.scenario.WarmUp) / nsPerSecond)
		p.progress(i + 1)
	}
	p.world.finish()
	p.world.tell()
}

// progress tells how many events there were, and how many there will be if it goes on as until now.
func (p *play) progress(samplesDone int64) {
	past, all := int64(p.past)*samples+samplesDone, int64(p.policies)*samples
	done := p.eventsBefore + p.world.events()
	p.run.Progress(done, int64(float64(done)*float64(all)/float64(past)))
}

// happen makes an event true in the pool, the world and the policy, in the order in which operators meet it.
func (p *play) happen(e Event) {
	group := slices.IndexFunc(p.scenario.Servers, func(g Group) bool { return g.Name == e.Group })
	for _, server := range p.pool.take(e.Remove, group) {
		p.world.leave(server, false)
	}
	for _, server := range p.pool.take(e.Fail, group) {
		p.world.leave(server, true)
	}
	back, fresh := p.pool.put(p.scenario, e.Add, group)
	for _, server := range back {
		p.world.join(server)
	}
	for range fresh {
		p.world.grow(max(group, 0))
	}
	if e.Remove+e.Fail+e.Add > 0 {
		p.world.changed()
	}
	if e.Slow > 0 {
		slowed, before := p.pool.slow(e.Slow, group)
		for _, server := range before {
			p.world.setSpeed(server, 1)
		}
		for _, server := range slowed {
			p.world.setSpeed(server, e.Speed)
		}
	}
	if e.Rate >= 0 {
		p.world.setRate(e.Rate)
	}
	if e.LoadBalancers > 0 {
		p.world.setLoadBalancers(e.LoadBalancers)
	}
}

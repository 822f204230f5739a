package check

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// Schedules is what random schedules are drawn from. The zero value is the protocol with all its rules, under its assumptions.
type Schedules struct {
	Without    []string // rules that are switched off, by the names of the fields of replica.Rules
	LoseCommon bool     // the assumption that every chain keeps a common node is switched off
}

// player plays a random schedule.
type player struct {
	*world
	random random.Stream
	taste  taste
	steps  *[]Step // what was done, if wanted
}

// taste is how often what happens in a schedule. It differs from schedule to schedule: a few kinds of trouble in earnest find more than a
// little of each (swarm testing: Groce et al., ISSTA 2012).
type taste struct {
	steps                                   int
	packet, deliver, retry, change, trouble int // weights
	tick, controller                        int
	lose, repeat, inOrder                   int // percent of messages
	urgent                                  int // percent of deliveries that look for one that brings a sync on
	nodes                                   int // at most
}

// Play plays the schedule of a seed and returns what it broke, or nil.
func (s Schedules) Play(seed uint64) *Violation { return s.play(seed, nil) }

func (s Schedules) play(seed uint64, steps *[]Step) *Violation {
	p := &player{random: random.New(seed, "schedule"), steps: steps}
	setup := s.setup(&p.random)
	p.taste = p.draw(setup)
	p.world = newWorld(setup)
	for range p.taste.steps {
		if p.violation != nil {
			return p.violation
		}
		p.step()
	}
	p.play(&Step{Action: Settle}, 0)
	return p.violation
}

// setup draws a fleet.
func (s Schedules) setup(r *random.Stream) *Setup {
	chain := [...]int{1, 2, 2, 2, 3, 3, 3, 4}[r.Intn(8)]
	config := replica.DefaultConfig(chain)
	config.CopyEntries, config.CopyWindow = 1+r.Intn(2), 1+r.Intn(2)
	config.DirectToHead = r.Intn(4) == 0
	if r.Intn(2) == 0 {
		config.EvenTo = 0
	}
	if r.Intn(4) == 0 {
		config.Entries = 1 + r.Intn(3)
	}
	setup := &Setup{Nodes: chain + 1 + r.Intn(3), LoseCommon: s.LoseCommon}
	if slices.Contains(s.Without, "MoreNodesThanChain") {
		setup.Nodes = chain + r.Intn(2)
	}
	config.Timeout = 1 << 20
	if r.Intn(2) == 0 {
		config.Timeout, setup.KeepAlive = uint32(4+r.Intn(3)), 2
	}
	for range 1 + r.Intn(3) {
		setup.Keys = append(setup.Keys, ring.Key(r.Uint64()))
	}
	config.Rules.ShareCopies = setup.Keys[0]%4 > 0 // load balancers of an earlier version cannot
	switchOff(&config.Rules, s.Without)
	setup.Config = config
	return setup
}

func (p *player) draw(setup *Setup) taste {
	r := &p.random
	some := func(most int) int { // often nothing
		if r.Intn(3) == 0 {
			return 0
		}
		return 1 + r.Intn(most)
	}
	t := taste{
		steps: 30 + r.Intn(200), packet: 5 + r.Intn(40), deliver: 20 + r.Intn(80), retry: some(8), change: some(8), trouble: some(6),
		controller: some(2), lose: some(30), repeat: some(30), inOrder: some(100), urgent: some(100), nodes: setup.Nodes + 1 + r.Intn(3),
	}
	if setup.KeepAlive > 0 {
		t.tick = 5 + r.Intn(40)
	}
	return t
}

// play does a step, and notes it.
func (p *player) play(step *Step, at int) {
	if p.steps != nil {
		*p.steps = append(*p.steps, *step)
	}
	p.do(step, at)
}

func (p *player) step() {
	t := &p.taste
	dice := p.random.Intn(t.packet + t.deliver + t.retry + t.change + t.trouble + t.tick + t.controller)
	for i, weight := range [...]int{t.packet, t.deliver, t.retry, t.change, t.trouble, t.tick, t.controller} {
		if dice -= weight; dice < 0 {
			[...]func(){p.somePacket, p.someMessage, p.someRetry, p.someChange, p.someTrouble, p.someTime, p.someRestart}[i]()
			return
		}
	}
}

func (p *player) somePacket() {
	id := 1 + p.random.Intn(len(p.nodes)-1)
	p.play(&Step{Action: Packet, Node: uint16(id), Key: p.random.Intn(len(p.keys)), Owner: p.owners + 1}, 0)
}

func (p *player) someMessage() {
	if len(p.messages) == 0 {
		return
	}
	at := 0
	if p.random.Intn(100) >= p.taste.inOrder {
		at = p.random.Intn(len(p.messages))
	}
	if p.random.Intn(100) < p.taste.urgent {
		at = p.urgent(at)
	}
	step := Step{Action: Deliver, Message: *p.messages[at].Message}
	switch dice := p.random.Intn(100); {
	case dice < p.taste.lose && !(p.setup.KeepAlive > 0 && prompt(p.messages[at].Message)):
		step.Action = Lose
	case dice < p.taste.lose+p.taste.repeat:
		step.Action = Repeat
	}
	p.play(&step, at)
}

// urgent returns the first message from a place on without which no sync begins.
func (p *player) urgent(from int) int {
	for at := from; at < len(p.messages); at++ {
		switch p.messages[at].Kind {
		case replica.NewView, replica.ViewAck, replica.StartSync:
			return at
		}
	}
	return from
}

func (p *player) someRetry() {
	if id := p.random.Intn(len(p.nodes)); id > 0 {
		p.play(&Step{Action: RetryNode, Node: uint16(id)}, 0)
		return
	}
	p.play(&Step{Action: RetryController}, 0)
}

// someChange changes the list by plan.
func (p *player) someChange() {
	list := p.controller.List()
	change := replica.Change{}
	if p.random.Intn(2) == 0 && len(list) < p.taste.nodes && len(list) < 9 {
		change.Add = []uint16{p.absent()}
	} else if len(list) > 1 {
		change.Remove = []uint16{list[p.random.Intn(len(list))].Node}
	}
	p.play(&Step{Action: Change, Change: change}, 0)
}

// absent returns a node that is not in the list: one that was, and perhaps runs, or a new one.
func (p *player) absent() uint16 {
	list := p.controller.List()
	var out []uint16
	for id := 1; id < len(p.nodes); id++ {
		if _, listed := list.Find(uint16(id)); !listed {
			out = append(out, uint16(id))
		}
	}
	if len(out) == 0 || len(out) < 3 && p.random.Intn(2) == 0 {
		return uint16(len(p.nodes))
	}
	return out[p.random.Intn(len(out))]
}

// someTrouble lets a node crash, start again, or be believed dead, rightly or not.
func (p *player) someTrouble() {
	list := p.controller.List()
	id := list[p.random.Intn(len(list))].Node
	running := p.nodes[id] != nil
	switch p.random.Intn(3) {
	case 0:
		if running {
			p.play(&Step{Action: Crash, Node: id}, 0)
			return
		}
		p.play(&Step{Action: Restart, Node: id}, 0)
	case 1:
		if running {
			p.play(&Step{Action: Crash, Node: id}, 0)
			p.play(&Step{Action: Restart, Node: id}, 0)
			return
		}
		fallthrough
	default:
		if len(list) > 1 {
			p.play(&Step{Action: Change, Change: replica.Change{Fail: []uint16{id}}}, 0)
		}
	}
}

// someTime lets time pass; the controller is told of nodes that are down for so long.
func (p *player) someTime() {
	for id := 1; id < len(p.nodes); id++ {
		_, listed := p.controller.List().Find(uint16(id))
		if listed && p.nodes[id] == nil && p.random.Intn(phases) == 0 {
			p.play(&Step{Action: Restart, Node: uint16(id)}, 0)
		}
	}
	p.play(&Step{Action: Tick}, 0)
}

func (p *player) someRestart() { p.play(&Step{Action: RestartController}, 0) }

// Replay plays the schedule of a seed again, leaves out what does not matter to what it breaks, and returns the steps that are left with
// what they break; nil when it breaks nothing.
func (s Schedules) Replay(seed uint64) (*Trace, bool) {
	var steps []Step
	violation := s.play(seed, &steps)
	if violation == nil {
		return nil, false
	}
	r := random.New(seed, "schedule")
	return shrink(&Trace{setup: s.setup(&r), Steps: slices.Clip(steps), Violation: *violation}), true
}

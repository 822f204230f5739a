// Package world is what a scenario plays in: a network of namespaces (clients, a router with ECMP, load balancers,
// servers) that runs the real ballast, nginx and clients, and breaks on purpose.
//
// A trial is one network with one fleet, put through one series of events. It is made of parts that own their state;
// those further down in the list know those above them.
package world

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/linux/link"
)

// Setup is what a trial starts with.
type Setup struct {
	Name       string
	Topology   Topology
	Services   []*fleet.Service
	Members    []int    // servers in the pool at first; default: all of the topology
	Second     []int    // load balancers of the second tier that are there at first
	Weights    []uint16 // of the servers, as an operator knows their size; default: all alike
	Reports    bool     // agents report to the load balancers how busy their servers are
	NoAgents   bool
	Gateways   bool     // functions have agents, which keep their routes to load balancers
	LBFlags    []string // of load balancers that run by a file
	AgentFlags []string
	Tickets    bool // agents share the key of session tickets, which programs that give up root may read
	Clocks     bool // the LBs write the cookies: every change is done when they know the servers' clocks
	NoDaemons  bool // of Ballast: what balances is not ours
	Baseline   bool // its broken connections are the comparison, not a broken promise
	Cuts       bool // it breaks connections on purpose, and judges itself which
}

// Event is one event of a trial, as it went.
type Event struct {
	What    string  `json:"what"`
	At      float64 `json:"at_seconds"`
	Seconds float64 `json:"seconds"`
}

// Result is the outcome of one trial.
type Result struct {
	Name string `json:"name"`
	Tally
	Events   []Event                      `json:"events,omitempty"`
	Counters map[string]map[string]uint64 `json:"counters,omitempty"` // node -> verdict -> packets
	TCP      map[string]map[string]uint64 `json:"tcp,omitempty"`      // node -> netstat counter
	Losses   map[string]link.Losses       `json:"losses,omitempty"`   // end of a link -> frames lost on purpose

	Overflowed uint64 `json:"overflowed,omitempty"` // packets of the machine that found a CPU's queue full
}

// Trial is a running one.
type Trial struct {
	Context context.Context
	Setup   Setup
	Random  *rand.Rand
	Fleet   *fleet.Fleet

	Lab         *host.Lab    // the machine: namespaces, processes
	Network     *Network     // nodes and links
	Routes      *Routes      // between them
	Daemons     *Daemons     // ballast lb and ballast agent
	Pool        *Pool        // the fleet as an operator edits it
	Controllers *Controllers // with etcd
	Operator    *Operator    // ballast ctl
	Rollout     *Rollout     // makes the fleet what the pool says
	Failures    *Failures    // of load balancers
	Monitor     *Monitor     // what daemons report
	Counters    *Counters    // and count
	Tables      *Tables      // connections of load balancers and servers
	Servers     *Servers     // what all servers run
	Endpoints   *Endpoints   // servers of ours for the service
	Foreign     *Foreign     // programs that are not ours
	Traffic     *Traffic     // clients whose every connection counts
	Clients     *Clients     // other clients

	started time.Time
	mutex   sync.Mutex // of the events
	outcome Result
}

// RunTrial builds a network, lets act do its events, ends the traffic, collects the outcome and removes the network. It
// is watched meanwhile.
func RunTrial(ctx context.Context, options host.Options, what Setup, watch func(*Trial) (stop func()), act func(*Trial)) (outcome Result, err error) {
	before := overflowed()
	lab, err := host.New(ctx, options)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	t := Prepare(lab, what)
	if err := script.Try(t.bringUp); err != nil {
		return Result{}, err
	}
	defer watch(t)()
	err = script.Try(func() {
		act(t)
		t.Traffic.Finish(t.Context)
		t.collect()
	})
	t.outcome.Overflowed = overflowed() - before
	if err != nil {
		if ctx.Err() == nil || errors.Is(context.Cause(ctx), loadmeter.ErrOutOfTime) {
			err = errors.Join(err, lab.Deaths())
		}
		t.addEnded()
		return t.outcome, fmt.Errorf("%s: %w", what.Name, err)
	}
	return t.outcome, nil
}

// Prepare makes a trial in a lab that has no network yet.
func Prepare(lab *host.Lab, what Setup) *Trial {
	t := &Trial{Lab: lab, Context: lab.Context, Setup: what, started: time.Now(), outcome: Result{Name: what.Name}, Random: newRandom(lab.Seed)}
	t.Fleet = fleet.New(t.Random, what.Services...)
	t.connect(&Network{Topology: what.Topology, lab: lab})
	return t
}

// connect makes the parts of a trial, which know each other.
func (t *Trial) connect(network *Network) {
	lab, what := t.Lab, &t.Setup
	t.Network, t.Routes = network, network.routes
	t.Daemons = &Daemons{lab: lab, network: network, lbFlags: what.LBFlags, agentFlags: what.AgentFlags,
		LBs: map[string]*Daemon{}, Second: map[string]*Daemon{}, Agents: map[string]*Daemon{}}
	t.Pool = &Pool{Fleet: t.Fleet, topology: &network.Topology, daemons: t.Daemons, random: t.Random, weights: what.Weights, noAgents: what.NoAgents, gateways: what.Gateways}
	t.Controllers = &Controllers{lab: lab, network: network}
	t.Operator = &Operator{lab: lab, controllers: what.Topology.Controllers}
	t.Rollout = &Rollout{Daemons: t.Daemons, pool: t.Pool, operator: t.Operator, clocks: what.Clocks}
	t.Monitor, t.Counters = &Monitor{rollout: t.Rollout}, &Counters{rollout: t.Rollout}
	t.Tables = &Tables{pool: t.Pool, rollout: t.Rollout}
	t.Servers = &Servers{lab: lab, network: network, fleet: t.Fleet}
	t.Failures = &Failures{network: network, rollout: t.Rollout, servers: t.Servers}
	t.Endpoints = &Endpoints{lab: lab, network: network, fleet: t.Fleet, agents: t.Daemons.Agents, random: t.Random}
	t.Foreign = &Foreign{servers: t.Servers, endpoints: t.Endpoints, lab: lab, network: network, fleet: t.Fleet}
	t.Traffic = &Traffic{network: network, random: t.Random}
	t.Clients = &Clients{network: network, fleet: t.Fleet, random: t.Random}
}

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

// bringUp builds the network and starts servers, controllers, agents and load balancers.
func (t *Trial) bringUp() {
	topology := t.Setup.Topology
	t.Lab.Progress("%s: building %d load balancers and %d servers", t.Setup.Name, topology.LBs, len(topology.Servers))
	for _, one := range t.Setup.Services {
		if (!one.Functions() || one.Destinations.IsSingleIP()) && !slices.Contains(topology.VIPs, one.VIP) {
			topology.VIPs = append(topology.VIPs, one.VIP)
		}
	}
	topology.Management = topology.Management || t.Setup.Reports
	if t.Setup.Members == nil {
		for i := range topology.Servers {
			t.Setup.Members = append(t.Setup.Members, i+1)
		}
	}
	t.connect(buildNetwork(t.Lab, topology))
	t.Servers.start()
	if t.Setup.NoDaemons {
		return
	}
	t.Pool.compose(t.Lab, &t.Setup)
	t.Controllers.start()
	t.Rollout.Apply()
}

// Round is a time in seconds, to the millisecond.
func Round(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// collect gathers what happened to the connections and what the nodes counted.
func (t *Trial) collect() {
	t.addEnded()
	t.outcome.TCP = map[string]map[string]uint64{}
	for _, node := range append(names(ServerName, len(t.Network.Servers)), ClientNode) {
		t.outcome.TCP[node] = netstat(t.Lab, node)
	}
	t.outcome.Losses = t.Network.losses()
	t.outcome.Counters = t.Counters.All()
	script.Check(t.Lab.Deaths())
}

// addEnded adds what happened to the connections that have ended.
func (t *Trial) addEnded() {
	t.outcome.Tally = Tally{}
	for _, running := range t.Traffic.Loads() {
		_, connections := running.State()
		for _, connection := range connections {
			t.outcome.Add(connection)
			if t.livedThroughout(connection) {
				t.outcome.Throughout = mergeCounts(t.outcome.Throughout, map[string]int{connection.Flow: 1})
			}
		}
	}
}

// livedThroughout reports whether a completed connection began before the first event and ended after the last.
func (t *Trial) livedThroughout(connection traffic.Connection) bool {
	events := t.outcome.Events
	if len(events) == 0 || connection.Class != traffic.Completed {
		return false
	}
	last := events[len(events)-1]
	return Round(connection.Started.Sub(t.started)) < events[0].At && Round(connection.Ended.Sub(t.started)) > last.At+last.Seconds
}

// Event does one thing to the network and records when it happened and how long it took.
func (t *Trial) Event(what string, do func()) {
	begin := time.Now()
	t.Lab.Progress("%s: %5.1f s: %s", t.Setup.Name, begin.Sub(t.started).Seconds(), what)
	script.Checkf(script.Try(do), "%s", what)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.outcome.Events = append(t.outcome.Events, Event{
		What: what, At: Round(begin.Sub(t.started)), Seconds: Round(time.Since(begin)),
	})
}

// Change is an event that edits the fleet and waits until everyone runs by it.
func (t *Trial) Change(what string, edit func()) {
	t.Event(what, func() {
		edit()
		t.Rollout.Apply()
	})
}

// Sicken makes the health checks of a server fail, or succeed again, and waits until load balancers know.
func (t *Trial) Sicken(i int, sick bool, lbs ...string) {
	t.Servers.SetHealthy(i, !sick)
	t.Monitor.AwaitHealth(i, sick, lbs...)
}

// Step is one event of a series, followed by as many connections before the next.
type Step struct {
	What string
	Do   func()
}

// Series does events one after the other; between them clients open some connections.
func (t *Trial) Series(running *Load, steps ...Step) {
	const between = 40
	for _, one := range steps {
		t.Event(one.What, one.Do)
		t.Traffic.Busy(running, between)
	}
}

// AtTime is an event of a series whose times are part of the experiment.
func (t *Trial) AtTime(when time.Time, what string, do func()) {
	timer := time.NewTimer(time.Until(when))
	defer timer.Stop()
	select {
	case <-timer.C:
		t.Event(what, do)
		return
	case <-t.Context.Done():
		script.Check(context.Cause(t.Context))
	}
}

// Snapshot is the state of the trial now.
func (t *Trial) Snapshot(scenario string) Snapshot {
	now := Snapshot{
		Scenario: scenario, Trial: t.Setup.Name, Baseline: t.Setup.Baseline,
		Elapsed: time.Since(t.started), ByServer: map[string]int{}, Counters: t.Counters.All(),
	}
	t.mutex.Lock()
	if events := t.outcome.Events; len(events) > 0 {
		now.Event = events[len(events)-1].What
	}
	t.mutex.Unlock()
	for _, running := range t.Traffic.Loads() {
		progress, connections := running.State()
		now.Tally.Attempted += progress.Attempted
		now.Tally.Completed += progress.Completed
		now.Tally.Broken += progress.Broken
		now.Tally.Bytes += progress.Bytes
		now.ByServer = mergeCounts(now.ByServer, progress.OpenByServer)
		now.Open += progress.Open
		if len(connections) > 0 {
			now.Tally.BrokenBy = mergeCounts(now.Tally.BrokenBy, brokenBy(connections))
		}
	}
	return now
}

// Snapshot is the state of a running trial, for a live display.
type Snapshot struct {
	Scenario string
	Trial    string
	Baseline bool
	Elapsed  time.Duration
	Event    string
	Tally    Tally // of connections that have ended
	Open     int
	ByServer map[string]int               // open connections
	Counters map[string]map[string]uint64 // node -> verdict -> packets
}

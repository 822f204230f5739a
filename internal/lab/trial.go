// A trial is one network with one fleet, put through one series of events.
package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/netspace"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/linux/datapath"
)

const stall = 15 * time.Second

// setup says what a trial starts with.
type setup struct {
	name     string
	topology Topology
	services []*service
	members  []int    // servers in the pool at first; default: all of the topology
	second   []int    // load balancers of the second tier that are there at first
	weights  []uint16 // of the servers, as an operator knows their size; default: all alike
	reports  bool     // agents tell the load balancers how busy their servers are
	noAgents bool
	lbFlags  []string // of load balancers that run by a file
	clocks   bool     // the LBs write the cookies: every change is done when they know the servers' clocks
	baseline bool     // its broken connections are the comparison, not a broken promise
	cuts     bool     // it breaks connections on purpose, and judges itself which
}

// Happening is one event of a trial, as it went.
type Happening struct {
	What    string  `json:"what"`
	At      float64 `json:"at_seconds"`
	Seconds float64 `json:"seconds"`
}

// Trial is the outcome of one trial.
type Trial struct {
	Name string `json:"name"`
	Tally
	Events   []Happening                    `json:"events,omitempty"`
	Counters map[string]map[string]uint64   `json:"counters,omitempty"` // node -> verdict -> packets
	TCP      map[string]map[string]uint64   `json:"tcp,omitempty"`      // node -> netstat counter
	Losses   map[string]datapath.LinkLosses `json:"losses,omitempty"`   // end of a link -> frames lost on purpose

	Overflowed uint64 `json:"overflowed,omitempty"` // packets of the machine that found a CPU's queue full
}

// trial is a running one.
type trial struct {
	*Lab
	ctx    context.Context
	setup  setup
	fleet  *fleet
	random *rand.Rand
	lbs    map[string]*daemon
	second map[string]*daemon
	agents map[string]*daemon

	members, controllers map[string]*Process // of a fleet that runs by controllers
	relays               []relayed           // between it and its load balancers

	loads   []*load
	lossy   map[string]*datapath.Wire
	started time.Time
	outcome Trial
}

// newTrial builds the network and starts servers, agents and load balancers.
func newTrial(ctx context.Context, options Options, what setup) (*trial, error) {
	lab, err := New(options)
	if err != nil {
		return nil, err
	}
	t := &trial{
		Lab: lab, ctx: ctx, setup: what, started: time.Now(), outcome: Trial{Name: what.name},
		random: newRandom(options.Seed), lossy: map[string]*datapath.Wire{},
		lbs: map[string]*daemon{}, second: map[string]*daemon{}, agents: map[string]*daemon{},
	}
	t.lbFlags = what.lbFlags
	t.fleet = newFleet(t.random, what.services...)
	if err := t.bringUp(); err != nil {
		return nil, errors.Join(err, lab.Close())
	}
	return t, nil
}

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

func (t *trial) bringUp() error {
	t.Progress("%s: building %d load balancers and %d servers", t.setup.name, t.setup.topology.LBs, len(t.setup.topology.Servers))
	for _, one := range t.setup.services {
		t.setup.topology.VIPs = append(t.setup.topology.VIPs, netip.MustParseAddr(one.VIP))
	}
	t.setup.topology.Management = t.setup.topology.Management || t.setup.reports
	if err := t.build(t.setup.topology); err != nil {
		return err
	}
	if t.setup.members == nil {
		for i := range t.topo.Servers {
			t.setup.members = append(t.setup.members, i+1)
		}
	}
	if err := t.startServers(t.ctx); err != nil {
		return err
	}
	for _, i := range t.setup.members {
		t.addServer(i)
	}
	for i := range t.topo.LBs {
		t.lbs[lbName(i+1)] = nil
	}
	t.divideTiers()
	if err := t.startControl(); err != nil {
		return err
	}
	return t.apply()
}

// addServer adds a server to every service of the fleet; apply makes it so.
func (t *trial) addServer(i int) {
	weight := uint16(0)
	if i <= len(t.setup.weights) {
		weight = t.setup.weights[i-1]
	}
	for _, one := range t.fleet.Services {
		one.add(i, t.topo.serverAddress(i, t.wantsIPv6Servers(one)), weight)
	}
	if !t.setup.noAgents {
		t.agents[serverName(i)] = t.agents[serverName(i)] // a new entry is started by apply
	}
}

// removeServer takes a server out of every service. Its agent stays as it is: it has connections to end.
func (t *trial) removeServer(i int) {
	for _, one := range t.fleet.Services {
		one.remove(i)
	}
	delete(t.agents, serverName(i))
}

// wantsIPv6Servers: servers are of the VIP's family unless the service's tunnel crosses families.
func (t *trial) wantsIPv6Servers(one *service) bool {
	return netip.MustParseAddr(one.VIP).Is6() != one.crossFamily
}

// apply writes the fleet to every node, starts the daemons that do not run yet, agents before load
// balancers, those of the second tier before the first, and waits until all run by it.
func (t *trial) apply() error {
	content, err := t.fleet.encode()
	if err != nil {
		return err
	}
	if t.topo.Controllers != 0 {
		return t.applyByControl(content)
	}
	for _, group := range []struct {
		role    string
		daemons map[string]*daemon
	}{{"agent", t.agents}, {"lb", t.second}, {"lb", t.lbs}} {
		for node, running := range group.daemons {
			if running != nil && running.down {
				continue
			}
			if err := t.writeConfig(node, content); err != nil {
				return err
			}
			if running != nil {
				continue
			}
			if group.daemons[node], err = t.startDaemon(group.role, node); err != nil {
				return err
			}
		}
		for _, running := range group.daemons {
			if running.down {
				continue
			}
			if err := t.awaitConfig(t.ctx, running, content); err != nil {
				return err
			}
		}
	}
	if t.setup.clocks {
		return t.awaitTakingPart()
	}
	return nil
}

// event does one thing to the network and records when it happened and how long it took.
func (t *trial) event(what string, do func() error) error {
	begin := time.Now()
	t.Progress("%s: %5.1f s: %s", t.setup.name, begin.Sub(t.started).Seconds(), what)
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.outcome.Events = append(t.outcome.Events, Happening{
		What: what, At: round(begin.Sub(t.started)), Seconds: round(time.Since(begin)),
	})
	return nil
}

func round(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// change is an event that edits the fleet and waits until everyone runs by it.
func (t *trial) change(what string, edit func()) error {
	return t.event(what, func() error {
		edit()
		return t.apply()
	})
}

// generate starts traffic to the trial's services.
func (t *trial) generate(flows ...traffic.Flow) (*load, error) {
	return t.generatePatiently(stall, flows...)
}

// generatePatiently starts traffic whose connections may go without progress for the given time.
func (t *trial) generatePatiently(stall time.Duration, flows ...traffic.Flow) (*load, error) {
	v6 := t.topo.VIPs[0].Is6()
	running, err := t.startLoad(traffic.Plan{
		Seed: t.random.Uint64(), Sources: t.topo.sourceAddresses(v6), Stall: stall, Flows: flows,
	})
	if err != nil {
		return nil, err
	}
	t.mutex.Lock()
	t.loads = append(t.loads, running)
	t.mutex.Unlock()
	return running, nil
}

// target is the address of the trial's first service.
func (t *trial) target() string { return t.fleet.Services[0].target() }

// until waits until the progress of a load satisfies the condition.
func (t *trial) until(running *load, within time.Duration, what string, condition func(traffic.Progress) bool) error {
	return await(t.ctx, within, what, func() error {
		now := running.now()
		if condition(now) {
			return nil
		}
		if err := running.died(); err != nil {
			return stopWaiting(err)
		}
		return fmt.Errorf("%d connections attempted, %d open", now.Attempted, now.Open)
	})
}

// untilEmpty waits until no client has an open connection to the servers.
func (t *trial) untilEmpty(within time.Duration, servers ...int) error {
	return await(t.ctx, within, fmt.Sprintf("no connection to servers %v is open", servers), func() error {
		for _, i := range servers {
			for _, running := range t.loads {
				if open := running.now().OpenByServer[serverName(i)]; open != 0 {
					return fmt.Errorf("%s has %d", serverName(i), open)
				}
			}
		}
		return nil
	})
}

// crashLB ends an LB as a power cut would.
func (t *trial) crashLB(i int) error { return t.crash(t.lbs[lbName(i)], "eth0", "eth1") }

// crash cuts a node off its links and kills its daemon; what it had in memory is gone.
func (t *trial) crash(what *daemon, links ...string) error {
	var errs []error
	for _, link := range links {
		errs = append(errs, t.space(what.node).SetLink(link, false))
	}
	what.kill()
	what.down = true
	_, err := removePins(t.nodeDir(what.node))
	return errors.Join(append(errs, err)...)
}

// returnLB boots a crashed LB: it takes traffic when it is ready, not before.
func (t *trial) returnLB(i int) error {
	node := lbName(i)
	if err := t.space(node).SetLink("eth1", true); err != nil {
		return err
	}
	t.lbs[node] = nil
	if err := errors.Join(t.routeToFarServers(node), t.apply()); err != nil {
		return err
	}
	return errors.Join(
		t.space(node).SetLink("eth0", true),
		t.space(node).Route(anywhere4, 0, netspace.NextHop{Gateway: prefix("10.20.%d.1/24", i).Addr(), Interface: "eth0"}),
		t.space(node).Route(anywhere6, 0, netspace.NextHop{Gateway: prefix("fd20:0:0:%x::1/64", i).Addr(), Interface: "eth0"}))
}

// lose makes one end of a link lose frames on their way out; faults of zero make it whole again.
func (t *trial) lose(node, name string, faults datapath.LinkFaults) error {
	end := node + "/" + name
	if t.lossy[end] == nil {
		wire, err := datapath.LoadWire()
		if err != nil {
			return err
		}
		t.lossy[end] = wire
		t.faults = append(t.faults, wire)
		if err := t.space(node).Do(func() error {
			link, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			return wire.AttachLoss(link.Index)
		}); err != nil {
			return err
		}
	}
	return t.lossy[end].SetFaults(faults)
}

// finish ends the traffic and collects the outcome.
func (t *trial) finish() error {
	for _, running := range t.loads {
		if err := running.finish(t.ctx); err != nil {
			return err
		}
	}
	return t.collect()
}

// collect gathers what happened to the connections and what the nodes counted.
func (t *trial) collect() error {
	t.addEnded()
	t.outcome.TCP, t.outcome.Losses = map[string]map[string]uint64{}, map[string]datapath.LinkLosses{}
	nodes := []string{clientNode}
	for i := range t.topo.Servers {
		nodes = append(nodes, serverName(i+1))
	}
	for _, node := range nodes {
		counters, err := t.netstat(node)
		if err != nil {
			return err
		}
		t.outcome.TCP[node] = counters
	}
	for end, wire := range t.lossy {
		losses, err := wire.Losses()
		if err != nil {
			return fmt.Errorf("read losses of %s: %w", end, err)
		}
		t.outcome.Losses[end] = losses
	}
	t.outcome.Counters = t.counters()
	return t.deaths()
}

// addEnded adds what happened to the connections that have ended.
func (t *trial) addEnded() {
	t.outcome.Tally = Tally{}
	for _, running := range t.loads {
		_, connections := running.state()
		for _, connection := range connections {
			t.outcome.add(connection)
			if t.livedThroughout(connection) {
				t.outcome.Throughout = mergeCounts(t.outcome.Throughout, map[string]int{connection.Flow: 1})
			}
		}
	}
}

// livedThroughout tells whether a completed connection began before the first event and ended after the last.
func (t *trial) livedThroughout(connection traffic.Connection) bool {
	events := t.outcome.Events
	if len(events) == 0 || connection.Class != traffic.Completed {
		return false
	}
	last := events[len(events)-1]
	return round(connection.Started.Sub(t.started)) < events[0].At && round(connection.Ended.Sub(t.started)) > last.At+last.Seconds
}

// counters asks every daemon for its packet counters; zeros are left out.
func (t *trial) counters() map[string]map[string]uint64 {
	all := map[string]map[string]uint64{}
	for _, node := range t.nodesWithDaemons() {
		counters, err := t.client(node).Counters(t.ctx)
		if err != nil {
			continue // not started, or crashed on purpose
		}
		all[node] = map[string]uint64{}
		for verdict, packets := range counters {
			if packets != 0 {
				all[node][verdict] = packets
			}
		}
	}
	return all
}

// A trial is one network with one fleet, put through one series of events.
package world

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/pace"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Stall is how long a connection may go without progress.
const Stall = 15 * time.Second

// Setup says what a trial starts with.
type Setup struct {
	Name       string
	Topology   Topology
	Services   []*fleet.Service
	Members    []int    // servers in the pool at first; default: all of the topology
	Second     []int    // load balancers of the second tier that are there at first
	Weights    []uint16 // of the servers, as an operator knows their size; default: all alike
	Reports    bool     // agents tell the load balancers how busy their servers are
	NoAgents   bool
	LBFlags    []string // of load balancers that run by a file
	AgentFlags []string
	Tickets    bool // agents share the key of session tickets, which programs that give up root may read
	Clocks     bool // the LBs write the cookies: every change is done when they know the servers' clocks
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
	*Lab
	Context context.Context
	Setup   Setup
	Fleet   *fleet.Fleet
	Random  *rand.Rand
	LBs     map[string]*Daemon
	Second  map[string]*Daemon
	Agents  map[string]*Daemon

	Members, Controllers map[string]*Process // of a fleet that runs by controllers
	relays               []relayed           // between it and its load balancers

	Loads   []*Load
	closers []func() // of what this process does in the lab
	lossy   map[string]*link.Wire
	started time.Time
	outcome Result
}

// RunTrial builds a network, lets act do its events, ends the traffic, collects the outcome and removes the network. It is watched
// meanwhile.
func RunTrial(ctx context.Context, options Options, what Setup, watch func(*Trial) (stop func()), act func(*Trial)) (outcome Result, err error) {
	before := overflowed()
	t, err := newTrial(ctx, options, what)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	defer watch(t)()
	defer func() {
		for _, done := range t.closers {
			done()
		}
	}()
	err = script.Try(func() {
		act(t)
		t.finish()
	})
	t.outcome.Overflowed = overflowed() - before
	if err != nil {
		if ctx.Err() == nil || errors.Is(context.Cause(ctx), pace.ErrOutOfTime) {
			err = errors.Join(err, t.deaths())
		}
		t.addEnded()
		return t.outcome, fmt.Errorf("%s: %w", what.Name, err)
	}
	return t.outcome, nil
}

// newTrial builds the network and starts servers, agents and load balancers.
func newTrial(ctx context.Context, options Options, what Setup) (*Trial, error) {
	lab, err := New(options)
	if err != nil {
		return nil, err
	}
	t := Prepare(ctx, lab, what)
	if err := script.Try(t.bringUp); err != nil {
		return nil, errors.Join(err, lab.Close())
	}
	return t, nil
}

// Prepare makes a trial in a lab that has no network yet.
func Prepare(ctx context.Context, lab *Lab, what Setup) *Trial {
	t := &Trial{
		Lab: lab, Context: ctx, Setup: what, started: time.Now(), outcome: Result{Name: what.Name},
		Random: newRandom(lab.Seed), lossy: map[string]*link.Wire{},
		LBs: map[string]*Daemon{}, Second: map[string]*Daemon{}, Agents: map[string]*Daemon{},
	}
	t.lbFlags, t.agentFlags = what.LBFlags, what.AgentFlags
	t.Fleet = fleet.New(t.Random, what.Services...)
	return t
}

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

func (t *Trial) bringUp() {
	t.Progress("%s: building %d load balancers and %d servers", t.Setup.Name, t.Setup.Topology.LBs, len(t.Setup.Topology.Servers))
	for _, one := range t.Setup.Services {
		if (!one.Functions() || one.Destinations.IsSingleIP()) && !slices.Contains(t.Setup.Topology.VIPs, one.VIP) {
			t.Setup.Topology.VIPs = append(t.Setup.Topology.VIPs, one.VIP)
		}
	}
	t.Setup.Topology.Management = t.Setup.Topology.Management || t.Setup.Reports
	t.build(t.Setup.Topology)
	if t.Setup.Members == nil {
		for i := range t.Topology.Servers {
			t.Setup.Members = append(t.Setup.Members, i+1)
		}
	}
	t.startServers()
	for _, i := range t.Setup.Members {
		t.AddServer(i)
	}
	for i := range t.Topology.LBs {
		t.LBs[LBName(i+1)] = nil
	}
	t.divideTiers()
	t.speakBGP()
	if t.Setup.Tickets {
		t.agents = t.shareTicketKey(t.Random)
	}
	t.nameTunnelSources()
	t.startControl()
	t.Apply()
}

// nameTunnelSources tells agents by the file whose stops they may follow.
func (t *Trial) nameTunnelSources() {
	offered := func(one *fleet.Service) bool { return one.Dispatch == model.DispatchChoices }
	if t.Topology.Controllers != 0 || !slices.ContainsFunc(t.Fleet.Services, offered) {
		return
	}
	for i := range t.Topology.LBs {
		for _, address := range t.fabricAddresses(i + 1) {
			t.Fleet.TunnelsFrom = append(t.Fleet.TunnelsFrom, address.Addr())
		}
	}
}

// AddServer adds a server to every service of the fleet; apply makes it so.
func (t *Trial) AddServer(i int) {
	weight := uint16(0)
	if i <= len(t.Setup.Weights) {
		weight = t.Setup.Weights[i-1]
	}
	for _, one := range t.Fleet.Services {
		one.Add(ServerName(i), i, t.Topology.ServerAddress(i, t.wantsIPv6Servers(one)), weight)
	}
	if !t.Setup.NoAgents {
		t.Agents[ServerName(i)] = t.Agents[ServerName(i)] // a new entry is started by apply
	}
}

// RemoveServer takes a server out of every service. Its agent stays as it is: it has connections to end.
func (t *Trial) RemoveServer(i int) {
	for _, one := range t.Fleet.Services {
		one.Remove(i)
	}
	delete(t.Agents, ServerName(i))
}

// wantsIPv6Servers: servers are of the VIP's family unless the service's tunnel crosses families.
func (t *Trial) wantsIPv6Servers(one *fleet.Service) bool {
	return one.VIP.Is6() != one.CrossFamily
}

// Apply writes the fleet to every node, starts the daemons that do not run yet, agents before load
// balancers, those of the second tier before the first, and waits until all run by it.
func (t *Trial) Apply() {
	content := script.Must(t.Fleet.Encode())
	if t.Topology.Controllers != 0 {
		t.applyByControl(content)
		return
	}
	for _, group := range []struct {
		role    string
		daemons map[string]*Daemon
	}{{"agent", t.Agents}, {"lb", t.Second}, {"lb", t.LBs}} {
		for node, running := range group.daemons {
			if running != nil && running.down {
				continue
			}
			t.writeConfig(node, content)
			if running != nil {
				continue
			}
			group.daemons[node] = t.StartDaemon(group.role, node)
		}
		for _, running := range group.daemons {
			if running.down {
				continue
			}
			t.awaitConfig(t.Context, running, content)
		}
	}
	if t.Setup.Clocks {
		t.awaitTakingPart()
	}
}

// Round is a time in seconds, to the millisecond.
func Round(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// Generate starts traffic to the trial's services.
func (t *Trial) Generate(flows ...traffic.Flow) *Load {
	return t.GeneratePatiently(Stall, flows...)
}

// GeneratePatiently starts traffic whose connections may go without progress for the given time.
func (t *Trial) GeneratePatiently(stall time.Duration, flows ...traffic.Flow) *Load {
	v6 := len(t.Topology.VIPs) > 0 && t.Topology.VIPs[0].Is6()
	running := t.startLoad(traffic.Plan{
		Seed: t.Random.Uint64(), Sources: t.Topology.SourceAddresses(v6), Stall: stall, Flows: flows,
	})
	t.mutex.Lock()
	t.Loads = append(t.Loads, running)
	t.mutex.Unlock()
	return running
}

// Target is the address of the trial's first service.
func (t *Trial) Target() string { return t.Fleet.Services[0].Target() }

// CrashLB ends an LB as a power cut would.
func (t *Trial) CrashLB(i int) { t.Crash(t.LBs[LBName(i)], "eth0", "eth1") }

// Crash cuts a node off its links and kills its daemon; what it had in memory is gone.
func (t *Trial) Crash(what *Daemon, links ...string) {
	var errs []error
	for _, link := range links {
		errs = append(errs, t.Space(what.node).SetLink(link, false))
	}
	what.Kill()
	what.down = true
	_, err := removePins(t.NodeDir(what.node))
	script.Check(errors.Join(append(errs, err)...))
}

// ReturnLB boots a crashed LB: it takes traffic when it is ready, not before.
func (t *Trial) ReturnLB(i int) {
	node := LBName(i)
	script.Check(t.Space(node).SetLink("eth1", true))
	t.LBs[node] = nil
	t.routeToFarServers(node)
	t.Apply()
	script.Check(errors.Join(
		t.Space(node).SetLink("eth0", true),
		t.Space(node).Route(anywhere4, 0, netspace.NextHop{Gateway: prefix("10.20.%d.1/24", i).Addr(), Interface: "eth0"}),
		t.Space(node).Route(anywhere6, 0, netspace.NextHop{Gateway: prefix("fd20:0:0:%x::1/64", i).Addr(), Interface: "eth0"})))
}

// Lose makes one end of a link lose frames on their way out; faults of zero make it whole again.
func (t *Trial) Lose(node, name string, faults link.Faults) {
	end := node + "/" + name
	if t.lossy[end] == nil {
		wire := script.Must(link.Load())
		t.lossy[end] = wire
		t.faults = append(t.faults, wire)
		script.Check(t.Space(node).Do(func() error {
			link, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			return wire.AttachLoss(link.Index)
		}))
	}
	script.Check(t.lossy[end].SetFaults(faults))
}

// finish ends the traffic and collects the outcome.
func (t *Trial) finish() {
	for _, running := range t.Loads {
		running.Finish(t.Context)
	}
	t.collect()
}

// collect gathers what happened to the connections and what the nodes counted.
func (t *Trial) collect() {
	t.addEnded()
	t.outcome.TCP, t.outcome.Losses = map[string]map[string]uint64{}, map[string]link.Losses{}
	nodes := []string{ClientNode}
	for i := range t.Topology.Servers {
		nodes = append(nodes, ServerName(i+1))
	}
	for _, node := range nodes {
		t.outcome.TCP[node] = t.netstat(node)
	}
	for end, wire := range t.lossy {
		losses, err := wire.Losses()
		script.Checkf(err, "read losses of %s", end)
		t.outcome.Losses[end] = losses
	}
	t.outcome.Counters = t.counters()
	script.Check(t.deaths())
}

// addEnded adds what happened to the connections that have ended.
func (t *Trial) addEnded() {
	t.outcome.Tally = Tally{}
	for _, running := range t.Loads {
		_, connections := running.State()
		for _, connection := range connections {
			t.outcome.Add(connection)
			if t.livedThroughout(connection) {
				t.outcome.Throughout = mergeCounts(t.outcome.Throughout, map[string]int{connection.Flow: 1})
			}
		}
	}
}

// livedThroughout tells whether a completed connection began before the first event and ended after the last.
func (t *Trial) livedThroughout(connection traffic.Connection) bool {
	events := t.outcome.Events
	if len(events) == 0 || connection.Class != traffic.Completed {
		return false
	}
	last := events[len(events)-1]
	return Round(connection.Started.Sub(t.started)) < events[0].At && Round(connection.Ended.Sub(t.started)) > last.At+last.Seconds
}

// counters asks every daemon for its packet counters; zeros are left out.
func (t *Trial) counters() map[string]map[string]uint64 {
	all := map[string]map[string]uint64{}
	for _, node := range t.nodesWithDaemons() {
		counters, err := t.Client(node).Counters(t.Context)
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

// Counted is how many packets all daemons have counted by a verdict.
func (t *Trial) Counted(verdict string) (packets uint64) {
	for _, counters := range t.counters() {
		packets += counters[verdict]
	}
	return packets
}

// Drain ends new connections to a server in every service.
func (t *Trial) Drain(i int) {
	for _, one := range t.Fleet.Services {
		one.Drain(i)
	}
}

// Activate lets a drained server have new connections again, in every service.
func (t *Trial) Activate(i int) {
	for _, one := range t.Fleet.Services {
		one.Activate(i)
	}
}

// AddKey adds the cookie key of an epoch that nobody writes yet.
func (t *Trial) AddKey(epoch uint32) { t.Fleet.Keys.Cookie[epoch] = fleet.RandomKey(t.Random) }

// Snapshot is the state of the trial now.
func (t *Trial) Snapshot(scenario string) Snapshot {
	now := Snapshot{
		Scenario: scenario, Trial: t.Setup.Name, Baseline: t.Setup.Baseline,
		Elapsed: time.Since(t.started), ByServer: map[string]int{}, Counters: t.counters(),
	}
	t.mutex.Lock()
	loads := t.Loads
	if events := t.outcome.Events; len(events) > 0 {
		now.Event = events[len(events)-1].What
	}
	t.mutex.Unlock()
	for _, running := range loads {
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

// Package daemon glues the pure parts to the kernel: the process `ballast lb`.
package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/pathid"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/devices"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/daemon/paths"
	"github.com/ballast-lb/ballast/internal/daemon/periodic"
	"github.com/ballast-lb/ballast/internal/daemon/readiness"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	datapath "github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/plan"
)

// LBOptions are what `ballast lb` is started with.
type LBOptions struct {
	// Config is the path of the configuration file that the node runs by; empty: Controllers are told to it.
	Config      string
	Controllers []string // host:port of each
	Listen      string   // with Config: TCP address for agents' load reports, empty: none
	TLSDir      string   // certificates, with Controllers or Listen
	Name        string   // of this node, in the fleet's nodes and in its certificate

	Instance   string   // names the socket, the pins and the state
	Interfaces []string // devices that packets come in by; empty: those of the default routes
	XDPMode    attach.XDPMode
	RunDir     string // sockets and pins
	StateDir   string // what must survive a restart of the machine
	Metrics    string // TCP address for Prometheus, empty: none
	ExecChecks string // directory of the programs that exec checks may run; empty: none with Controllers, any with Config
	FlowLog    string // file for connections that end, -: standard output, empty: none
	Limits     plan.Limits
	Timing     node.Timing
	Version    string
	Log        *slog.Logger
}

// LB is a load-balancer node: it keeps the data path's tables equal to the desired state. All methods are safe for
// concurrent use.
type LB struct {
	options LBOptions
	log     *slog.Logger
	name    string // of this node

	mu              sync.Mutex
	path            *datapath.LB
	tables          *plan.Tables
	node            node.Node
	paths           paths.Table
	heard           map[netip.Addr]heard // for addresses without a way
	probes          probeTable
	file            api.Config
	generation      uint64
	attachments     devices.Attachments
	trace           traceSession
	credentials     *pki.Credentials // with controllers or agents to talk to
	applyIncomplete bool             // of the last change
	// waiting: controllers say what to do, none has yet, and an earlier process has left a data path. It is not touched.
	waiting     bool
	devices     []*net.Interface // that are not attached to yet, for that reason
	unattached  string           // why they are not although there is a state
	stale       bool             // the state is of before a reboot, and the file that would replace it is refused
	kept        statefile.File
	accepts     netip.Addr // where the first tier sends to
	connections connectionTables

	unhealthy  map[string]node.Unhealthy  // by service; replaced, never changed
	weights    map[string]*follow.Weights // by service
	prober     *check.Prober
	refused    []string           // exec checks that are not made here
	checks     *checkroute.Checks // nil: all checks go straight to the servers
	engine     *engine.Engine     // with a file: what weighs and judges servers in this process
	judgements judgements         // of engine
	remote     *remote            // without a file: the controllers
	revision   uint64             // of theirs that runs
}

// How often what only time changes is looked at.
const agePeriod = time.Second

// RunLB runs until ctx ends. The data path stays attached and forwards on; Detach removes it.
func RunLB(ctx context.Context, o LBOptions) error {
	if o.Config != "" {
		path, err := filepath.Abs(o.Config) // others are told it
		if err != nil {
			return err
		}
		o.Config = path
	}
	listener, err := api.Listen(api.SocketPath(o.RunDir, o.Instance))
	if err != nil {
		return err
	}
	defer listener.Close()
	lb := &LB{
		options: o, log: o.Log, kept: statefile.File{Path: statefile.LB(o.StateDir, o.Instance), Log: o.Log}, attachments: devices.Attachments{Mode: o.XDPMode, Log: o.Log},
		heard: map[netip.Addr]heard{}, unhealthy: map[string]node.Unhealthy{}, weights: map[string]*follow.Weights{},
		judgements: judgements{wake: make(chan struct{}, 1), by: map[string]node.Unhealthy{}},
	}
	if len(o.Controllers) > 0 || o.Listen != "" { // before anything is attached
		if lb.credentials, err = pki.Load(o.TLSDir, o.Name, pki.LB); err != nil {
			return err
		}
	}
	if lb.name, err = nodeName(o.Name, lb.credentials); err != nil {
		return err
	}
	if lb.connections.log, err = openFlowLog(o.FlowLog, lb.name, o.Log); err != nil {
		return err
	}
	if o.ExecChecks != "" {
		if err := check.CheckDir(o.ExecChecks); err != nil {
			return err
		}
	}
	interfaces, err := devices.Find(o.Interfaces)
	if err != nil {
		return err
	}
	if err := errors.Join(listen.Try("serve metrics", o.Metrics), listen.Try("listen for agents", o.Listen)); err != nil {
		return err
	}
	lb.newDecider()
	undo, err := attach.BeforeStart(instance.PinDir(o.RunDir, o.Instance))
	if err != nil {
		return err
	}
	if err := lb.start(interfaces); err != nil {
		return errors.Join(err, undo())
	}
	defer func() { o.Log.Info("stopped: the data path stays attached", "instance", o.Instance) }()
	defer lb.mu.Lock() // a change under way is finished, and none begins any more: the process ends here

	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { lb.age(ctx) })
	running.Go(func() { readiness.Log(ctx, o.Log, lb.health) })
	if lb.credentials != nil {
		running.Go(func() { lb.credentials.Watch(ctx, o.Log) })
	}
	running.Go(func() { lb.probeClocks(ctx) })
	reclaimed := lb.watchReclaimed() // before anybody is told that we are here
	running.Go(func() { lb.runConnections(ctx, reclaimed) })
	metrics, err := listen.TCP("serve metrics", o.Metrics)
	var agents net.Listener
	if err == nil {
		agents, err = listen.TCP("listen for agents", o.Listen)
	}
	if err == nil {
		err = netdev.Watch(ctx, lb.networkChanged)
	}
	if err == nil {
		err = netdev.WatchTooBig(ctx, lb.pathNarrowed)
	}
	if err == nil {
		err = lb.startDecider(ctx, &running, agents)
	}
	if err != nil {
		return errors.Join(err, undo())
	}
	if metrics != nil {
		running.Go(func() { listen.ServeMetrics(ctx, o.Log, metrics, lb.metricsHandler(), lb.health) })
	}
	return lb.routes().Serve(ctx, listener)
}

// start brings the data path up: tables first, program last, so that no packet meets an empty table.
func (lb *LB) start(interfaces []*net.Interface) error {
	o := &lb.options
	if err := instance.Prepare(o.RunDir, o.Log); err != nil {
		return err
	}
	known, err := lb.loadState(time.Now())
	if err != nil {
		return err
	}
	lb.waiting = lb.remote != nil && !known && pin.Any(instance.PinDir(o.RunDir, o.Instance))
	var file *config.File
	if lb.remote == nil {
		if file, err = configfile.Load(o.Config, lb.log); err != nil {
			return err
		}
	}
	if lb.path, err = datapath.Open(instance.PinDir(o.RunDir, o.Instance), o.Limits); err != nil {
		return err
	}
	lb.attachments.Hooks = lb.path
	if err := lb.path.CountLater(true); err != nil {
		return errors.Join(err, lb.path.Close())
	}
	if lb.tables, err = plan.Restore(o.Limits, lb.path); err != nil {
		return errors.Join(err, lb.path.Close())
	}
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if lb.waiting {
		lb.devices = interfaces
		lb.log.Warn("no state is known: what an earlier process left goes on untouched until a controller says what to do", "file", lb.kept.Path)
		return nil
	}
	lb.takeOverWeights()
	if file != nil {
		_, err = lb.edit(file, false)
	}
	var breaks *node.Breaks
	if errors.As(err, &breaks) { // what connections live by goes on, and somebody can be asked for the rest
		lb.file.Path, lb.stale = o.Config, !lb.path.Adopted()
		configfile.Note(&lb.file, "", err, lb.log)
	}
	if file == nil || breaks != nil { // as it was last wanted, until there is more
		err = lb.carryOut(lb.node)
	}
	if err != nil {
		return errors.Join(err, lb.path.Close())
	}
	if err := lb.attach(interfaces, devices.BusyPatience); err != nil {
		return errors.Join(err, lb.path.Close())
	}
	return nil
}

// attach puts the program on the devices, in the place of an earlier one.
func (lb *LB) attach(interfaces []*net.Interface, patience time.Duration) error {
	if err := devices.WhileBusy(lb.log, patience, func() error { return lb.attachments.Ensure(interfaces, lb.attachments.Mode) }); err != nil {
		return err
	}
	if err := lb.path.Attached(); err != nil {
		return err
	}
	lb.devices = nil
	lb.log.Info("started", "instance", lb.options.Instance, "services", len(lb.node.Running.Services), "took over", lb.path.Adopted())
	return nil
}

// attachLate attaches what had to wait for a first state. Callers hold mu.
func (lb *LB) attachLate() {
	if lb.waiting || len(lb.devices) == 0 {
		return
	}
	lb.unattached = ""
	if err := lb.attach(lb.devices, 0); err != nil {
		lb.unattached = err.Error()
		lb.log.Error("not attached: an earlier program goes on", "error", err)
	}
}

// carryOut makes the tables follow the desired state. When they cannot, the desired state becomes what it was before.
func (lb *LB) carryOut(before node.Node) error {
	if lb.remote == nil {
		if err := lb.checkOwnListeners(); err != nil {
			lb.node = before
			return err
		}
	}
	paths.AwaitNeighbours(lb.wantedAddresses())
	lb.forgetWeights()
	if err := lb.sync(); err != nil {
		lb.node = before
		return err
	}
	lb.setChecks()
	if lb.engine != nil {
		lb.engine.SetState(lb.view())
	}
	lb.keepState()
	return nil
}

func (lb *LB) logChanges(source string, changes []string) {
	for _, change := range changes {
		lb.log.Info("changed", "by", source, "what", change)
	}
}

// sync writes what differs between the tables and the desired state. Callers hold mu.
func (lb *LB) sync() error {
	if lb.waiting {
		return nil
	}
	lb.paths.Refresh(lb.wantedAddresses(), lb.log)
	want := plan.Want{Keys: lb.node.Running.Keys, Paths: lb.paths.Known, Tier: lb.tier()}
	for _, s := range lb.node.Running.Services {
		sick := lb.unhealthy[s.Name]
		for i := range sick.Cut {
			if i == 0 {
				s = s.Clone()
			}
			switchOff(&s, sick.Cut[i])
		}
		want.Services = append(want.Services, plan.Service{
			Service: s, Removed: lb.node.Lingering(s.Name), Past: lb.node.Past[s.Name], NoCookie: lb.cannotTakePart(&s),
			Down: set(sick.Down), Weights: lb.softWeights(s.Name),
		})
	}
	changes, err := lb.tables.Update(&want)
	if err != nil {
		return err
	}
	if len(changes) > 0 {
		if err := lb.apply(changes); err != nil {
			return err
		}
		lb.generation++
	}
	lb.applyIncomplete = false
	return lb.acceptTunnels()
}

func switchOff(s *model.Service, id uint16) {
	for i := range s.Servers {
		if s.Servers[i].ID == id {
			s.Servers[i].State = model.StateOff
		}
	}
}

func set(ids []uint16) map[uint16]bool {
	members := make(map[uint16]bool, len(ids))
	for _, id := range ids {
		members[id] = true
	}
	return members
}

// networkChanged follows devices, routes and neighbours.
func (lb *LB) networkChanged() {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	lb.attachments.Look(time.Now())
	if err := lb.sync(); err != nil {
		lb.log.Error("next hops not updated", "error", err)
	}
	lb.setChecks()
}

// pathNarrowed follows what routers say about the way to a server: clients get to know by the data path.
func (lb *LB) pathNarrowed(found netdev.TooBig) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if lb.paths.Narrow(found, pathid.Secret(lb.node.Running.Keys.Placement, found.Destination), time.Now()) != paths.Believed {
		return
	}
	lb.log.Info("path to server is narrower than its route says", "address", found.Destination, "mtu", found.MTU)
	if need := lb.ipv6Needs(found.Destination); found.MTU < need {
		lb.log.Warn("path to server is too narrow for IPv6 clients, who send packets of 1280 bytes at the least: widen it",
			"address", found.Destination, "mtu", found.MTU, "needs", need)
	}
	if err := lb.sync(); err != nil {
		lb.log.Error("next hops not updated", "error", err)
	}
}

// ipv6Needs is how wide the way to a server must be for the IPv6 services that it has; 0: it has none.
func (lb *LB) ipv6Needs(address netip.Addr) (mtu uint16) {
	for _, s := range lb.node.Running.Services {
		has := func(server model.Server) bool { return server.Address == address }
		if s.VIP.Is6() && slices.ContainsFunc(s.Servers, has) {
			mtu = max(mtu, 1280+uint16(plan.Overhead(&s, address)))
		}
	}
	return mtu
}

// age does what only time brings: forgetting silent removed servers, letting load estimates decay, filling the trace's budget.
func (lb *LB) age(ctx context.Context) {
	periodic.Every(ctx, agePeriod, func(now time.Time) {
		lb.resyncIfNeeded(now)
		lb.mu.Lock()
		defer lb.mu.Unlock()
		lb.ageOnce(time.Now())
	})
}

// loadMemory is how long the estimate of open connections takes to forget FINs that never came.
const loadMemory = time.Hour

func (lb *LB) ageOnce(now time.Time) {
	places := lb.tables.Places()
	packets := func(service string, id uint16) uint64 {
		if places[service].Nodes {
			return 0 // its servers get nothing from here
		}
		traffic, err := lb.path.ServerTraffic(places[service].Counters[id])
		if err != nil {
			return 0
		}
		return traffic.Packets
	}
	lb.attachments.Look(now)
	lb.attachLate()
	if lb.kept.Unsaved() != "" {
		lb.keepState()
	}
	if lb.applyIncomplete || lb.paths.Expired(now) {
		if err := lb.sync(); err != nil {
			lb.log.Error("tables are still behind the desired state", "error", err)
			return
		}
		places = lb.tables.Places()
	}
	lb.listen(now, packets)
	before := lb.node
	before.Removed = slices.Clone(before.Removed)
	if lb.remote == nil && lb.node.Age(now, lb.options.Timing, packets) { // else controllers do
		if err := lb.carryOut(before); err != nil {
			lb.log.Error("timed changes not applied", "error", err)
		}
	}
	for _, place := range places {
		for _, index := range place.Counters {
			lb.path.DecayOpenConnections(index, agePeriod.Seconds()/loadMemory.Seconds())
		}
	}
	lb.trace.refill(lb.path)
}

// Package daemon glues the pure parts to the kernel: the processes `ballast lb` and `ballast agent`.
package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/controller"
	"github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/linux/datapath"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
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
	LoseWeights float64  // part of weight updates that are dropped on purpose, for experiments

	Instance   string   // names the socket, the pins and the state
	Interfaces []string // devices that packets come in by; empty: those of the default routes
	XDPMode    datapath.XDPMode
	RunDir     string // sockets and pins
	StateDir   string // what must survive a restart of the machine
	Metrics    string // TCP address for Prometheus, empty: none
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

	mu          sync.Mutex
	path        *datapath.LB
	tables      *plan.Tables
	node        node.Node
	paths       pathTable
	probes      probeTable
	file        api.Config
	generation  uint64
	ready       bool
	modes       map[string]datapath.XDPMode
	devices     map[string]net.Interface // as they were when attached to, by name
	trace       traceSession
	credentials *pki.Credentials // with controllers or agents to talk to
	cutOff      bool             // a change was carried out only in part
	accepts     netip.Addr       // where the first tier sends to
	connections connectionTables

	unhealthy  map[string]unhealthy       // by service; replaced, never changed
	weights    map[string]*follow.Weights // by service
	prober     *check.Prober
	checks     *datapath.Checks   // nil: all checks go straight to the servers
	engine     *controller.Engine // with a file: what weighs and judges servers in this process
	judgements judgements         // of engine
	remote     *remote            // without a file: the controllers
}

// unhealthy are the servers of a service that get no new connections, and of those the ones whose connections are cut, by id.
// Controllers tell the latter as servers that are off.
type unhealthy struct {
	Down []uint16 `json:"down"`
	Cut  []uint16 `json:"cut,omitempty"`
}

// How often what only time changes is looked at.
const agePeriod = time.Second

// RunLB runs until ctx ends. The data path stays attached and forwards on; Detach removes it.
func RunLB(ctx context.Context, o LBOptions) error {
	listener, err := api.Listen(api.SocketPath(o.RunDir, o.Instance))
	if err != nil {
		return err
	}
	defer listener.Close()
	lb := &LB{
		options: o, log: o.Log, modes: map[string]datapath.XDPMode{}, devices: map[string]net.Interface{},
		unhealthy: map[string]unhealthy{}, weights: map[string]*follow.Weights{},
		judgements: judgements{wake: make(chan struct{}, 1), by: map[string]unhealthy{}},
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
	lb.makeBrain()
	if err := lb.start(); err != nil {
		return err
	}
	defer lb.mu.Lock() // a change under way is finished, and none begins any more: the process ends here

	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { lb.age(ctx) })
	running.Go(func() { lb.probeClocks(ctx) })
	reclaimed := lb.watchReclaimed() // before anybody is told that we are here
	running.Go(func() { lb.runConnections(ctx, reclaimed) })
	if err := netdev.Watch(ctx, lb.networkChanged); err != nil {
		return err
	}
	if err := netdev.WatchTooBig(ctx, lb.pathNarrowed); err != nil {
		return err
	}
	if err := lb.runBrain(ctx, &running); err != nil {
		return err
	}
	if o.Metrics != "" {
		metrics, err := net.Listen("tcp", o.Metrics)
		if err != nil {
			return fmt.Errorf("serve metrics: %w", err)
		}
		running.Go(func() { serveMetrics(ctx, metrics, lb.metricsHandler(), lb.doesItsWork) })
	}
	return lb.routes().Serve(ctx, listener)
}

// start brings the data path up: tables first, program last, so that no packet meets an empty table.
func (lb *LB) start() error {
	o := &lb.options
	if err := datapath.EnsureBPFFS(filepath.Join(o.RunDir, "bpf")); err != nil {
		return err
	}
	var err error
	if err := lb.loadState(time.Now()); err != nil {
		return err
	}
	var file *config.File
	if lb.remote == nil {
		if file, err = config.Load(o.Config); err != nil {
			return err
		}
	}
	devices, err := interfaces(o.Interfaces)
	if err != nil {
		return err
	}
	if lb.path, err = datapath.OpenLB(pinDir(o.RunDir, o.Instance), o.Limits); err != nil {
		return err
	}
	if err := lb.path.CountLater(true); err != nil {
		return errors.Join(err, lb.path.Close())
	}
	if lb.tables, err = plan.Restore(o.Limits, lb.path); err != nil {
		return errors.Join(err, lb.path.Close())
	}
	lb.mu.Lock()
	defer lb.mu.Unlock()
	lb.takeOverWeights()
	if file != nil {
		err = lb.edit(file)
	} else {
		err = lb.carryOut(lb.node) // as the controllers last said, until they say more
	}
	if err != nil {
		return errors.Join(err, lb.path.Close())
	}
	if err := lb.attach(devices); err != nil {
		return errors.Join(err, lb.path.Close())
	}
	lb.ready = true
	lb.log.Info("ready", "instance", o.Instance, "services", len(lb.node.Running.Services), "took over", lb.path.Adopted())
	return nil
}

func (lb *LB) attach(devices []*net.Interface) error {
	for _, device := range devices {
		mode, err := lb.path.Attach(device, lb.options.XDPMode)
		if err != nil {
			return err
		}
		lb.modes[device.Name], lb.devices[device.Name] = mode, *device
		lb.log.Info("attached", "interface", device.Name, "mode", mode)
	}
	return lb.path.Attached()
}

func pinDir(runDir, instance string) string { return filepath.Join(runDir, "bpf", instance) }

func (lb *LB) statePath() string {
	return filepath.Join(lb.options.StateDir, lb.options.Instance, "state.json")
}

// reloadLogged applies the file as it is now; a file that cannot be applied is refused and the old state goes on.
func (lb *LB) reloadLogged() {
	if err := lb.Reload(); err != nil {
		lb.log.Error("configuration refused, the old state goes on", "error", err)
	}
}

// Reload applies the configuration file as it is now.
func (lb *LB) Reload() error {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	file, err := config.Load(lb.options.Config)
	if err == nil {
		err = lb.edit(file)
	}
	if err != nil {
		lb.file.Error = err.Error()
	}
	return err
}

func (lb *LB) edit(file *config.File) error {
	before := lb.node
	changes, err := lb.node.EditFile(file.Fleet, time.Now())
	if err == nil {
		err = lb.carryOut(before)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file.Path, err)
	}
	lb.file = api.Config{Path: file.Path, SHA256: file.SHA256}
	lb.logChanges("file", changes)
	return nil
}

// carryOut makes the tables follow the desired state. When they cannot, the desired state becomes what it was before.
func (lb *LB) carryOut(before node.Node) error {
	awaitNeighbours(lb.wantedAddresses())
	lb.forgetWeights()
	if err := lb.sync(); err != nil {
		lb.node = before
		return err
	}
	lb.setChecks()
	if lb.engine != nil {
		lb.engine.SetState(lb.view())
	}
	if err := lb.saveState(); err != nil {
		lb.log.Error("state not saved: a restart will not know of removed servers and of changes made by ctl", "error", err)
	}
	return nil
}

func (lb *LB) logChanges(source string, changes []string) {
	for _, change := range changes {
		lb.log.Info("changed", "by", source, "what", change)
	}
}

// sync writes what differs between the tables and the desired state. Callers hold mu.
func (lb *LB) sync() error {
	lb.paths.refresh(lb.wantedAddresses(), lb.log)
	want := plan.Want{Keys: lb.node.Running.Keys, Paths: lb.paths.known, Tier: lb.tier()}
	for _, s := range lb.node.Running.Services {
		sick := lb.unhealthy[s.Name]
		for i := range sick.Cut {
			if i == 0 {
				s = s.Clone()
			}
			switchOff(&s, sick.Cut[i])
		}
		want.Services = append(want.Services, plan.Service{
			Service: s, Removed: lb.node.Lingering(s.Name), Past: lb.node.Past[s.Name], NoCookie: lb.probes.cannotTakePart(&s),
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
	lb.cutOff = false
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
	if err := lb.followDevices(); err != nil {
		lb.log.Error("devices not followed", "error", err)
	}
	if err := lb.sync(); err != nil {
		lb.log.Error("next hops not updated", "error", err)
	}
	lb.setChecks()
}

// followDevices attaches again where a device was made anew or has another MAC address.
func (lb *LB) followDevices() error {
	var changed []*net.Interface
	for name, before := range lb.devices {
		device, err := net.InterfaceByName(name)
		if err != nil {
			continue // gone, for now
		}
		if device.Index != before.Index || !bytes.Equal(device.HardwareAddr, before.HardwareAddr) {
			changed = append(changed, device)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return lb.attach(changed)
}

// pathNarrowed follows what routers say about the way to a server: clients get to know by the data path.
func (lb *LB) pathNarrowed(found netdev.TooBig) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if !lb.paths.narrow(found, time.Now()) {
		return
	}
	lb.log.Info("path to server is narrower than its route says", "address", found.Destination, "mtu", found.MTU)
	if err := lb.sync(); err != nil {
		lb.log.Error("next hops not updated", "error", err)
	}
}

// age does what only time brings: forgetting silent removed servers, letting load estimates decay, filling the trace's budget.
func (lb *LB) age(ctx context.Context) {
	every(ctx, agePeriod, func(time.Time) {
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
	lb.joinAnew(now)
	if lb.cutOff {
		if err := lb.sync(); err != nil {
			lb.log.Error("tables are still behind the desired state", "error", err)
			return
		}
		places = lb.tables.Places()
	}
	before := lb.node
	before.Removed = slices.Clone(before.Removed)
	if lb.remote == nil && lb.node.Age(now, lb.options.Timing, packets) { // else controllers do
		if err := lb.carryOut(before); err != nil {
			lb.log.Error("what time brings was not carried out", "error", err)
		}
	}
	for _, place := range places {
		for _, index := range place.Counters {
			lb.path.DecayOpenConnections(index, agePeriod.Seconds()/loadMemory.Seconds())
		}
	}
	lb.trace.refill(lb.path)
}

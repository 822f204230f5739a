// Package agent is the process `ballast agent`: it keeps a server's data path equal to what the fleet says about this host.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/load"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/machine/sources"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Options are what `ballast agent` is started with.
type Options struct {
	// Config is the path of the configuration file that the agent runs by; empty: Controllers tell it.
	Config      string
	Controllers []string // host:port of whom it reports to: controllers, or load balancers that run by a file
	TLSDir      string   // certificates, with Controllers
	Name        string   // of this host in its certificate
	Cgroup      string   // directory of the cgroup whose CPU is the server's; empty: all of the host
	StateDir    string   // without Config: where the last state is kept

	Server     string // name of this host's server entries; empty: those whose address is this host's
	Instance   string
	Interfaces []string // devices that packets come in by; empty: those of the servers' addresses. Those that answers leave by are added, without XDP
	XDPMode    attach.XDPMode
	// TunnelsSettle is sources.Settle for tests; zero: as it is.
	TunnelsSettle time.Duration
	RunDir        string
	Metrics       string // TCP address for Prometheus, empty: none
	Version       string
	Log           *slog.Logger
}

// agent keeps a server's data path equal to what the fleet says about this host. Its methods are safe for concurrent use.
type agent struct {
	options Options
	log     *slog.Logger

	mu          sync.Mutex
	path        *server.Server
	applied     *config.File
	local       []netip.Addr // this host's addresses when the file was applied
	wanted      plan.Agent
	stops       map[netip.Addr]time.Time // when a file last named them
	hops        paths.Table
	file        api.Config
	generation  uint64
	attachments devices.Attachments
	unattached  string   // why the programs were not attached to a device that they should be on, empty: they were
	unmarked    []string // devices that answers may leave by and that could not be attached to
	problems    []string
	serves      int      // services that name this host, or have left connections here, 0: none
	left        bool     // all of them have only left connections
	stateKnown  bool     // what this host serves, by a file or a controller
	waiting     bool     // for that, with a data path of an earlier process
	unmeasured  []string // of the load that was reported last, and why
	kept        statefile.File
	tunnels     tunnels

	keysChanged chan struct{} // has them reported

	sampler  *load.Sampler
	sources  sources.Sources    // by controllers
	remote   node.Node          // as controllers say; see LB
	client   *nodeclient.Client // nil: without controllers
	revision uint64             // of theirs that runs
	// credentials are with Controllers.
	credentials *pki.Credentials
}

// stopLife is how long other servers that the file no longer names can be handed packets: they may have connections yet. As long
// as load balancers keep removed servers.
const stopLife = 24 * time.Hour

// agePeriod is how often what only time changes is looked at.
const agePeriod = time.Second

// Run runs until ctx ends. The data path stays attached and works on; Detach removes it.
func Run(ctx context.Context, o Options) error {
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
	a := &agent{
		options: o, log: o.Log, kept: statefile.File{Path: statefile.Agent(o.StateDir, o.Instance), Log: o.Log}, attachments: devices.Attachments{Mode: o.XDPMode, Log: o.Log}, stops: map[netip.Addr]time.Time{},
		keysChanged: make(chan struct{}, 1), sampler: load.New(load.Options{Cgroup: o.Cgroup}), sources: sources.Sources{Settle: o.TunnelsSettle},
	}
	if len(o.Controllers) > 0 { // before anything is attached
		if a.credentials, err = pki.Load(o.TLSDir, o.Name, pki.Agent); err != nil {
			return err
		}
		a.client = a.newClient()
	}
	if len(o.Interfaces) > 0 {
		if _, err := devices.Find(o.Interfaces); err != nil {
			return err
		}
	}
	metrics, err := listen.TCP("serve metrics", o.Metrics)
	if err != nil {
		return err
	}
	undo, err := attach.BeforeStart(instance.PinDir(o.RunDir, o.Instance))
	if err != nil {
		return err
	}
	if err := a.start(); err != nil {
		return errors.Join(err, undo())
	}
	defer func() { o.Log.Info("stopped: the data path stays attached", "instance", o.Instance) }()
	defer a.path.Close()

	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	if err := netdev.Watch(ctx, a.networkChanged); err != nil {
		return errors.Join(err, undo())
	}
	running.Go(func() { periodic.Every(ctx, devices.Period, a.lookAtDevices) })
	running.Go(func() { periodic.Every(ctx, agePeriod, a.ageTunnels) })
	running.Go(func() { readiness.Log(ctx, o.Log, a.health) })
	if a.credentials != nil {
		running.Go(func() { a.credentials.Watch(ctx, o.Log) })
	}
	if o.Config != "" {
		if err := configfile.Watch(ctx, o.Config, func() { a.Reload(false) }); err != nil {
			return errors.Join(err, undo())
		}
		a.Reload(false) // it may have changed before it was watched
	}
	if a.client != nil {
		a.runRemote(ctx, &running)
	}
	if metrics != nil {
		running.Go(func() { listen.ServeMetrics(ctx, metrics, a.metricsHandler(), a.health) })
	}
	a.log.Info("started", "instance", o.Instance, "services", a.status().Services)
	return a.routes().Serve(ctx, listener)
}

// start fills the maps first and attaches last.
func (a *agent) start() error {
	o := &a.options
	file, err := a.firstFile()
	if err != nil {
		return err
	}
	if err := instance.Prepare(o.RunDir, o.Log); err != nil {
		return err
	}
	if a.path, err = server.Open(instance.PinDir(o.RunDir, o.Instance)); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.attachments.Hooks = a.path
	if a.tunnels.notes, err = a.path.TunnelNotes(); err != nil { // what an earlier process has counted is no news
		return errors.Join(err, a.path.Close())
	}
	if err = a.takeOverStops(); err == nil && o.Config != "" {
		file = a.refuseAtStart(file)
	}
	if a.stateKnown {
		err = errors.Join(err, a.apply(file))
	} else { // nobody has said yet what this host serves
		a.applied = file
		err = errors.Join(err, a.limitTunnels())
		if pin.Any(instance.PinDir(o.RunDir, o.Instance)) { // what an earlier process left goes on untouched
			a.waiting = true
			if err == nil && o.Config == "" {
				a.log.Warn("no state is known: what an earlier process left goes on untouched until a controller says what this host serves", "file", a.kept.Path)
			}
			if err == nil {
				return nil
			}
		}
	}
	if err == nil {
		err = devices.WhileBusy(a.log, devices.BusyPatience, a.attach)
	}
	if err == nil {
		err = a.path.Attached()
	}
	if err != nil {
		return errors.Join(err, a.path.Close())
	}
	return nil
}

// takeOverStops learns an earlier process's next hops, which are good until better ones are known.
func (a *agent) takeOverStops() error {
	stops, err := a.path.Stops()
	a.hops.Known = make(map[netip.Addr]plan.Path, len(stops))
	for address, stop := range stops {
		a.stops[address] = time.Now()
		a.hops.Known[address] = plan.Path{
			Ifindex: stop.Ifindex, VLAN: stop.VLAN, SourceMAC: stop.SourceMAC, DestinationMAC: stop.Destination,
		}
	}
	return err
}

// attach gives the programs to devices that do not have them yet. Callers hold mu.
func (a *agent) attach() error {
	names, mode := a.options.Interfaces, attach.XDPNone
	if len(names) == 0 {
		for _, address := range a.wanted.Addresses {
			found, err := netdev.InterfacesOf([]netip.Addr{address})
			if err != nil {
				return err
			}
			if len(found) == 0 { // a loopback's: packets come in by any way
				mode = a.options.XDPMode
			}
			names = append(names, found...)
		}
		slices.Sort(names)
		names = slices.Compact(names)
		if len(a.wanted.Addresses) == 0 && a.attachments.Any() {
			return nil // what was found before is the better guess
		}
	}
	devices, err := devices.Find(names)
	if err != nil {
		return err
	}
	if err := a.attachments.Ensure(devices, a.options.XDPMode); err != nil {
		return err
	}
	return a.attachWaysOut(names, mode)
}

// attachWaysOut gives the programs to the devices that answers may leave by as well, or they would leave unmarked: at tc alone, if mode says
// that no tunnels come in there, so that XDP may be anybody's. A device that a route led out of keeps them: its route may come back, and what
// it sent is echoed. Callers hold mu.
func (a *agent) attachWaysOut(names []string, mode attach.XDPMode) error {
	ways, _, err := netdev.WaysOut(unix.AF_UNSPEC)
	if err != nil {
		return err
	}
	a.unmarked = nil
	for _, name := range ways {
		if slices.Contains(names, name) {
			continue
		}
		devices, err := devices.Find([]string{name})
		if err == nil {
			err = a.attachments.Ensure(devices, attach.XDPNone)
		}
		if err != nil { // the others do their work
			a.unmarked = append(a.unmarked, fmt.Sprintf("answers that leave by %s are not marked, and break their connections: %v", name, err))
		} else if err = a.attachments.Ensure(devices, mode); err != nil {
			a.unmarked = append(a.unmarked, fmt.Sprintf("tunnels that come in by %s are not taken: %v", name, err))
		}
	}
	if len(names) == 0 {
		return nil // a device that is gone may come back
	}
	return a.attachments.Drop(append(ways, names...))
}

// apply makes the maps follow a file. Callers hold mu.
func (a *agent) apply(file *config.File) error {
	local, err := netdev.LocalAddresses()
	if err != nil {
		return err
	}
	wanted, err := plan.NewAgent(&file.Fleet, a.mine(local))
	if err != nil {
		return fmt.Errorf("%s: %w", file.Path, err)
	}
	if len(wanted.Marking) > 0 {
		if err := netdev.CheckTimestamps(); err != nil {
			return fmt.Errorf("serve %s: %w", wanted.Marking[0], err)
		}
		if routes := netdev.MicrosecondRoutes(); len(routes) > 0 {
			return fmt.Errorf("serve %s: %s", wanted.Marking[0], routes[0])
		}
	}
	a.warnOfKeys(file)
	named := len(wanted.Served)
	wanted.Rekey(&file.Fleet, a.path.Served())
	changes, err := a.path.Serve(wanted.Served)
	if err != nil {
		return err
	}
	a.applied, a.local, a.wanted = file, local, wanted
	if err := a.limitTunnels(); err != nil {
		return err
	}
	sampled := a.sampled(&file.Fleet, local)
	a.serves = len(wanted.Served) + len(sampled)
	a.left = named+len(sampled) == 0
	a.sampler.SetServices(sampled)
	a.file = api.Config{Path: file.Path, SHA256: file.SHA256}
	if changes > 0 {
		a.generation++
		a.log.Info("changed", "services", wanted.Marking, "rows", changes)
		a.tellKeys()
	}
	return a.follow(local)
}

// mine tells which server entries are this host.
func (a *agent) mine(local []netip.Addr) func(*model.Server) bool {
	if name := a.options.Server; name != "" {
		return func(s *model.Server) bool { return s.Name == name }
	}
	return func(s *model.Server) bool { return slices.Contains(local, s.Address) }
}

// follow brings what depends on the host's network up to date. Callers hold mu.
func (a *agent) follow(local []netip.Addr) error {
	own := append(slices.Clone(a.wanted.Addresses), local...)
	own = slices.DeleteFunc(own, func(address netip.Addr) bool { return slices.Contains(a.wanted.VIPs, address) })
	if err := a.path.SetOwnAddresses(own); err != nil {
		return err
	}
	keepStops(a.stops, a.wanted.Stops, time.Now())
	var addresses []netip.Addr
	for address := range a.stops {
		if !slices.Contains(own, address) {
			addresses = append(addresses, address)
		}
	}
	a.hops.Refresh(addresses, a.log)
	stops := make(map[netip.Addr]server.Stop, len(a.hops.Known))
	for address, hop := range a.hops.Known {
		stops[address] = server.Stop{
			Ifindex: hop.Ifindex, Destination: hop.DestinationMAC, SourceMAC: hop.SourceMAC, VLAN: hop.VLAN,
		}
	}
	if err := a.path.SetStops(stops); err != nil {
		return err
	}
	a.diagnose(local)
	return nil
}

// keepStops adds what the file names and drops what no file has named for long.
func keepStops(stops map[netip.Addr]time.Time, named []netip.Addr, now time.Time) {
	for _, address := range named {
		stops[address] = now
	}
	maps.DeleteFunc(stops, func(_ netip.Addr, last time.Time) bool { return now.Sub(last) > stopLife })
}

func (a *agent) lookAtDevices(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.attachments.Look(now)
	if a.unattached != "" && a.stateKnown {
		a.attachLate()
	}
}

// networkChanged applies the file again when other server entries may be this host now.
func (a *agent) networkChanged() {
	a.mu.Lock()
	defer a.mu.Unlock()
	local, err := netdev.LocalAddresses()
	if err != nil {
		a.log.Error("network not looked at", "error", err)
		return
	}
	a.attachments.Look(time.Now())
	if !a.stateKnown { // see start
		return
	}
	if a.options.Server == "" && !slices.Equal(local, a.local) {
		refused := a.file.Error
		err = a.apply(a.applied)
		a.file.Error = refused
	}
	a.attachLate()
	if err := errors.Join(err, a.follow(local)); err != nil {
		a.log.Error("services, addresses and next hops not updated", "error", err)
	}
}

// diagnose lists what is wrong with the host, and logs what is new.
func (a *agent) diagnose(local []netip.Addr) {
	var problems []string
	for _, vip := range a.wanted.VIPs {
		if !slices.Contains(local, vip) {
			problems = append(problems, fmt.Sprintf("%s is not an address of this host: ip address add %s/%d dev lo", vip, vip, vip.BitLen()))
		}
	}
	if len(a.wanted.Marking) > 0 {
		if err := netdev.CheckTimestamps(); err != nil {
			problems = append(problems, err.Error())
		}
		problems = append(problems, netdev.MicrosecondRoutes()...)
		problems = append(problems, a.unmarked...)
	}
	for _, problem := range problems {
		if !slices.Contains(a.problems, problem) {
			a.log.Warn(problem)
		}
	}
	a.problems = problems
}

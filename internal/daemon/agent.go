package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/linux/datapath"
	"github.com/ballast-lb/ballast/internal/linux/load"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/plan"
)

// AgentOptions are what `ballast agent` is started with.
type AgentOptions struct {
	// Config is the path of the configuration file that the agent runs by; empty: Controllers tell it.
	Config      string
	Controllers []string // host:port of whom it reports to: controllers, or load balancers that run by a file
	TLSDir      string   // certificates, with Controllers
	Name        string   // of this host in its certificate
	Cgroup      string   // directory of the cgroup whose CPU is the server's; empty: all of the host
	StateDir    string   // without Config: where the last state is kept

	Server     string // name of this host's server entries; empty: those whose address is this host's
	Instance   string
	Interfaces []string // devices that packets come in by; empty: those of the servers' addresses, else of the default routes
	XDPMode    datapath.XDPMode
	RunDir     string
	Metrics    string // TCP address for Prometheus, empty: none
	Version    string
	Log        *slog.Logger
}

// Agent keeps a server's data path equal to what the fleet says about this host. Its methods are safe for concurrent use.
type Agent struct {
	options AgentOptions
	log     *slog.Logger

	mu         sync.Mutex
	path       *datapath.Server
	applied    *config.File
	local      []netip.Addr // this host's addresses when the file was applied
	wanted     plan.Agent
	stops      map[netip.Addr]time.Time // when a file last named them
	hops       pathTable
	file       api.Config
	generation uint64
	attached   map[string]attachment // by name of the device
	unattached string                // why a device has no program, empty: all have
	problems   []string
	ready      bool

	sampler  *load.Sampler
	follower follow.Follower
	remote   node.Node // as controllers say; see LB
	joined   *api.Joined
	// credentials are with Controllers.
	credentials *pki.Credentials
}

// attachment is a device as it was when the programs were attached.
type attachment struct {
	ifindex int
	mac     string
	mode    datapath.XDPMode
}

// stopLife is how long other servers that the file no longer names can be handed packets: they may have connections yet. As long
// as load balancers keep removed servers.
const stopLife = 24 * time.Hour

// RunAgent runs until ctx ends. The data path stays attached and works on; Detach removes it.
func RunAgent(ctx context.Context, o AgentOptions) error {
	listener, err := api.Listen(api.SocketPath(o.RunDir, o.Instance))
	if err != nil {
		return err
	}
	defer listener.Close()
	a := &Agent{
		options: o, log: o.Log, attached: map[string]attachment{}, stops: map[netip.Addr]time.Time{},
		sampler: load.New(load.Options{Cgroup: o.Cgroup}),
	}
	if len(o.Controllers) > 0 { // before anything is attached
		if a.credentials, err = pki.Load(o.TLSDir, o.Name, pki.Agent); err != nil {
			return err
		}
	}
	if err := a.start(); err != nil {
		return err
	}
	defer a.path.Close()

	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	if err := netdev.Watch(ctx, a.networkChanged); err != nil {
		return err
	}
	if o.Config != "" {
		if err := watchFile(ctx, o.Config, a.reloadLogged); err != nil {
			return err
		}
		a.reloadLogged() // it may have changed before it was watched
	}
	if len(o.Controllers) > 0 {
		a.runRemote(ctx, &running)
	}
	if o.Metrics != "" {
		metrics, err := net.Listen("tcp", o.Metrics)
		if err != nil {
			return fmt.Errorf("serve metrics: %w", err)
		}
		running.Go(func() { serveMetrics(ctx, metrics, a.metricsHandler(), func() bool { return a.status().Ready }) })
	}
	a.log.Info("ready", "instance", o.Instance, "services", a.status().Services)
	return a.routes().Serve(ctx, listener)
}

// start fills the maps first and attaches last.
func (a *Agent) start() error {
	o := &a.options
	file, err := a.firstFile()
	if err != nil {
		return err
	}
	if err := datapath.EnsureBPFFS(filepath.Join(o.RunDir, "bpf")); err != nil {
		return err
	}
	if a.path, err = datapath.OpenServer(pinDir(o.RunDir, o.Instance)); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	err = a.takeOverStops()
	if a.ready {
		err = errors.Join(err, a.apply(file))
	} else { // nobody has said yet what this host serves: what an earlier process left goes on
		a.applied = file
	}
	if err == nil {
		err = a.attach()
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
func (a *Agent) takeOverStops() error {
	stops, err := a.path.Stops()
	a.hops.known = make(map[netip.Addr]plan.Path, len(stops))
	for address, stop := range stops {
		a.stops[address] = time.Now()
		a.hops.known[address] = plan.Path{
			Ifindex: stop.Ifindex, VLAN: stop.VLAN, SourceMAC: stop.SourceMAC, DestinationMAC: stop.Destination,
		}
	}
	return err
}

// attach gives the programs to devices that do not have them, or not with the MAC that they have now. Callers hold mu.
func (a *Agent) attach() error {
	names := a.options.Interfaces
	if len(names) == 0 {
		var err error
		if names, err = netdev.InterfacesOf(a.wanted.Addresses); err != nil {
			return err
		}
		if len(names) == 0 && len(a.attached) > 0 {
			return nil // what was found before is the better guess
		}
	}
	devices, err := interfaces(names)
	if err != nil {
		return err
	}
	for _, device := range devices {
		have, known := a.attached[device.Name]
		if known && have.ifindex == device.Index && have.mac == device.HardwareAddr.String() {
			continue
		}
		mode, err := a.path.Attach(device, a.options.XDPMode)
		if err != nil {
			return err
		}
		a.attached[device.Name] = attachment{device.Index, device.HardwareAddr.String(), mode}
		a.log.Info("attached", "interface", device.Name, "address", device.HardwareAddr, "mode", mode)
		if known && have.ifindex != device.Index {
			if err := a.path.Forget(have.ifindex); err != nil {
				return err
			}
		}
	}
	return nil
}

// Reload applies the configuration file as it is now; one that cannot be applied is refused and the old state goes on.
func (a *Agent) Reload() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	file, err := config.Load(a.options.Config)
	if err == nil {
		err = a.apply(file)
	}
	if err != nil {
		a.file.Error = err.Error()
	}
	return err
}

func (a *Agent) reloadLogged() {
	if err := a.Reload(); err != nil {
		a.log.Error("configuration refused, the old state goes on", "error", err)
	}
}

// apply makes the maps follow a file. Callers hold mu.
func (a *Agent) apply(file *config.File) error {
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
	wanted.Rekey(&file.Fleet, a.path.Served())
	changes, err := a.path.Serve(wanted.Served)
	if err != nil {
		return err
	}
	a.applied, a.local, a.wanted = file, local, wanted
	if len(wanted.Served) == 0 {
		a.log.Warn("no service names this host: check --server and the servers' addresses", "file", file.Path)
	}
	a.sampler.SetServices(a.sampled(&file.Fleet, local))
	a.file = api.Config{Path: file.Path, SHA256: file.SHA256}
	if changes > 0 {
		a.generation++
		a.log.Info("changed", "services", wanted.Marking, "rows", changes)
	}
	return a.follow(local)
}

// mine tells which server entries are this host.
func (a *Agent) mine(local []netip.Addr) func(*model.Server) bool {
	if name := a.options.Server; name != "" {
		return func(s *model.Server) bool { return s.Name == name }
	}
	return func(s *model.Server) bool { return slices.Contains(local, s.Address) }
}

// follow brings what depends on the host's network up to date. Callers hold mu.
func (a *Agent) follow(local []netip.Addr) error {
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
	a.hops.refresh(addresses, a.log)
	stops := make(map[netip.Addr]datapath.Stop, len(a.hops.known))
	for address, hop := range a.hops.known {
		stops[address] = datapath.Stop{
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

// networkChanged applies the file again when other server entries may be this host now.
func (a *Agent) networkChanged() {
	a.mu.Lock()
	defer a.mu.Unlock()
	local, err := netdev.LocalAddresses()
	if err != nil {
		a.log.Error("network not looked at", "error", err)
		return
	}
	if !a.ready { // see start
		return
	}
	if a.options.Server == "" && !slices.Equal(local, a.local) {
		refused := a.file.Error
		err = a.apply(a.applied)
		a.file.Error = refused
	}
	a.unattached = ""
	if err := a.attach(); err != nil {
		a.unattached = err.Error()
	}
	if err := errors.Join(err, a.follow(local)); err != nil {
		a.log.Error("services, addresses and next hops not updated", "error", err)
	}
}

// diagnose lists what is wrong with the host, and logs what is new.
func (a *Agent) diagnose(local []netip.Addr) {
	var problems []string
	if a.unattached != "" {
		problems = append(problems, a.unattached)
	}
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
	}
	for _, problem := range problems {
		if !slices.Contains(a.problems, problem) {
			a.log.Warn(problem)
		}
	}
	a.problems = problems
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/linux/datapath"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// AgentOptions are what `ballast agent` is started with.
type AgentOptions struct {
	Config     string // path of the configuration file
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
	wanted     plan.Agent
	stops      map[netip.Addr]bool // also of servers that are gone: they may have connections yet
	hops       pathTable
	file       api.Config
	generation uint64
	modes      map[string]datapath.XDPMode
	problems   []string
}

// RunAgent runs until ctx ends. The data path stays attached and works on; Detach removes it.
func RunAgent(ctx context.Context, o AgentOptions) error {
	listener, err := api.Listen(api.SocketPath(o.RunDir, o.Instance))
	if err != nil {
		return err
	}
	defer listener.Close()
	a := &Agent{options: o, log: o.Log, modes: map[string]datapath.XDPMode{}, stops: map[netip.Addr]bool{}}
	if err := a.start(); err != nil {
		return err
	}
	defer a.path.Close()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := netdev.Watch(ctx, a.networkChanged); err != nil {
		return err
	}
	if err := watchFile(ctx, o.Config, a.reloadLogged); err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	if o.Metrics != "" {
		metrics, err := net.Listen("tcp", o.Metrics)
		if err != nil {
			return fmt.Errorf("serve metrics: %w", err)
		}
		running.Go(func() { serveMetrics(ctx, metrics, a.metricsHandler()) })
	}
	a.log.Info("ready", "instance", o.Instance, "services", a.wanted.Marking)
	defer cancel()
	return a.routes().Serve(ctx, listener)
}

// start fills the maps first and attaches last.
func (a *Agent) start() error {
	o := &a.options
	file, err := config.Load(o.Config)
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
	known, err := a.path.Stops()
	if err == nil {
		for _, address := range known {
			a.stops[address] = true
		}
		err = a.apply(file)
	}
	if err == nil {
		err = a.attach()
	}
	if err != nil {
		return errors.Join(err, a.path.Close())
	}
	return nil
}

func (a *Agent) attach() error {
	names := a.options.Interfaces
	if len(names) == 0 {
		var err error
		if names, err = netdev.InterfacesOf(a.wanted.Addresses); err != nil {
			return err
		}
	}
	devices, err := interfaces(names)
	if err != nil {
		return err
	}
	for _, device := range devices {
		mode, err := a.path.Attach(device, a.options.XDPMode)
		if err != nil {
			return err
		}
		a.modes[device.Name] = mode
		a.log.Info("attached", "interface", device.Name, "mode", mode)
	}
	return a.path.Attached()
}

// Reload applies the configuration file as it is now; one that cannot be applied is refused and the old state goes on.
func (a *Agent) Reload() error {
	file, err := config.Load(a.options.Config)
	a.mu.Lock()
	defer a.mu.Unlock()
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
	mine, err := a.mine()
	if err != nil {
		return err
	}
	wanted, err := plan.NewAgent(&file.Fleet, mine)
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
	a.wanted = wanted
	if len(wanted.Served) == 0 {
		a.log.Warn("no service names this host: check --server and the servers' addresses", "file", file.Path)
	}
	for _, address := range wanted.Stops {
		a.stops[address] = true
	}
	a.file = api.Config{Path: file.Path, SHA256: file.SHA256}
	if changes > 0 {
		a.generation++
		a.log.Info("changed", "services", wanted.Marking, "rows", changes)
	}
	return a.follow()
}

// mine tells which server entries are this host.
func (a *Agent) mine() (func(*model.Server) bool, error) {
	if name := a.options.Server; name != "" {
		return func(s *model.Server) bool { return s.Name == name }, nil
	}
	local, err := netdev.LocalAddresses()
	if err != nil {
		return nil, err
	}
	return func(s *model.Server) bool { return slices.Contains(local, s.Address) }, nil
}

// follow brings what depends on the host's network up to date. Callers hold mu.
func (a *Agent) follow() error {
	local, err := netdev.LocalAddresses()
	if err != nil {
		return err
	}
	own := append(slices.Clone(a.wanted.Addresses), local...)
	own = slices.DeleteFunc(own, func(address netip.Addr) bool { return slices.Contains(a.wanted.VIPs, address) })
	if err := a.path.SetOwnAddresses(own); err != nil {
		return err
	}
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

func (a *Agent) networkChanged() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.follow(); err != nil {
		a.log.Error("addresses and next hops not updated", "error", err)
	}
}

// diagnose lists what is wrong with the host, and logs what is new.
func (a *Agent) diagnose(local []netip.Addr) {
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
	}
	for _, problem := range problems {
		if !slices.Contains(a.problems, problem) {
			a.log.Warn(problem)
		}
	}
	a.problems = problems
}

package doctor

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/agent/desired"
	"github.com/ballast-lb/ballast/internal/daemon/lb"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/mptcp"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/linux/untracked"
	"github.com/ballast-lb/ballast/internal/model"
)

const (
	daemonTimeout    = 15 * time.Second // as long as ctl gives an order: a busy machine is not a daemon that hangs
	neighbourTimeout = 2 * time.Second  // the kernel asks three times, a second apart
	neighbourPeriod  = 50 * time.Millisecond
)

func gather(ctx context.Context, o Options, daemon daemonFacts, units []unitFacts) *facts {
	f := &facts{Instance: o.Instance, Verbose: o.Verbose, Daemon: daemon, Units: units, Kept: gatherKept(o), Host: gatherHost(o.Instance)}
	f.File = gatherFile(o.Config, &f.Daemon)
	o.Server = cmp.Or(o.Server, f.Daemon.Server)
	f.Mine = func(s *model.Server) bool {
		if o.Server != "" {
			return s.Name == o.Server
		}
		_, local := f.Host.Addresses[s.Address]
		return local
	}
	f.Role = chooseRole(o.Role, f)
	f.fileOfState()
	f.Name = cmp.Or(o.Name, f.Daemon.Name, hostName())
	f.Kernel = gatherKernel(o)
	var loading sync.WaitGroup // the kernel verifies programs while others are waited for
	if len(f.Kernel.Missing) == 0 {
		loading.Go(func() { f.Kernel.try(f.Role) })
	}
	f.gatherDevices(o)
	if f.Role == RoleAgent {
		o.doing("looking for the way back to clients")
		f.gatherBack(ctx)
		f.gatherExits(f.exitsOfAgent())
		if len(f.Kernel.Missing) == 0 {
			o.doing("reading the rules of nftables")
			f.Host.Translation = gatherTranslation(ctx)
		}
	}
	if f.Role == RoleLB {
		o.doing("waiting for neighbours on the way to servers")
		f.gatherPaths(ctx)
		f.gatherExits(f.exitsOfPaths())
		f.gatherBGP(ctx)
		o.doing("connecting to servers")
		f.gatherReach(ctx)
		f.gatherClocks(ctx)
	}
	o.doing("having the kernel verify the programs")
	loading.Wait()
	return f
}

func chooseRole(wanted Role, f *facts) Role {
	switch {
	case wanted == RoleLB || wanted == RoleAgent:
		return wanted
	case f.Daemon.Role != RoleUnknown:
		return f.Daemon.Role
	case f.Kept.role() != RoleUnknown:
		return f.Kept.role()
	case expectedRole(f.Instance, f.Units) != RoleUnknown:
		return expectedRole(f.Instance, f.Units)
	case !f.File.known():
		return f.failingRole()
	}
	for i := range f.File.Fleet.Services {
		if f.mine(&f.File.Fleet.Services[i]) != nil {
			return RoleAgent
		}
	}
	return RoleLB
}

// gatherFile reads the file that was named or, without, the one that the daemon runs by. What is judged is what the daemon runs, unless
// it runs by a file and another one was named.
func gatherFile(path string, d *daemonFacts) (file fileFacts) {
	answers := d.SocketThere && d.Err == nil
	if file.Path = path; path == "" && !d.ByControllers {
		file.Path = d.Path
	}
	file.Running = answers && (d.ByControllers || path == "")
	switch {
	case file.Path == "":
	case answers && d.ByControllers: // they complete and judge it: only its form is ours to judge
		text, err := os.ReadFile(file.Path)
		if err == nil {
			_, err = config.ParseDraft(file.Path, text)
		}
		file.Err = err
	default:
		loaded, err := config.Load(file.Path)
		if file.Err = err; err == nil {
			file.SHA256, file.Fleet, file.Exposed = loaded.SHA256, loaded.Fleet, loaded.Exposed
		}
	}
	if file.Running {
		file.Fleet = d.Fleet
	}
	return file
}

// fileOfState has what ran here last judged, where neither a file nor a daemon tells what should.
func (f *facts) fileOfState() {
	if f.File.Path != "" || f.File.Running {
		return
	}
	for _, state := range f.Kept.States {
		if Role(state.Role) == f.Role && state.Err == nil {
			f.File.Kept, f.File.Fleet = state.Path, state.Fleet
		}
	}
}

func gatherKept(o Options) (k keptFacts) {
	pins := filepath.Join(o.RunDir, "bpf")
	k.Pinned = Role(pin.Role(filepath.Join(pins, o.Instance)))
	k.States = append(lb.Kept(o.StateDir, o.Instance), desired.Kept(o.StateDir, o.Instance)...)
	k.Instances = append(instancesOf(api.SocketPath(o.RunDir, "*")), instancesOf(filepath.Join(pins, "*", "link-*"))...)
	slices.Sort(k.Instances)
	k.Instances = slices.DeleteFunc(slices.Compact(k.Instances), func(name string) bool { return name == o.Instance })
	return k
}

func gatherDaemon(ctx context.Context, o Options) (d daemonFacts) {
	socket := api.SocketPath(o.RunDir, o.Instance)
	_, err := os.Stat(socket)
	d.SocketThere = err == nil
	d.Pinned = pin.Any(filepath.Join(o.RunDir, "bpf", o.Instance))
	if !d.SocketThere {
		return d
	}
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	var status struct { // of either role
		api.LBStatus
		Server     string             `json:"server"`
		Left       []string           `json:"left"`
		Tunnels    api.Tunnels        `json:"tunnels"`
		Gateways   []api.Gateway      `json:"gateways"`
		Probes     []api.ProbedPort   `json:"probes"`
		Translated *api.TranslatedUse `json:"translated"`
	}
	client := api.NewClient(socket)
	if d.Err = client.Get(ctx, api.PathStatus, &status); d.Err != nil {
		d.Dead = errors.Is(d.Err, unix.ECONNREFUSED)
		return d
	}
	d.Role, d.Ready, d.NotReady, d.Problems = Role(status.Role), status.Ready, status.NotReady, status.Problems
	if d.Role == RoleController {
		return d
	}
	if d.Err = client.Get(ctx, api.PathRunning, &d.Fleet); d.Err != nil {
		return d
	}
	d.Tunnels, d.Gateways = status.Tunnels, status.Gateways
	d.Probes, d.Translated = status.Probes, status.Translated
	d.Left = status.Left
	d.Server, d.ByControllers, d.Interfaces = status.Server, status.ByControllers, status.Interfaces
	d.Name, d.Replicas, d.Filtered = status.Name, status.Replicas, status.Filtered
	d.Path, d.SHA256, d.Refused = status.Config.Path, status.Config.SHA256, status.Config.Error
	d.RefusedSince = status.Config.RefusedSince
	return d
}

func gatherHost(instance string) (h hostFacts) {
	h.Timestamps = sysctl("net.ipv4.tcp_timestamps")
	h.Microsecond = netdev.MicrosecondRoutes()
	h.MPTCP, h.MPTCPPlain = mptcp.Obstacles(), mptcp.TakesPlain()
	h.TakesOver, h.LooseTracking = server.TakesOver(), sysctl("net.netfilter.nf_conntrack_tcp_loose")
	if tracking, err := untracked.Tracking(); err == nil && tracking {
		h.Translated, _ = untracked.Translation()
		h.Untracked, _ = untracked.TableOf(instance).There()
	}
	h.Listeners, _ = mptcp.Listeners()
	h.Addresses, _ = netdev.AddressDevices()
	h.DefaultRoutes, _ = netdev.DefaultRoutes()
	h.Egress, h.EgressBare, _ = netdev.EgressDevices(unix.AF_UNSPEC)
	ways, bare, _ := netdev.EgressDevices(unix.AF_INET)
	h.WaysBack = append(ways, bare...)
	h.Listening = map[model.Protocol][]netip.AddrPort{}
	for _, protocol := range []model.Protocol{model.ProtocolTCP, model.ProtocolUDP} {
		h.Listening[protocol], _ = netdev.Listening(protocol.String())
	}
	return h
}

func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "this host"
	}
	return name
}

func sysctl(key string) int {
	value, err := netdev.Sysctl(key)
	if err != nil {
		return -1
	}
	return value
}

// effective is the larger of a device's setting and that of all devices, as the kernel reads rp_filter, arp_ignore, arp_announce.
func effective(device, name string) int {
	one, err := netdev.DeviceSysctl("ipv4", device, name)
	all, err2 := netdev.DeviceSysctl("ipv4", "all", name)
	if err != nil || err2 != nil {
		return -1
	}
	return max(one, all)
}

func (f *facts) gatherDevices(o Options) {
	names := o.Interfaces
	if len(names) == 0 {
		for name := range f.Daemon.Interfaces {
			names = append(names, name)
		}
		slices.Sort(names)
	}
	if len(names) == 0 {
		names = pin.Devices(filepath.Join(o.RunDir, "bpf", o.Instance))
	}
	if len(names) == 0 {
		names = f.defaultInterfaces()
	}
	if len(names) == 0 {
		f.NoDevs = errors.New("there is no default route to choose an interface by")
	}
	for _, name := range names {
		device, err := netdev.ReadDevice(name)
		if err != nil {
			f.NoDevs = errors.Join(f.NoDevs, err)
			continue
		}
		d := deviceFacts{
			Device:      device,
			ReversePath: effective(name, "rp_filter"), ARPIgnore: effective(name, "arp_ignore"), ARPAnnounce: effective(name, "arp_announce"),
			Forwarding4: -1, Forwarding6: -1, Emulated: emulated(),
		}
		if value, err := netdev.DeviceSysctl("ipv4", name, "forwarding"); err == nil {
			d.Forwarding4 = value
		}
		if value, err := netdev.DeviceSysctl("ipv6", name, "forwarding"); err == nil {
			d.Forwarding6 = value
		}
		if device.XDPProgram != 0 {
			d.Program, _ = attach.ProgramName(device.XDPProgram)
			instances, _ := filepath.Glob(filepath.Join(o.RunDir, "bpf", "*"))
			for _, dir := range instances {
				if slices.Contains(pin.Programs(dir, device.Index), device.XDPProgram) {
					d.Instance, d.OtherRole = filepath.Base(dir), Role(pin.Role(dir)) != f.Role
				}
			}
			d.Ours = d.Instance == o.Instance
			d.Behind = slices.ContainsFunc(pin.Claims(filepath.Join(o.RunDir, "bpf", o.Instance)), func(c pin.Claimed) bool { return c.Ifindex == device.Index })
		}
		f.Devices = append(f.Devices, d)
	}
}

// defaultInterfaces are those that a daemon of the role takes when none is named.
func (f *facts) defaultInterfaces() (names []string) {
	if f.Role == RoleAgent {
		var addresses []netip.Addr
		for i := range f.File.Fleet.Services {
			if server := f.mine(&f.File.Fleet.Services[i]); server != nil {
				addresses = append(addresses, server.Address)
			}
		}
		if names, _ = netdev.InterfacesOf(addresses); len(names) > 0 {
			return names
		}
	}
	names, _ = netdev.DefaultInterfaces()
	return names
}

// somewhere is an address as of a client that is not near (RFC 5737, RFC 3849).
var somewhere = map[bool]netip.Addr{false: netip.MustParseAddr("192.0.2.1"), true: netip.MustParseAddr("2001:db8::1")}

// gatherBack looks for the way of answers to clients.
func (f *facts) gatherBack(ctx context.Context) {
	f.Host.Back = map[bool]error{}
	awaitNeighbours(ctx, neighbourTimeout, func(resolver *netdev.Resolver) (resolved bool) {
		resolved = true
		for ipv6, client := range somewhere {
			_, f.Host.Back[ipv6] = resolver.Lookup(client)
			resolved = resolved && !errors.Is(f.Host.Back[ipv6], netdev.ErrUnresolved)
		}
		return resolved
	})
}

// awaitNeighbours looks again and again until the kernel has resolved the neighbours that it had to ask.
func awaitNeighbours(ctx context.Context, patience time.Duration, look func(*netdev.Resolver) (resolved bool)) {
	for deadline := time.Now().Add(patience); !look(netdev.NewResolver()) && ctx.Err() == nil && time.Now().Before(deadline); {
		time.Sleep(neighbourPeriod)
	}
}

// gatherPaths gives neighbours that the kernel does not know yet the time to answer.
func (f *facts) gatherPaths(ctx context.Context) {
	f.Paths = map[netip.Addr]pathFacts{}
	var waiting []netip.Addr
	look := func(address netip.Addr) {
		if _, seen := f.Paths[address]; !seen {
			f.Paths[address] = pathFacts{}
			waiting = append(waiting, address)
		}
	}
	f.destinations(func(s *model.Service) {
		for i := range s.Servers {
			look(s.Servers[i].Address)
		}
		for _, address := range s.Predecessor.Addresses {
			look(address)
		}
	})
	for _, peer := range f.peers() {
		look(peer.Address.Addr())
	}
	awaitNeighbours(ctx, neighbourTimeout, func(resolver *netdev.Resolver) (resolved bool) {
		waiting = slices.DeleteFunc(waiting, func(address netip.Addr) bool {
			hop, err := resolver.Lookup(address)
			if errors.Is(err, netdev.ErrOwn) {
				f.Paths[address] = pathFacts{MTU: math.MaxUint16, Here: true}
				return true
			}
			f.Paths[address] = pathFacts{MTU: int(hop.MTU), Ifindex: hop.Ifindex, OnLink: hop.OnLink, Err: err}
			return !errors.Is(err, netdev.ErrUnresolved)
		})
		return len(waiting) == 0
	})
}

// gatherReach connects to the servers of TCP services, and to nodes where they are checked. Any answer of a server will do: behind a tunnel
// nothing need listen at its own address.
func (f *facts) gatherReach(ctx context.Context) {
	var asked []netip.AddrPort
	f.destinations(func(s *model.Service) {
		for i := range s.Servers {
			address := s.Servers[i].Address
			port := s.Endpoint(&s.Servers[i]).Port()
			if !s.VIP.IsValid() { // nodes
				port = s.Health.Port
			}
			path := f.Paths[address]
			if port == 0 || s.Protocol != model.ProtocolTCP || path.Err != nil || path.Asked {
				continue
			}
			path.Asked = true
			f.Paths[address] = path
			asked = append(asked, netip.AddrPortFrom(address, port))
		}
	})
	for address, found := range reachOf(ctx, asked) {
		path := f.Paths[address.Addr()]
		path.Asked, path.Silent = !found.unasked, found.silent
		f.Paths[address.Addr()] = path
	}
}

// gatherClocks opens a few connections to each server whose timestamps the load balancer has to understand.
func (f *facts) gatherClocks(ctx context.Context) {
	f.Clocks = map[netip.AddrPort]clockFacts{}
	f.services(func(s *model.Service) {
		if s.Return != model.ReturnThrough || !s.Affinity.Cookies() {
			return
		}
		for i := range s.Servers {
			if path := f.Paths[s.Servers[i].Address]; path.Err == nil {
				address := s.Endpoint(&s.Servers[i])
				_, one, err := netdev.ServerClock(ctx, address)
				f.Clocks[address] = clockFacts{Err: err, One: one}
			}
		}
	})
}

package doctor

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/linux/datapath"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
)

const (
	daemonTimeout    = 2 * time.Second
	neighbourTimeout = 2 * time.Second // the kernel asks three times, a second apart
	neighbourPeriod  = 50 * time.Millisecond
)

func gather(ctx context.Context, o Options) *facts {
	f := &facts{Daemon: gatherDaemon(ctx, o), Host: gatherHost()}
	if o.Config == "" {
		o.Config = f.Daemon.Path
	}
	f.File = gatherFile(o.Config)
	f.Mine = func(s *model.Server) bool {
		if o.Server != "" {
			return s.Name == o.Server
		}
		_, local := f.Host.Addresses[s.Address]
		return local
	}
	f.Role = chooseRole(o.Role, f)
	f.Name = cmp.Or(o.Name, f.Daemon.Name, hostName())
	f.Daemon.Others = gatherOthers(ctx, o, f.Role)
	f.Kernel = gatherKernel(o, f.Role)
	f.gatherDevices(o)
	if f.Role == RoleLB {
		f.gatherPaths(ctx)
		f.gatherReach(ctx)
		f.gatherClocks(ctx)
	}
	return f
}

func chooseRole(wanted Role, f *facts) Role {
	switch {
	case wanted == RoleLB || wanted == RoleAgent:
		return wanted
	case f.Daemon.Role != "":
		return f.Daemon.Role
	}
	for i := range f.File.Fleet.Services {
		if f.mine(&f.File.Fleet.Services[i]) != nil {
			return RoleAgent
		}
	}
	return RoleLB
}

func gatherFile(path string) (file fileFacts) {
	file.Path = path
	if path == "" {
		return file
	}
	loaded, err := config.Load(path)
	if err != nil {
		file.Err = err
		return file
	}
	file.SHA256, file.Fleet = loaded.SHA256, loaded.Fleet
	return file
}

func gatherDaemon(ctx context.Context, o Options) (d daemonFacts) {
	socket := api.SocketPath(o.RunDir, o.Instance)
	_, err := os.Stat(socket)
	d.SocketThere = err == nil
	d.Pinned = datapath.Pinned(filepath.Join(o.RunDir, "bpf", o.Instance))
	if !d.SocketThere {
		return d
	}
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	var status api.LBStatus // an agent's has the same fields
	if d.Err = api.NewClient(socket).Get(ctx, api.PathStatus, &status); d.Err != nil {
		return d
	}
	d.Role, d.Ready, d.Interfaces, d.Problems = Role(status.Role), status.Ready, status.Interfaces, status.Problems
	d.Name = status.Name
	d.Path, d.SHA256, d.Refused = status.Config.Path, status.Config.SHA256, status.Config.Error
	return d
}

func gatherOthers(ctx context.Context, o Options, role Role) map[string][]string {
	others := map[string][]string{}
	sockets, _ := filepath.Glob(api.SocketPath(o.RunDir, "*"))
	for _, socket := range sockets {
		instance := filepath.Base(filepath.Dir(socket))
		if instance == o.Instance {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
		var status api.LBStatus
		if err := api.NewClient(socket).Get(ctx, api.PathStatus, &status); err == nil && Role(status.Role) == role {
			for name := range status.Interfaces {
				others[instance] = append(others[instance], name)
			}
		}
		cancel()
	}
	return others
}

func gatherHost() (h hostFacts) {
	h.Timestamps = sysctl("net.ipv4.tcp_timestamps")
	h.Microsecond = netdev.MicrosecondRoutes()
	h.Addresses, _ = netdev.AddressDevices()
	h.DefaultRoutes, _ = netdev.DefaultRoutes()
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
			Forwarding4: -1, Forwarding6: -1,
		}
		if value, err := netdev.DeviceSysctl("ipv4", name, "forwarding"); err == nil {
			d.Forwarding4 = value
		}
		if value, err := netdev.DeviceSysctl("ipv6", name, "forwarding"); err == nil {
			d.Forwarding6 = value
		}
		if device.XDPProgram != 0 {
			d.Program, _ = datapath.ProgramName(device.XDPProgram)
			ours := datapath.PinnedPrograms(filepath.Join(o.RunDir, "bpf", o.Instance), device.Index)
			d.Ours = slices.Contains(ours, device.XDPProgram)
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

// gatherPaths gives neighbours that the kernel does not know yet the time to answer.
func (f *facts) gatherPaths(ctx context.Context) {
	f.Paths = map[netip.Addr]pathFacts{}
	var waiting []netip.Addr
	f.destinations(func(s *model.Service) {
		for i := range s.Servers {
			address := s.Servers[i].Address
			if _, seen := f.Paths[address]; !seen {
				f.Paths[address] = pathFacts{}
				waiting = append(waiting, address)
			}
		}
	})
	deadline := time.Now().Add(neighbourTimeout)
	for {
		resolver := netdev.NewResolver()
		waiting = slices.DeleteFunc(waiting, func(address netip.Addr) bool {
			hop, err := resolver.Lookup(address)
			f.Paths[address] = pathFacts{MTU: int(hop.MTU), Err: err}
			return !errors.Is(err, netdev.ErrUnresolved)
		})
		if len(waiting) == 0 || ctx.Err() != nil || time.Now().After(deadline) {
			return
		}
		time.Sleep(neighbourPeriod)
	}
}

const (
	reachTimeout = 500 * time.Millisecond
	reachBudget  = 10 * time.Second // for all servers together
)

// gatherReach connects to the servers of TCP services, and to nodes where they are checked. Any answer of a server will do: behind a tunnel
// nothing need listen at its own address.
func (f *facts) gatherReach(ctx context.Context) {
	end := time.Now().Add(reachBudget)
	f.destinations(func(s *model.Service) {
		for i := range s.Servers {
			path := f.Paths[s.Servers[i].Address]
			port := s.Endpoint(&s.Servers[i]).Port()
			if !s.VIP.IsValid() { // nodes
				port = s.Health.Port
			}
			if port == 0 {
				continue
			}
			if s.Protocol != model.ProtocolTCP || path.Err != nil || path.Asked || time.Now().After(end) {
				continue
			}
			dialer := net.Dialer{Timeout: reachTimeout}
			connection, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(s.Servers[i].Address, port).String())
			if err == nil {
				connection.Close()
			}
			path.Asked, path.Silent = true, isTimeout(err)
			f.Paths[s.Servers[i].Address] = path
		}
	})
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

// isTimeout tells silence from refusal: a refusal shows that the host is there.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

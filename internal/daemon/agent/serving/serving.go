// Package serving keeps the maps of a server's data path equal to a file: the services that it marks for, its addresses, and the next hops of
// other servers.
package serving

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/paths"
	"github.com/ballast-lb/ballast/internal/linux/load"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Serving keeps the maps equal to a file.
type Serving struct {
	name   string // of this host's server entries; empty: those whose address is this host's
	byFile bool   // no controller names the load balancers
	path   *server.Server
	log    *slog.Logger

	local []netip.Addr             // this host's addresses when the file was applied
	stops map[netip.Addr]time.Time // when a file last named them
	hops  paths.Table

	// To be read alone.
	Applied    *config.File
	Wanted     plan.Agent
	Counted    []load.Service // whose connections on this host are counted
	Interval   time.Duration  // of load reports, the shortest that one of them asks for
	Left       bool           // no service names this host: there are only connections of before, if any
	Generation uint64
	Absent     []netip.Addr // VIPs that are no address of this host, or kube-proxy's IPVS takes them
	IPVS       bool         // it takes some
	Problems   []string
}

// Options are what serving is made of.
type Options struct {
	Name   string // of this host's server entries; empty: those whose address is this host's
	ByFile bool   // no controller names the load balancers
	Path   *server.Server
	Log    *slog.Logger
}

// New returns one that has applied nothing.
func New(o Options) Serving { return Serving{name: o.Name, byFile: o.ByFile, path: o.Path, log: o.Log} }

// Assume takes a file that the maps do not follow yet.
func (s *Serving) Assume(file *config.File) { s.Applied = file }

// stopLife is how long other servers that the file no longer names can be handed packets: they may have connections yet. As long
// as load balancers keep removed servers.
const stopLife = 24 * time.Hour

// TakeOverStops learns an earlier process's next hops, which are good until better ones are known.
func (s *Serving) TakeOverStops() (err error) {
	s.stops = map[netip.Addr]time.Time{}
	s.hops.Known, err = s.path.Stops()
	for address := range s.hops.Known {
		s.stops[address] = time.Now()
	}
	return err
}

// Any reports whether this host serves anything, new connections or those of before.
func (s *Serving) Any() bool { return len(s.Wanted.Served)+len(s.Counted) > 0 }

// Apply makes the maps follow a file. What depends on the host's network follows with Follow.
func (s *Serving) Apply(file *config.File) (changed bool, err error) {
	wanted, local, err := s.wants(file)
	if err != nil {
		return false, err
	}
	named := len(wanted.Served)
	wanted.Rekey(&file.Fleet, s.path.Served())
	wanted.Place(s.path.Served())
	rows, err := s.path.Serve(wanted.Served)
	if err != nil {
		return false, err
	}
	s.Applied, s.local, s.Wanted = file, local, wanted
	s.count(&file.Fleet)
	s.Left = named+len(s.Counted) == 0
	if rows > 0 {
		s.Generation++
		s.log.Info("changed", "services", s.Names(), "rows", rows)
	}
	return rows > 0, nil
}

// Foresee returns how a file differs from the one that was applied, one line each, unless Apply would refuse it.
func (s *Serving) Foresee(file *config.File) (changes []string, err error) {
	if _, _, err = s.wants(file); err != nil {
		return nil, err
	}
	return fleet.Diff(s.Applied.Fleet, file.Fleet), nil
}

// wants returns what a file has this host serve.
func (s *Serving) wants(file *config.File) (wanted plan.Agent, local []netip.Addr, err error) {
	if local, err = netdev.LocalAddresses(); err != nil {
		return wanted, nil, err
	}
	if wanted, err = plan.NewAgent(&file.Fleet, Mine(s.name, local)); err != nil {
		return wanted, nil, fmt.Errorf("%s: %w", file.Path, err)
	}
	if wrong := timestampProblems(&wanted); len(wrong) > 0 {
		return wanted, nil, fmt.Errorf("serve %s: %s", wanted.Marking[0], wrong[0])
	}
	if err = s.knowsBalancers(&file.Fleet, &wanted); err != nil {
		return wanted, nil, fmt.Errorf("%s: %w", file.Path, err)
	}
	return wanted, local, nil
}

// knowsBalancers refuses what a file leaves open; controllers send it.
func (s *Serving) knowsBalancers(fleet *model.Fleet, wanted *plan.Agent) error {
	if !s.byFile {
		return nil
	}
	return cmp.Or(fleet.CheckSourcesWithoutControllers(), wanted.KnowsLoadBalancers(fleet))
}

// timestampProblems are why this host's timestamps cannot carry cookies.
func timestampProblems(wanted *plan.Agent) (problems []string) {
	if len(wanted.Marking) == 0 {
		return nil
	}
	if err := netdev.CheckTimestamps(); err != nil {
		problems = append(problems, err.Error())
	}
	return append(problems, netdev.MicrosecondRoutes()...)
}

// Mine returns which server entries are a host of these addresses. name: of the entries; empty: those with an address of the host.
func Mine(name string, local []netip.Addr) func(*model.Server) bool {
	if name != "" {
		return func(server *model.Server) bool { return server.Name == name }
	}
	return func(server *model.Server) bool { return slices.Contains(local, server.Address) }
}

// Here tells which servers are this host.
func (s *Serving) Here() func(*model.Server) bool { return Mine(s.name, s.local) }

// Moved reports whether other server entries may be this host, now that it has these addresses.
func (s *Serving) Moved(local []netip.Addr) bool {
	return s.name == "" && !slices.Equal(local, s.local)
}

// Names are those of the services whose connections carry something that names this host.
func (s *Serving) Names() []string {
	names := slices.Clone(s.Wanted.Marking)
	for _, quic := range s.Wanted.QUIC {
		names = append(names, quic.Service.Name)
	}
	return names
}

// Addresses are those that tunnels come to, the ones that this host had in a service and has yet among them.
func (s *Serving) Addresses() []netip.Addr {
	removed := slices.DeleteFunc(slices.Clone(s.Wanted.Stops), func(a netip.Addr) bool { return !slices.Contains(s.local, a) })
	return append(removed, s.Wanted.Addresses...)
}

// count lists the services of this host, and says how often their load is reported. By a file it is not known what load balancers do: they may
// drain a server, or go by its load.
func (s *Serving) count(fleet *model.Fleet) {
	s.Counted, s.Interval = nil, time.Duration(model.IdleLoadInterval)
	mine := Mine(s.name, s.local)
	for i := range fleet.Services {
		service := &fleet.Services[i]
		server, _ := plan.ServerHere(service, mine)
		if server == nil {
			continue
		}
		at := load.Service{Name: service.Name, Protocol: service.Protocol, VIP: service.VIP, MoreVIPs: service.MoreVIPs, Ports: service.Ports, PortRanges: service.PortRanges, Followed: s.byFile || service.FollowsAgents(),
			ByConnections: service.FollowsAgents() && service.Load.Source == model.LoadConnections}
		if service.Forward == model.ForwardNAT {
			at.VIP, at.MoreVIPs = server.Address, nil
			if server.Port != 0 {
				at.Ports = []uint16{server.Port}
			}
		}
		s.Counted = append(s.Counted, at)
		decides := func(entry model.Server) bool { return mine(&entry) && service.LoadDecides(&entry) }
		if s.byFile || slices.ContainsFunc(service.Servers, decides) {
			s.Interval = min(s.Interval, time.Second, time.Duration(service.Load.Interval))
		}
	}
}

// Countable are the services whose connections on this host are counted. At an address that it does not have there are none to be found: a count of 0
// would have load balancers send such a server all that is new.
func (s *Serving) Countable() []load.Service {
	list := slices.Clone(s.Counted)
	for i := range list {
		list[i].Translated = slices.Contains(s.Absent, list[i].VIP) || slices.ContainsFunc(list[i].MoreVIPs, func(vip netip.Addr) bool { return slices.Contains(s.Absent, vip) })
	}
	return list
}

// Functions are the addresses by which services name this host as a network function.
func (s *Serving) Functions() (addresses []netip.Addr) {
	if s.Applied == nil {
		return nil
	}
	mine := Mine(s.name, s.local)
	for i := range s.Applied.Fleet.Services {
		service := &s.Applied.Fleet.Services[i]
		if !service.Functions() {
			continue
		}
		if here, _ := plan.ServerHere(service, mine); here != nil && !slices.Contains(addresses, here.Address) {
			addresses = append(addresses, here.Address)
		}
	}
	return addresses
}

// Follow brings what depends on the host's network up to date.
func (s *Serving) Follow(local []netip.Addr) error {
	own := append(slices.Clone(s.Wanted.Addresses), local...)
	own = slices.DeleteFunc(own, func(address netip.Addr) bool { return slices.Contains(s.Wanted.VIPs, address) })
	if err := s.path.SetOwnAddresses(own); err != nil {
		return err
	}
	keepStops(s.stops, s.Wanted.Stops, time.Now())
	var addresses []netip.Addr
	for address := range s.stops {
		if !slices.Contains(own, address) {
			addresses = append(addresses, address)
		}
	}
	s.hops.Refresh(addresses, &netdev.Routes{}, s.log)
	return s.path.SetStops(s.hops.Known)
}

// HandsOnBy are the next hops of packets that are handed on: those to servers that the file has load balancers name, and to earlier ones.
func (s *Serving) HandsOnBy() map[netip.Addr]plan.Path {
	used := maps.Clone(s.hops.Known)
	maps.DeleteFunc(used, func(to netip.Addr, _ plan.Path) bool {
		return slices.Contains(s.Wanted.Stops, to) && !slices.Contains(s.Wanted.HandsTo, to)
	})
	return used
}

// LostPredecessors are the predecessors that this host hands packets to and has no way to, in words.
func (s *Serving) LostPredecessors() (problems []string) {
	for _, served := range s.Wanted.Direct {
		predecessor := &served.Service.Predecessor
		if !predecessor.Exists() || !served.Service.Affinity.Cookies() {
			continue
		}
		if why := s.hops.Why[predecessor.Addresses[0]]; why != "" {
			problems = append(problems, fmt.Sprintf("service %s: predecessor %s: %s: what is handed on to it is lost (dropped_stop_unreachable)",
				served.Service.Name, predecessor.Addresses[0], why))
		}
	}
	return problems
}

// LeavesBy reports whether packets for a server that the file has load balancers name leave by a device.
func (s *Serving) LeavesBy(ifindex uint32) bool {
	return slices.ContainsFunc(s.Wanted.HandsTo, func(to netip.Addr) bool {
		path, known := s.hops.Known[to]
		return known && path.Ifindex == ifindex
	})
}

// keepStops adds what the file names and drops what no file has named for long.
func keepStops(stops map[netip.Addr]time.Time, named []netip.Addr, now time.Time) {
	for _, address := range named {
		stops[address] = now
	}
	maps.DeleteFunc(stops, func(_ netip.Addr, last time.Time) bool { return now.Sub(last) > stopLife })
}

// Diagnose lists what is wrong with the host, answers that are not marked among it, and logs what is new.
func (s *Serving) Diagnose(local []netip.Addr, unmarked []string) {
	var problems []string
	devices, _ := netdev.AddressDevices() // what local is of
	s.IPVS = false
	s.Absent = slices.DeleteFunc(slices.Clone(s.Wanted.VIPs), func(vip netip.Addr) bool {
		if devices[vip] == netdev.IPVSDevice {
			s.IPVS = true
			return false
		}
		return slices.Contains(local, vip) || netdev.Local(vip)
	})
	if len(s.Wanted.Marking) > 0 {
		problems = slices.Concat(problems, timestampProblems(&s.Wanted), unmarked)
	}
	for _, problem := range problems {
		if !slices.Contains(s.Problems, problem) {
			s.log.Warn(problem)
		}
	}
	s.Problems = problems
}

// KeepsCookies refuses what would give living connections another cookie than load balancers read. running: a file has been applied.
func (s *Serving) KeepsCookies(next *config.File, running bool) error {
	var err error
	if running {
		err = fleet.KeysKept(&s.Applied.Fleet.Keys, &next.Fleet.Keys)
	}
	if err == nil {
		err = s.keepsServed(next, running)
	}
	if err == nil {
		return nil
	}
	byParity, uncounted := s.path.Echoes()
	living := byParity[0] + byParity[1]
	if !running && living == 0 && uncounted == nil {
		return nil
	}
	return fmt.Errorf("%s: %w (%d live here)", next.Path, err, living)
}

// Losses are what a file may have lost by being cut off, of services that the one before names this host in; see configfile.Losses. Connections of all
// services are counted together: where none lives, a service may go.
func (s *Serving) Losses(next *config.File) []string {
	mine := Mine(s.name, s.local)
	here := model.Fleet{Services: slices.Clone(s.Applied.Fleet.Services)}
	here.Services = slices.DeleteFunc(here.Services, func(service model.Service) bool {
		server, _ := plan.ServerHere(&service, mine)
		return server == nil
	})
	if len(here.Services) == 0 {
		return nil
	}
	byParity, err := s.path.Echoes()
	none := err == nil && byParity[0]+byParity[1] == 0
	return configfile.Losses(&here, &next.Fleet, func(string, uint16) fleet.Connections { return fleet.Connections{Known: none} })
}

// keepsServed compares with the rows that are published, by this process or an earlier one, whatever services and servers are called. What
// a process begins with may be of another fleet.
func (s *Serving) keepsServed(next *config.File, running bool) error {
	local, err := netdev.LocalAddresses()
	if err != nil {
		return err
	}
	wanted, err := plan.NewAgent(&next.Fleet, Mine(s.name, local))
	if err != nil {
		return nil // Apply returns it
	}
	have := s.path.Served()
	wanted.Rekey(&next.Fleet, have)
	err = wanted.Keeps(&next.Fleet, have)
	if err == nil && !running && !wanted.Knows(&next.Fleet, have) {
		err = errors.New("it has none of the services that living connections are of, and not their key: is it of another fleet?")
	}
	return err
}

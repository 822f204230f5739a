// What packets see at one moment, and what is counted of them there.
package dataplane

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Snapshot is the state that the tables follow, and where they are. It never changes. Counters are those of now: of a server that has left
// since, they may be another's.
type Snapshot struct {
	*desired.State
	Followed   bool                  // false: there was no state yet, and the tables are what an earlier process left
	Generation uint64                // of changes since the process began
	Places     map[string]plan.Place // by service
	Paths      map[netip.Addr]plan.Path
	Pathless   map[netip.Addr]string // why the kernel knows no path now
	Incomplete bool                  // a change was carried out only in part
	Flooded    map[string]bool       // services with syn_proxy auto that is on

	path  *lb.LB
	names map[uint32]string // of services, by the number of their place
}

func (s *Snapshot) place(places map[string]plan.Place) {
	s.Places, s.names = places, make(map[uint32]string, len(places))
	for name, place := range places {
		s.names[place.Number] = name
	}
}

// ServiceAt is the name of the service that packets are counted for by a number. Empty: none has it.
func (s *Snapshot) ServiceAt(number uint32) string {
	if number == 0 {
		return ""
	}
	return s.names[number]
}

// Unconfirmed counts the addresses that connections go to from here if the kernel knows a path to none of them now, else 0. A predecessor is
// none of them as long as connections begin here.
func (s *Snapshot) Unconfirmed() (pathless int) {
	for _, address := range s.Serving() {
		if _, known := s.Paths[address]; known && s.Pathless[address] == "" {
			return 0
		}
		if s.Pathless[address] != "" {
			pathless++
		}
	}
	return pathless
}

// Reaches reports whether packets of a service come to one of its servers: the kernel knows a path, and, if it is this host, they can be
// given to its agent.
func (s *Snapshot) Reaches(service *model.Service, address netip.Addr) bool {
	path, known := s.Paths[address]
	return known && s.Pathless[address] == "" && (!path.Here || plan.ServesHere(service))
}

// Unreached names, by address, the servers and nodes that get new connections from here and that the kernel knows no path to, and LostPredecessors.
// Those that have left, drain or are unhealthy are not among them: nobody is sent there.
func (s *Snapshot) Unreached() map[netip.Addr]string {
	names := map[netip.Addr]string{}
	for server := range s.Receivers() {
		if s.Pathless[server.Address] != "" {
			names[server.Address] = cmp.Or(names[server.Address], server.Name)
		}
	}
	for service := range s.Succeeding() {
		for address := range s.LostPredecessors(service) {
			names[address] = cmp.Or(names[address], "predecessor of "+service.Name)
		}
	}
	return names
}

// Receivers are the servers and nodes that get new connections from here.
func (s *Snapshot) Receivers() iter.Seq[*model.Server] {
	return func(yield func(*model.Server) bool) {
		for i := range s.Running.Services {
			if service := &s.Running.Services[i]; !s.SendsToNodes(service) && !s.receiversOf(service, yield) {
				return
			}
		}
		if second := s.SecondTier(); second != nil {
			s.receiversOf(second, yield)
		}
	}
}

func (s *Snapshot) receiversOf(of *model.Service, yield func(*model.Server) bool) bool {
	down := s.DownOf(of.Name)
	for i := range of.Servers {
		if server := &of.Servers[i]; server.TakesNew() && !down[server.ID] && !yield(server) {
			return false
		}
	}
	return true
}

// LeavesBy tells whether connections, those of predecessors among them, or messages to other load balancers, go out by a device.
func (s *Snapshot) LeavesBy(ifindex uint32) bool {
	for server := range s.Receivers() {
		if path, known := s.Paths[server.Address]; known && path.Ifindex == ifindex {
			return true
		}
	}
	for service := range s.Succeeding() {
		for _, address := range service.Predecessor.Addresses {
			if path, known := s.Paths[address]; known && path.Ifindex == ifindex {
				return true
			}
		}
	}
	peers := maps.Clone(s.Paths)
	for _, server := range s.Addresses() {
		delete(peers, server)
	}
	for _, path := range peers {
		if path.Ifindex == ifindex {
			return true
		}
	}
	return false
}

// Lost is why packets of new connections of a service, or of the second tier, are lost, empty: they are not. refuses is why a device drops what leaves by it.
func (s *Snapshot) Lost(of *model.Service, refuses func(ifindex uint32) string) (why string) {
	s.receiversOf(of, func(server *model.Server) bool {
		if path, known := s.Paths[server.Address]; known {
			why = refuses(path.Ifindex)
		}
		return why == ""
	})
	return why
}

// Sources are the addresses that tunnels come from, each once.
func (s *Snapshot) Sources() []netip.Addr {
	used := map[netip.Addr]bool{}
	for _, path := range s.Paths {
		used[path.Source] = true
	}
	return slices.Collect(maps.Keys(used))
}

// Verdicts returns what was counted for the service at a place, by the verdict's name; the zero Place: of none.
func (s *Snapshot) Verdicts(place plan.Place) (map[string]api.Traffic, error) {
	names, err := lb.VerdictNames()
	if err != nil {
		return nil, err
	}
	traffic, err := s.path.VerdictTraffic(place)
	if err != nil {
		return nil, err
	}
	out := make(map[string]api.Traffic, len(traffic))
	for i, t := range traffic {
		if i > 0 { // "continue" never leaves the program
			out[names[i]] = api.Traffic(t)
		}
	}
	return out, nil
}

// PredecessorConnections estimates how many connections of the service at a place went on to its predecessor within the last minute.
func (s *Snapshot) PredecessorConnections(place plan.Place) (int, error) {
	counts, err := s.path.PredecessorConnections()
	return counts[place.Number], err
}

// TimestampSearches returns how many packets of the service at a place had their options searched for the timestamp.
func (s *Snapshot) TimestampSearches(place plan.Place) (uint64, error) {
	return s.path.TimestampSearches(place)
}

// Hellos returns how many of the service at a place came to what.
func (s *Snapshot) Hellos(place plan.Place) (map[string]uint64, error) {
	names, err := lb.SessionOutcomes()
	if err != nil {
		return nil, err
	}
	hellos, err := s.path.Hellos(place)
	if err != nil {
		return nil, err
	}
	out := make(map[string]uint64, len(hellos))
	for i, n := range hellos {
		out[names[i]] = n
	}
	return out, nil
}

// Traffic is what was sent to a server, and how many of its connections live as far as this node can tell. estimated: of a service that is
// dispatched by that.
func (s *Snapshot) Traffic(estimated bool, place plan.Place, id uint16) (traffic lb.ServerTraffic, open int32, err error) {
	index, counted := place.Counters[id]
	if !counted {
		return traffic, 0, nil
	}
	if traffic, err = s.path.ServerTraffic(index); err != nil {
		return traffic, 0, err
	}
	if estimated {
		return traffic, s.path.OpenConnections(index), nil
	}
	return traffic, traffic.Open(), nil
}

// Packets is how many were sent to a server from here.
func (s *Snapshot) Packets(service string, id uint16) uint64 {
	place := s.Places[service]
	if place.Nodes {
		return 0 // its servers get nothing from here
	}
	traffic, err := s.path.ServerTraffic(place.Counters[id])
	if err != nil {
		return 0
	}
	return traffic.Packets
}

// DescribePath tells how frames reach an address, or why they do not.
func (s *Snapshot) DescribePath(address netip.Addr) string {
	path, ok := s.Paths[address]
	why, unknown := s.Pathless[address]
	switch {
	case !ok && unknown:
		return why
	case !ok:
		return "by the second tier" // whose nodes look for it
	}
	if path.Here {
		return "this host"
	}
	text := fmt.Sprintf("%s %s mtu %d", netdev.Name(int(path.Ifindex)), net.HardwareAddr(path.DestinationMAC[:]), path.MTU)
	if path.VLAN != 0 {
		text += " vlan " + strconv.Itoa(int(path.VLAN))
	}
	return text
}

// PlaceOfNodes is that of a service whose packets go to nodes of the second tier, the zero Place: there is none.
func (s *Snapshot) PlaceOfNodes() (found plan.Place) {
	for _, place := range s.Places {
		if place.Nodes {
			return place
		}
	}
	return found
}

// Clock is what the data path knows of a server's clock; see lb.Clock.
func (s *Snapshot) Clock(service string, id uint16) (known, doubted bool, err error) {
	index, ok := s.Places[service].Counters[id]
	if !ok {
		return false, false, nil
	}
	return s.path.Clock(index)
}

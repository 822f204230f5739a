// Package desired is what a load balancer shall do: the fleet, servers that have left, and who is unhealthy. It is pure.
package desired

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// State is the desired state of one load balancer. It never changes: a change makes another one, so it is read without a lock.
type State struct {
	fleet.Desired
	Unhealthy map[string]fleet.Unhealthy // by service
	Self      string                     // name of this node
}

// With is the state with another fleet and other servers that have left. Servers that are added are unhealthy until they are checked.
func (s *State) With(next fleet.Desired) *State {
	after, unhealthy := &State{next, s.Unhealthy, s.Self}, map[string]fleet.Unhealthy{}
	before := make(map[string]*model.Service, len(s.Running.Services))
	for i := range s.Running.Services {
		before[s.Running.Services[i].Name] = &s.Running.Services[i]
	}
	add := func(name string, before, next *model.Service) {
		known := s.Unhealthy[name]
		if now := known.WithAdded(before, next); len(now.Down) != len(known.Down) {
			unhealthy[name] = now
		}
	}
	for i := range next.Running.Services {
		if service := &next.Running.Services[i]; !after.SendsToNodes(service) {
			add(service.Name, before[service.Name], service)
		}
	}
	if second := after.SecondTier(); second != nil {
		add(model.SecondTierName, s.SecondTier(), second)
	}
	if len(unhealthy) == 0 {
		return after
	}
	return after.WithUnhealthy(unhealthy)
}

// WithUnhealthy is the state with others who are unhealthy, of some services.
func (s *State) WithUnhealthy(found map[string]fleet.Unhealthy) *State {
	unhealthy := make(map[string]fleet.Unhealthy, len(s.Unhealthy)+len(found))
	maps.Copy(unhealthy, s.Unhealthy)
	for service, ids := range found {
		if delete(unhealthy, service); !ids.None() {
			unhealthy[service] = ids
		}
	}
	return &State{s.Desired, unhealthy, s.Self}
}

// Editable is a copy whose list of removed servers may be changed in place.
func (s *State) Editable() fleet.Desired {
	next := s.Desired
	next.Removed = slices.Clone(next.Removed)
	return next
}

// DownOf are the ids of a service's servers that get no new connections because they are unhealthy.
func (s *State) DownOf(service string) map[uint16]bool { return set(s.Unhealthy[service].Down) }

// FailingOf are the ids of a service's servers that checks say are down, whatever all_down makes of it.
func (s *State) FailingOf(service string) map[uint16]bool {
	return set(s.Unhealthy[service].Down, s.Unhealthy[service].Kept)
}

func set(lists ...[]uint16) map[uint16]bool {
	ids := map[uint16]bool{}
	for _, list := range lists {
		for _, id := range list {
			ids[id] = true
		}
	}
	return ids
}

// Services are those that the tables should have, but for what is known of servers besides.
func (s *State) Services() []plan.Service {
	services := make([]plan.Service, 0, len(s.Running.Services))
	for _, service := range s.Running.Services {
		for i, id := range s.Unhealthy[service.Name].Cut {
			if i == 0 {
				service = service.Clone()
			}
			switchOff(&service, id)
		}
		services = append(services, plan.Service{Service: service, Removed: s.Lingering(service.Name), Past: s.Past[service.Name],
			Down: s.DownOf(service.Name)})
	}
	return services
}

func switchOff(s *model.Service, id uint16) {
	for i := range s.Servers {
		if s.Servers[i].ID == id {
			s.Servers[i].State = model.StateOff
		}
	}
}

// Addresses are those of all servers, predecessors and nodes that may get packets from here.
func (s *State) Addresses() []netip.Addr {
	return s.addresses(func(*model.Predecessor) bool { return true })
}

// Serving are those that connections to services go to from here: a predecessor is among them where none begins here.
func (s *State) Serving() []netip.Addr {
	return s.addresses(func(p *model.Predecessor) bool { return p.Share.Permille() == 0 })
}

func (s *State) addresses(succeeds func(*model.Predecessor) bool) (addresses []netip.Addr) {
	servers := 0
	for i := range s.Running.Services {
		servers += len(s.Running.Services[i].Servers)
	}
	addresses = make([]netip.Addr, 0, servers)
	seen := make(map[netip.Addr]bool, servers)
	one := func(address netip.Addr) {
		if !seen[address] {
			seen[address] = true
			addresses = append(addresses, address)
		}
	}
	add := func(servers []model.Server) {
		for _, server := range servers {
			one(server.Address)
		}
	}
	for i := range s.Running.Services {
		if service := &s.Running.Services[i]; !s.SendsToNodes(service) {
			add(service.Servers)
			add(s.Lingering(service.Name))
			if succeeds(&service.Predecessor) {
				for _, address := range service.Predecessor.Addresses {
					one(address)
				}
			}
		}
	}
	if second := s.SecondTier(); second != nil {
		add(second.Servers)
	}
	return addresses
}

// ServerName is the name of whom the service's packets with that id go to from here: a server, or a node of the second tier.
func (s *State) ServerName(service string, id uint16) string {
	servers, of := s.Lingering(service), s.Running.Service(service)
	if service == model.SecondTierName || of != nil && s.SendsToNodes(of) {
		servers, of = nil, s.SecondTier()
	}
	if of != nil {
		servers = append(servers, of.Servers...)
	}
	for i := range servers {
		if servers[i].ID == id {
			return servers[i].Name
		}
	}
	return ""
}

// Succeeding are the services whose packets may go on to a predecessor from here.
func (s *State) Succeeding() iter.Seq[*model.Service] {
	return func(yield func(*model.Service) bool) {
		for i := range s.Running.Services {
			if service := &s.Running.Services[i]; service.Predecessor.Exists() && !s.SendsToNodes(service) && !yield(service) {
				return
			}
		}
	}
}

// Receiver is what messages call an address that this node sends to.
func (s *State) Receiver(address netip.Addr) string {
	for _, node := range s.Running.Nodes {
		if node.Address == address {
			return "node " + node.Name + " (" + address.String() + ")"
		}
	}
	return "server " + address.String()
}

// IPv6Needs is how wide the way to a server must be for the IPv6 services that it has; 0: it has none.
func (s *State) IPv6Needs(address netip.Addr) (mtu uint16) {
	has := func(server model.Server) bool { return server.Address == address }
	for i := range s.Running.Services {
		if service := &s.Running.Services[i]; service.HasIPv6() && slices.ContainsFunc(service.Servers, has) {
			mtu = max(mtu, 1280+uint16(plan.Overhead(service, address)))
		}
	}
	return mtu
}

// Taking counts servers of a service.
type Taking struct {
	New     int // get new connections from here
	Healthy int // of those, the ones that do not fail their checks
}

// Taking tells it of each service. Services that nobody opens connections to are left out.
func (s *State) Taking() map[string]Taking {
	taking := map[string]Taking{}
	for i := range s.Running.Services {
		service := &s.Running.Services[i]
		if s.SendsToNodes(service) || s.Running.OnlyReturns(service) || service.Predecessor.Share.Permille() == 0 {
			continue
		}
		found, takes := s.Unhealthy[service.Name], Taking{}
		for j := range service.Servers {
			if server := &service.Servers[j]; server.TakesNew() && !slices.Contains(found.Down, server.ID) {
				takes.New++
				if !slices.Contains(found.Kept, server.ID) {
					takes.Healthy++
				}
			}
		}
		taking[service.Name] = takes
	}
	return taking
}

// Unserved are services that nobody serves: none of their servers takes new connections, or all that do fail their checks.
func (s *State) Unserved() (problems []string) {
	taking := s.Taking()
	for i := range s.Running.Services {
		service := &s.Running.Services[i]
		switch takes, asked := taking[service.Name]; {
		case !asked || takes.Healthy > 0:
		case takes.New == 0:
			problems = append(problems, fmt.Sprintf("service %s: no server takes new connections: they are dropped (dropped_no_server)", service.Name))
		default:
			problems = append(problems, fmt.Sprintf("service %s: no server is healthy: new connections go to %s (all_down: %s)",
				service.Name, model.Counted(takes.New, "server that fails its checks", "servers that fail their checks"), service.Health.AllDown))
		}
	}
	return problems
}

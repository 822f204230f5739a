// Services in the forms that nodes are sent.
package hub

import (
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// service is one service in the form that it is sent in.
type service struct {
	revision uint64
	lbs      []byte // field of State, for load balancers
	agents   []byte // the same for agents
	hosts    hosts  // of its servers, and of those that have left
	tickets  hosts  // whose agents get keys of its session tickets
	draining []model.Server
}

// hosts are known by the names and addresses of servers.
type hosts struct {
	names     map[string]bool
	addresses map[netip.Addr]bool
}

func (h *hosts) add(servers []model.Server) {
	if h.names == nil {
		*h = hosts{map[string]bool{}, map[netip.Addr]bool{}}
	}
	for i := range servers {
		h.names[servers[i].Name] = true
		h.addresses[servers[i].Address] = true
	}
}

func (h *hosts) have(who *pki.Identity) bool {
	return h.names[who.Name] || slices.ContainsFunc(who.Addresses, func(a netip.Addr) bool { return h.addresses[a] })
}

func encodeService(v *engine.ServiceView) *service {
	s := &service{revision: v.Revision, lbs: serviceField(forLBs(v)), agents: serviceField(forAgents(v))}
	s.hosts.add(v.Service.Servers)
	s.hosts.add(v.Removed)
	for i := range v.Service.Servers {
		if server := &v.Service.Servers[i]; server.State != model.StateActive {
			s.draining = append(s.draining, *server)
		}
	}
	if v.Service.Session == model.SessionTLS {
		s.tickets.add(v.Service.Servers)
	}
	return s
}

// concerns reports whether a node is sent the service: load balancers of all, agents of those that they are servers of.
func (s *service) concerns(who *pki.Identity) bool {
	if s == nil || who.Role == pki.LB {
		return s != nil
	}
	return s.hosts.have(who)
}

// grants reports whether a node gets the keys of the service's session tickets: an agent of a server that has not left. Load balancers never do.
func (s *service) grants(who *pki.Identity) bool {
	return s != nil && who.Role == pki.Agent && s.tickets.have(who)
}

// drains are the servers of an agent's host that are given no new connections.
func (s *service) drains(who *pki.Identity) (ids []uint16) {
	if s == nil || who.Role != pki.Agent {
		return nil
	}
	for i := range s.draining {
		if server := &s.draining[i]; server.Name == who.Name || slices.Contains(who.Addresses, server.Address) {
			ids = append(ids, server.ID)
		}
	}
	return ids
}

// encoded returns the field of State for nodes of a role.
func (s *service) encoded(role pki.Role) []byte {
	if role == pki.LB {
		return s.lbs
	}
	return s.agents
}

// nodesOf is what load balancers are sent of those that have a tier.
func nodesOf(v *engine.View) *ballastv1.Nodes {
	nodes := api.NodesToProto(&model.Fleet{Nodes: v.Nodes, NodeHealth: v.NodeHealth, Unserved: v.Unserved})
	if v.Second != nil {
		nodes.Down, nodes.Kept = wide(v.Second.Down), wide(v.Second.Kept)
	}
	return nodes
}

// forLBs is all that is known. That connections of an unhealthy server are cut is sent as its state: the configuration keeps
// the one that people gave it.
func forLBs(v *engine.ServiceView) *ballastv1.ServiceState {
	service := v.Service
	if len(v.Cut) > 0 {
		service = service.Clone()
		for i := range service.Servers {
			if slices.Contains(v.Cut, service.Servers[i].ID) {
				service.Servers[i].State = model.StateOff
			}
		}
	}
	state := &ballastv1.ServiceState{Service: api.ServiceToProto(&service), Removed: api.ServersToProto(v.Removed), Past: api.PastToProto(v.Past)}
	state.Down, state.Kept = wide(v.Down), wide(v.Kept)
	return state
}

func wide(ids []uint16) (list []uint32) {
	for _, id := range ids {
		list = append(list, uint32(id))
	}
	return list
}

// forAgents is what servers need to know of the service that they share: not how its connections are dispatched, so they are sent
// nothing when only that changes.
func forAgents(v *engine.ServiceView) *ballastv1.ServiceState {
	service := v.Service.Clone()
	service.Health = model.Health{}
	service.Table = model.Table{IndexBits: service.Table.IndexBits, NodeBits: service.Table.NodeBits} // what is in the cookie
	for i := range service.Servers {
		server := &service.Servers[i]
		*server = model.Server{Name: server.Name, Address: server.Address, Port: server.Port, ID: server.ID, Weight: 1}
	}
	state := &ballastv1.ServiceState{Service: api.ServiceToProto(&service)}
	for _, server := range v.Removed {
		server = model.Server{Name: server.Name, Address: server.Address, Port: server.Port, ID: server.ID, Weight: 1}
		state.Removed = append(state.Removed, api.ServerToProto(&server))
	}
	return state
}

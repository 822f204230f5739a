// What nodes are told of the desired state.
package hub

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/model"
)

// nodesOf is what load balancers are told of those that have a tier.
func nodesOf(v *engine.View) *ballastv1.Nodes {
	nodes := api.NodesToProto(&model.Fleet{Nodes: v.Nodes, NodeHealth: v.NodeHealth})
	if v.Second != nil {
		nodes.Down, nodes.Kept = wide(v.Second.Down), wide(v.Second.Kept)
	}
	return nodes
}

// forLBs is all there is to know. That connections of an unhealthy server are cut is told as its state: the configuration keeps
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

// forAgents is what servers need to know of the service that they share: not how its connections are dispatched, so that they hear
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

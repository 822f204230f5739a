package controller

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// View is the desired state as nodes are told it. It is shared: nobody changes it.
type View struct {
	Revision uint64
	Keys     model.Keys
	Services []ServiceView // by name
	// Skipped are services that peers have to be told of even if they are what they were in the view before, or there in neither: they
	// were something else in between, which another controller may have told. Whole: peers have to be told everything.
	Skipped []string
	Whole   bool
}

// ServiceView is a service with what is not configuration.
type ServiceView struct {
	Service model.Service
	Removed []model.Server  // that have left, whose connections have not ended
	Past    [][]model.Share // what the table was made of before, oldest first
	Down    []uint16        // ids of servers that get no new connections because they are unhealthy, ascending
	Cut     []uint16        // of those, the ones that have been unhealthy for so long that they get no packets at all
	// Revision changes whenever anything else here does. 0: look and compare.
	Revision uint64
}

// Service returns the service of that name, or nil.
func (v *View) Service(name string) *ServiceView {
	for i := range v.Services {
		if v.Services[i].Service.Name == name {
			return &v.Services[i]
		}
	}
	return nil
}

// forLBs is all there is to know. That connections of an unhealthy server are cut is told as its state: the configuration keeps
// the one that people gave it.
func (v *ServiceView) forLBs() *ballastv1.ServiceState {
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
	for _, id := range v.Down {
		state.Down = append(state.Down, uint32(id))
	}
	return state
}

// forAgents is what servers need to know of the service that they share: not how its connections are dispatched, so that they hear
// nothing when only that changes.
func (v *ServiceView) forAgents() *ballastv1.ServiceState {
	service := v.Service.Clone()
	service.Health = model.Health{}
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

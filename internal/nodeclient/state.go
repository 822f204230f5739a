// What a state of controllers makes of the one that a node has.
package nodeclient

import (
	"cmp"
	"errors"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
)

// State is the desired state as controllers send it.
type State struct {
	fleet.Desired
	Unhealthy map[string]fleet.Unhealthy         // by service
	Tickets   map[string]rotation.ServiceTickets // keys of session tickets, by service: of agents
}

// After returns the state after a message. It shares with s what has not changed.
func (s State) After(message *ballastv1.State) (next State, err error) {
	next.Running.Keys, next.Past, next.Unhealthy = s.Running.Keys, map[string][][]model.Share{}, map[string]fleet.Unhealthy{}
	if message.Keys != nil {
		if next.Running.Keys, err = api.KeysFromProto(message.Keys); err != nil {
			return next, err
		}
	}
	next.Tickets = s.Tickets
	if message.Tickets != nil {
		if next.Tickets, err = api.TicketsFromProto(message.Tickets); err != nil {
			return next, err
		}
	}
	if !message.Complete {
		next.mergePartial(&s, message)
	}
	errs := []error{next.takeNodes(&s, message)}
	for _, service := range message.Services {
		errs = append(errs, next.takeService(service))
	}
	if err := errors.Join(errs...); err != nil {
		return next, err
	}
	next.takeDraining(message)
	slices.SortFunc(next.Running.Services, func(a, b model.Service) int { return cmp.Compare(a.Name, b.Name) })
	return next, next.Running.Validate()
}

// takeDraining has an agent know which of its own servers drain. Services that it is sent do not say so of any server.
func (s *State) takeDraining(message *ballastv1.State) {
	if message.Draining == nil {
		return
	}
	for i := range s.Running.Services {
		service := &s.Running.Services[i]
		state := func(server model.Server) model.ServerState {
			if slices.ContainsFunc(message.Draining.Servers, func(k *ballastv1.ServerKey) bool { return k.Service == service.Name && k.Id == uint32(server.ID) }) {
				return model.StateDraining
			}
			return model.StateActive
		}
		if slices.ContainsFunc(service.Servers, func(server model.Server) bool { return server.State != state(server) }) {
			service.Servers = slices.Clone(service.Servers) // which the state before shares
			for j := range service.Servers {
				service.Servers[j].State = state(service.Servers[j])
			}
		}
	}
}

// mergePartial carries over the services that a message does not name.
func (s *State) mergePartial(before *State, message *ballastv1.State) {
	named := make(map[string]bool, len(message.Services)+len(message.Gone))
	for _, gone := range message.Gone {
		named[gone] = true
	}
	for _, service := range message.Services {
		named[service.GetService().GetName()] = true
	}
	for _, service := range before.Running.Services {
		if named[service.Name] {
			continue
		}
		s.Running.Services = append(s.Running.Services, service)
		if past := before.Past[service.Name]; past != nil {
			s.Past[service.Name] = past
		}
		s.keepUnhealthy(before, service.Name)
	}
	for _, r := range before.Removed {
		if !named[r.Service] {
			s.Removed = append(s.Removed, r)
		}
	}
}

// takeNodes takes who has a tier, and what is of the whole fleet. A message without nodes leaves them as they are, unless it is complete.
func (s *State) takeNodes(before *State, message *ballastv1.State) error {
	if message.Nodes == nil {
		if !message.Complete {
			s.Running.Nodes, s.Running.NodeHealth, s.Running.Unserved = before.Running.Nodes, before.Running.NodeHealth, before.Running.Unserved
			s.keepUnhealthy(before, model.SecondTierName)
		}
		return nil
	}
	s.setUnhealthy(model.SecondTierName, message.Nodes.Down, message.Nodes.Kept)
	return api.SetNodes(&s.Running, message.Nodes)
}

func (s *State) takeService(message *ballastv1.ServiceState) error {
	service, err := api.ServiceFromProto(message.GetService())
	if err != nil {
		return err
	}
	service.ApplyDefaults() // of an older controller's
	s.Running.Services = append(s.Running.Services, service)
	for _, removed := range message.Removed {
		server, err := api.ServerFromProto(removed)
		if err != nil {
			return err
		}
		s.Removed = append(s.Removed, fleet.Removed{Service: service.Name, Server: server})
	}
	past, err := api.PastFromProto(message.Past)
	if err != nil {
		return err
	}
	if past != nil {
		s.Past[service.Name] = past
	}
	s.setUnhealthy(service.Name, message.Down, message.Kept)
	return nil
}

func (s *State) keepUnhealthy(before *State, service string) {
	if unhealthy, ok := before.Unhealthy[service]; ok {
		s.Unhealthy[service] = unhealthy
	}
}

func (s *State) setUnhealthy(service string, down, kept []uint32) {
	if found := (fleet.Unhealthy{Down: ids(down), Kept: ids(kept)}); !found.None() {
		s.Unhealthy[service] = found
	}
}

func ids(numbers []uint32) (list []uint16) {
	for _, number := range numbers {
		list = append(list, uint16(number))
	}
	return list
}

package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
)

func (f *fleetAPI) PutService(ctx context.Context, r *ballastv1.PutServiceRequest) (*ballastv1.ChangeResponse, error) {
	name := r.GetService().GetName()
	if name == "" {
		return nil, refusal(missing("service.name", "say which service is meant"))
	}
	return f.change(ctx, r.DryRun, r.Force, func(fleet *model.Fleet, removed []fleet.Removed) error {
		if f.ensureKeys(fleet) && !r.Force {
			if err := unsafe(f.desired.KeyNodes().Orphans(), "say --yes to lose them"); err != nil {
				return err
			}
		}
		s := fleet.Service(name)
		switch {
		case s == nil && r.GetExists():
			return noService(name)
		case s == nil:
			added, err := ServiceFromProto(r.Service)
			if err != nil {
				return err
			}
			fleet.Services = append(fleet.Services, added)
			fleet.MakeRoomForNodes()
			giveIDs(&fleet.Services[len(fleet.Services)-1], nil, removed)
			return f.mayHaveSources(fleet)
		case r.Exists != nil && !*r.Exists:
			return exists("service", name, "change it with `ballast ctl service set`, or choose another name")
		case len(r.Service.Servers) > 0:
			return &model.Invalid{Path: "services." + name + ".servers", Problem: "they are not set with the service",
				Remedy: "add them with `ballast ctl server add`"}
		}
		dropUnusable(s, r.Service)
		return cmp.Or(setService(s, r.Service), f.mayHaveSources(fleet))
	})
}

// dropUnusable empties what belongs to an affinity, a check or a load source that m replaces: it could not be taken back otherwise.
func dropUnusable(s *model.Service, m *ballastv1.Service) {
	if affinity := m.GetAffinity(); affinity != "" && affinity != s.Affinity.String() {
		s.Table = s.Table.Room() // what cookies carry
		if affinity != model.AffinityCookie.String() && affinity != model.AffinityTable.String() {
			s.Table = model.Table{}
		}
	}
	if from := m.GetSource().GetFrom(); from != "" && from != s.Source.From.String() {
		s.Source = model.ServerSource{}
	}
	dropUnusableCheck(&s.Health, m.GetHealth())
	if source := m.GetLoad().GetSource(); source != "" && source != s.Load.Source.String() {
		s.Load.Endpoint = ""
	}
}

func dropUnusableCheck(h *model.Health, m *ballastv1.Health) {
	if check := m.GetCheck(); check != "" && check != h.Check.String() {
		h.Path, h.Host, h.Service, h.Command = "", "", "", nil
		h.Send, h.Expect, h.Contains, h.Query, h.RCode = "", "", "", "", ""
	}
}

func (f *fleetAPI) RemoveService(ctx context.Context, r *ballastv1.RemoveServiceRequest) (*ballastv1.ChangeResponse, error) {
	return f.change(ctx, r.DryRun, r.Force, func(fleet *model.Fleet, _ []fleet.Removed) error {
		before := len(fleet.Services)
		fleet.Services = slices.DeleteFunc(fleet.Services, func(s model.Service) bool { return s.Name == r.Service })
		if len(fleet.Services) == before {
			return noService(r.Service)
		}
		return nil
	})
}

func (f *fleetAPI) AddServer(ctx context.Context, r *ballastv1.AddServerRequest) (*ballastv1.ChangeResponse, error) {
	server, err := ServerFromProto(r.Server)
	if err != nil {
		return nil, refusal(err)
	}
	var id uint16
	answer, err := f.changeService(ctx, r.Service, r.DryRun, false, func(s *model.Service, removed []fleet.Removed) error {
		if err := listed(s); err != nil {
			return err
		}
		s.Servers = append(s.Servers, server)
		giveIDs(s, nil, removed)
		s.ApplyDefaults() // gives the others their ids
		id = s.Servers[len(s.Servers)-1].ID
		return nil
	})
	if err == nil {
		answer.Id = uint32(id)
	}
	return answer, err
}

func (f *fleetAPI) RemoveServer(ctx context.Context, r *ballastv1.ServerRequest) (*ballastv1.ChangeResponse, error) {
	return f.changeService(ctx, r.Service, r.DryRun, r.Force, func(s *model.Service, _ []fleet.Removed) error {
		if err := listed(s); err != nil {
			return err
		}
		before := len(s.Servers)
		s.Servers = slices.DeleteFunc(s.Servers, func(server model.Server) bool { return server.Name == r.Server })
		if len(s.Servers) == before {
			return noServer(r.Service, r.Server)
		}
		return nil
	})
}

// changeService runs an edit of one service.
func (f *fleetAPI) changeService(ctx context.Context, name string, dryRun, force bool, edit func(s *model.Service, removed []fleet.Removed) error) (*ballastv1.ChangeResponse, error) {
	return f.change(ctx, dryRun, force, func(fleet *model.Fleet, removed []fleet.Removed) error {
		s := fleet.Service(name)
		if s == nil {
			return noService(name)
		}
		return edit(s, removed)
	})
}

// changeServer runs an edit of one server.
func (f *fleetAPI) changeServer(ctx context.Context, service, name string, dryRun, force bool, edit func(*model.Server)) (*ballastv1.ChangeResponse, error) {
	return f.changeService(ctx, service, dryRun, force, func(s *model.Service, _ []fleet.Removed) error {
		server := s.Server(name)
		if server == nil {
			return noServer(service, name)
		}
		edit(server)
		return nil
	})
}

func (f *fleetAPI) DrainServer(ctx context.Context, r *ballastv1.DrainServerRequest) (*ballastv1.ChangeResponse, error) {
	var in input
	var after model.Duration
	if in.duration("deadline", &after, r.Deadline); len(in) > 0 {
		return nil, refusal(in[0])
	}
	var deadline time.Time
	if r.Deadline != nil {
		// In whole seconds, as configuration files have it, and never earlier than was asked for.
		deadline = f.now().Add(time.Duration(after) + time.Second - 1).UTC().Truncate(time.Second)
	}
	return f.changeServer(ctx, r.Service, r.Server, r.DryRun, r.Force, func(s *model.Server) { s.State, s.Deadline = model.StateDraining, deadline })
}

func (f *fleetAPI) UndrainServer(ctx context.Context, r *ballastv1.ServerRequest) (*ballastv1.ChangeResponse, error) {
	return f.changeServer(ctx, r.Service, r.Server, r.DryRun, false, func(s *model.Server) { s.State, s.Deadline = model.StateActive, time.Time{} })
}

func (f *fleetAPI) WeighServer(ctx context.Context, r *ballastv1.WeighServerRequest) (*ballastv1.ChangeResponse, error) {
	if r.Weight > model.MaxWeight {
		return nil, refusal(&model.Invalid{Path: "weight", Problem: fmt.Sprintf("%d is out of range", r.Weight), Remedy: fmt.Sprintf("use 0 to %d", model.MaxWeight)})
	}
	alike := false
	answer, err := f.changeService(ctx, r.Service, r.DryRun, r.Force, func(s *model.Service, _ []fleet.Removed) error {
		server := s.Server(r.Server)
		if server == nil {
			return noServer(r.Service, r.Server)
		}
		server.Weight = uint16(r.Weight)
		alike = s.Dispatch == model.DispatchRR && r.Weight > 1
		return nil
	})
	if err == nil && alike {
		answer.Notes = append(answer.Notes, fmt.Sprintf("service %s: dispatch rr gives all servers above weight 0 the same: use wrr (`ballast ctl service set %s --dispatch wrr`)", r.Service, r.Service))
	}
	return answer, err
}

func (f *fleetAPI) ForgetServer(ctx context.Context, r *ballastv1.ServerRequest) (*ballastv1.ChangeResponse, error) {
	changes, revision, err := f.desired.Forget(ctx, r.DryRun, r.Service, r.Server)
	if err != nil {
		return nil, refusal(err)
	}
	return &ballastv1.ChangeResponse{Changes: changes, Revision: revision}, nil
}

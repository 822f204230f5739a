package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/kube/lease"
	mapping "github.com/ballast-lb/ballast/internal/machine/kube"
	"github.com/ballast-lb/ballast/internal/model"
)

// fleetTimeout is how long controllers may take to answer. It is shorter than the time between the end of a lease's renewals and its being given
// to another replica: what a replica has asked for is done, or is not, before another one leads.
const fleetTimeout = lease.Duration - lease.RenewDeadline

// fleet is the one that services are kept in.
type fleet struct {
	client ballastv1connect.FleetClient
	owner  string
	// suspects were refused when they were asked for alone: they are asked for last, so that they hold up nobody.
	suspects map[string]bool
	progress func() // called before each change
}

// read returns the fleet, services of all owners and load balancers.
func (f *fleet) read(ctx context.Context) (model.Fleet, error) {
	ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
	defer cancel()
	answer, err := f.client.GetFleet(ctx, &ballastv1.GetFleetRequest{})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("no controller has answered within %v", fleetTimeout)
	}
	if err != nil {
		return model.Fleet{}, fmt.Errorf("read the fleet: %w", err)
	}
	if answer.Unconfirmed != "" {
		return model.Fleet{}, fmt.Errorf("read the fleet: what the controller has may be old: %s", answer.Unconfirmed)
	}
	read, err := api.FleetFromProto(answer, nil)
	if err != nil {
		return model.Fleet{}, fmt.Errorf("read the fleet: %w: are the controllers of a newer version?", err)
	}
	return read, nil
}

// difference is a service as it is and as it should be; nil: it is not, or should not be.
type difference struct{ have, want *model.Service }

// apply makes the services of the owner as they are wanted, and returns which were refused, and why. Where all at once are refused, halves are
// asked for, so that one that cannot be had keeps no other from being so.
func (f *fleet) apply(ctx context.Context, have, want []model.Service) (refused map[string]error, err error) {
	a := application{fleet: f, all: map[string]difference{}, now: map[string]*model.Service{}, refused: map[string]error{}}
	for i := range have {
		if s := &have[i]; s.Owner == f.owner {
			a.all[s.Name] = difference{have: s}
		}
	}
	for i := range want {
		a.all[want[i].Name] = difference{a.all[want[i].Name].have, &want[i]}
	}
	var changed, suspects []string
	alike := true
	for name, d := range a.all {
		switch {
		case d.have == nil || d.want == nil || !equal(d.have, d.want):
			if changed = append(changed, name); f.suspects[name] {
				changed, suspects = changed[:len(changed)-1], append(suspects, name)
			}
			a.now[name] = weighed(d)
		default:
			a.now[name] = d.want
			alike = alike && weights(d.have) == weights(d.want)
		}
	}
	if len(changed) > 0 || !alike {
		slices.SortFunc(changed, a.order)
		if err := a.change(ctx, changed); err != nil {
			return nil, err
		}
	}
	slices.Sort(suspects)
	for _, name := range suspects {
		if err := a.change(ctx, []string{name}); err != nil {
			return nil, err
		}
	}
	f.suspects = map[string]bool{}
	for name := range a.refused {
		f.suspects[name] = true
	}
	return a.refused, nil
}

// application is one apply.
type application struct {
	*fleet
	all     map[string]difference
	now     map[string]*model.Service // as the fleet has them by now
	refused map[string]error
}

// order puts what goes first, as it makes room, and what is new last.
func (a *application) order(x, y string) int {
	rank := func(name string) int {
		switch d := a.all[name]; {
		case d.want == nil:
			return 0
		case d.have != nil:
			return 1
		}
		return 2
	}
	return cmp.Or(rank(x)-rank(y), cmp.Compare(x, y))
}

// change makes some services as they are wanted. The error is not about them.
func (a *application) change(ctx context.Context, names []string) error {
	next := maps.Clone(a.now)
	for _, name := range names {
		if next[name] = a.all[name].want; next[name] == nil {
			delete(next, name)
		}
	}
	err := a.send(ctx, next)
	switch {
	case err == nil:
		a.now = next
		return nil
	case !aboutServices(err) || len(names) == 0:
		return fmt.Errorf("change the fleet: %w", err)
	case len(names) == 1:
		a.refused[names[0]] = err
		return nil
	}
	middle := len(names) / 2
	if err := a.change(ctx, names[:middle]); err != nil {
		return err
	}
	return a.change(ctx, names[middle:])
}

func (a *application) send(ctx context.Context, services map[string]*model.Service) error {
	a.progress()
	ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
	defer cancel()
	var all model.Fleet
	for _, name := range slices.Sorted(maps.Keys(services)) {
		if services[name] != nil {
			all.Services = append(all.Services, *services[name])
		}
	}
	_, err := a.client.ApplyServices(ctx, &ballastv1.ApplyServicesRequest{Owner: a.owner, Services: api.FleetToProto(&all).Services, Force: true})
	return err
}

// aboutServices reports whether an answer refuses what was asked for, and nothing keeps controllers from answering: another question may be
// answered otherwise. Internal is that of a store that takes fewer changes at once.
func aboutServices(err error) bool {
	var refused *connect.Error
	return errors.As(err, &refused) && connect.IsWireError(refused) &&
		slices.Contains([]connect.Code{connect.CodeInvalidArgument, connect.CodeAlreadyExists, connect.CodeFailedPrecondition, connect.CodeInternal, connect.CodeResourceExhausted}, refused.Code())
}

// equal reports whether two services differ in nothing but ids, and weights and states of servers.
func equal(have, want *model.Service) bool {
	return mapping.SameSettings(have, want) && maps.Equal(places(have), places(want))
}

func places(s *model.Service) map[string]string {
	at := make(map[string]string, len(s.Servers))
	for i := range s.Servers {
		at[s.Servers[i].Name] = s.Servers[i].Address.String()
	}
	return at
}

// weights are what equal leaves out.
func weights(s *model.Service) string {
	list := make([]string, 0, len(s.Servers))
	for i := range s.Servers {
		list = append(list, fmt.Sprint(s.Servers[i].Name, " ", s.Servers[i].Weight, " ", s.Servers[i].State))
	}
	slices.Sort(list)
	return fmt.Sprint(list)
}

// weighed is a service as the fleet has it, with weights and states as they are wanted: the fleet keeps what an operator has set of servers as
// long as it is asked for the same.
func weighed(d difference) *model.Service {
	if d.have == nil || d.want == nil {
		return d.have
	}
	s := d.have.Clone()
	for i := range s.Servers {
		if want := d.want.Server(s.Servers[i].Name); want != nil && want.Address == s.Servers[i].Address {
			s.Servers[i].Weight, s.Servers[i].State, s.Servers[i].Deadline = want.Weight, want.State, time.Time{}
		}
	}
	return &s
}

// Services that a program keeps, beside those of people and of other programs.
package api

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// SourceProcedures are what certificates of role source may call.
var SourceProcedures = []string{ballastv1connect.FleetGetFleetProcedure, ballastv1connect.FleetApplyServicesProcedure}

// ApplyServices is Apply for the services of one owner: everything else stays as it is. Like Apply it keeps ids that are not given, and weights,
// states and deadlines that were set since a request that said the same of them.
func (f *fleetAPI) ApplyServices(ctx context.Context, r *ballastv1.ApplyServicesRequest) (*ballastv1.ChangeResponse, error) {
	if !f.desired.MakesKeys() {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("this load balancer runs by a file, which has no owners: ask a controller"))
	}
	wanted, err := FleetFromProto(&ballastv1.ApplyRequest{Services: r.Services}, nil)
	if err == nil {
		err = mayOwn(ctx, r.Owner, wanted.Services)
	}
	if err != nil {
		return nil, refusal(named(err, &wanted))
	}
	for i := range wanted.Services {
		wanted.Services[i].Owner = r.Owner
	}
	edited := &model.Fleet{}
	answer, err := f.carefully(ctx, r.DryRun, r.Force, func(n *fleet.Desired) error {
		if err := notOfOthers(n.Running.Services, &wanted, r.Owner); err != nil {
			return err
		}
		if f.ensureKeys(&n.Running) {
			if err := unsafe(f.desired.KeyNodes().Orphans(), "begin the fleet with its keys: `ballast ctl apply`"); err != nil {
				return err
			}
		}
		next := n.Base.Clone()
		next.Services = slices.DeleteFunc(next.Services, func(s model.Service) bool { return s.Owner == r.Owner })
		next.Services = append(next.Services, wanted.Clone().Services...)
		earlier := complete(&next, n, false)
		if by, _ := CallerOf(ctx); by.Role == string(pki.Source) {
			if err := notAtOthers(n.Running.Services, next.Services, r.Owner); err != nil {
				return err
			}
		}
		inOrderOf(&next, earlier)
		n.Apply(next)
		edited = &n.Running
		return nil
	})
	return answer, refusal(named(err, edited))
}

// mayOwn refuses owners that are not the caller, and what a program that keeps services may not have done in its name.
func mayOwn(ctx context.Context, owner string, services []model.Service) error {
	if owner == "" {
		return missing("owner", "say whose services these are")
	}
	by, _ := CallerOf(ctx)
	if by.Role != string(pki.Source) {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf(format+": that takes a certificate for role %s", append(args, pki.Ctl)...))
	}
	if by.Name != owner {
		return refuse("the certificate of %s changes services of %s alone, not of %s", by.Name, by.Name, owner)
	}
	for i := range services {
		switch s := &services[i]; {
		case s.Health.Check == model.CheckExec:
			return refuse("service %s has load balancers run a program (health.check: exec)", s.Name)
		case !s.Source.IsZero():
			return refuse("service %s has controllers ask for its servers (servers.from)", s.Name)
		case s.Load.Endpoint != "":
			return refuse("service %s has nodes ask a URL (load.endpoint)", s.Name)
		case s.Functions():
			return refuse("service %s gets what is sent to addresses of others (destinations)", s.Name)
		}
	}
	return nil
}

// notOfOthers refuses services with the names of those that another owner, or nobody, keeps.
func notOfOthers(running []model.Service, wanted *model.Fleet, owner string) error {
	names := make(map[string]bool, len(wanted.Services))
	for i := range wanted.Services {
		names[wanted.Services[i].Name] = true
	}
	for i := range running {
		if s := &running[i]; names[s.Name] && s.Owner != owner {
			return exists("service", s.Name, fmt.Sprintf("it is not of %s: choose another name", owner))
		}
	}
	return nil
}

// notAtOthers refuses services of an owner at addresses of services that another owner, or nobody, keeps: one that has all ports leaves those that
// others name. A service keeps what it has there already.
func notAtOthers(running, next []model.Service, owner string) error {
	others, own := map[netip.Addr]string{}, map[string]*model.Service{}
	for i := range running {
		s := &running[i]
		if s.Owner == owner {
			own[s.Name] = s
			continue
		}
		for _, vip := range s.VIPs() {
			others[vip] = s.Name
		}
	}
	for i := range next {
		s := &next[i]
		if s.Owner != owner {
			continue
		}
		before := own[s.Name]
		for _, vip := range s.VIPs() {
			if name, taken := others[vip]; taken && (before == nil || !before.HasVIP(vip) || !hasPortsOf(before, s)) {
				return connect.NewError(connect.CodeAlreadyExists,
					fmt.Errorf("%s is an address of service %s, which is not of %s: choose another vip for service %s", vip, name, owner, s.Name))
			}
		}
	}
	return nil
}

// hasPortsOf reports whether a service has all ports of another.
func hasPortsOf(s, o *model.Service) bool {
	return s.Protocol == o.Protocol && !slices.ContainsFunc(o.AllOfPorts(), func(r model.PortRange) bool {
		return !slices.ContainsFunc(s.AllOfPorts(), func(have model.PortRange) bool { return have.Contains(r.First) && have.Contains(r.Last) })
	})
}

// keptByOwners returns the running services of owners whose names are not in a list.
func keptByOwners(running, listed []model.Service) (kept []model.Service) {
	names := make(map[string]bool, len(listed))
	for i := range listed {
		names[listed[i].Name] = true
	}
	for i := range running {
		if s := &running[i]; s.Owner != "" && !names[s.Name] {
			kept = append(kept, s.Clone())
		}
	}
	return kept
}

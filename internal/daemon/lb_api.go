package daemon

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
)

func (lb *LB) routes() *api.Server {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) { return lb.status(), nil })
	s.Handle("GET "+api.PathCounters, func(*http.Request) (any, error) { return lb.counters() })
	s.Handle("DELETE "+api.PathCounters, lb.resetCounters)
	s.Handle("GET "+api.PathServices, func(*http.Request) (any, error) { return lb.services() })
	s.Handle("GET "+api.PathConfigDiff, func(*http.Request) (any, error) {
		lb.mu.Lock()
		defer lb.mu.Unlock()
		return api.Changed{Changes: lb.node.Differences()}, nil
	})
	s.Handle("POST "+api.PathConfigAction, lb.configAction)
	s.Handle("GET "+api.PathConnections, lb.connectionsAsked)
	s.Handle("GET "+api.PathSuspects, lb.suspectsAsked)
	s.Handle("POST "+api.PathSuspects, lb.suspectSet)
	s.Handle("DELETE "+api.PathSuspects, lb.suspectCleared)
	s.HandleRaw("GET "+api.PathTrace, http.HandlerFunc(lb.serveTrace))
	s.HandleRaw("GET "+api.PathMetrics, lb.metricsHandler())
	s.HandleRaw(api.NewFleetHandler(desired{lb}))
	return s
}

func (lb *LB) status() api.LBStatus {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	status := api.LBStatus{
		Status:     api.Status{Role: "lb", Ready: lb.ready, Version: lb.options.Version, Config: lb.file, Generation: lb.generation},
		Interfaces: map[string]string{}, Name: lb.name,
	}
	for name, mode := range lb.modes {
		status.Interfaces[name] = string(mode)
	}
	for address, why := range lb.paths.why {
		status.Problems = append(status.Problems, fmt.Sprintf("%s: %s", lb.subject(address), why))
	}
	status.Problems = append(status.Problems, lb.tierProblems()...)
	slices.Sort(status.Problems)
	var err error
	if status.Tier, err = lb.tierStatus(); err != nil {
		status.Problems = append(status.Problems, err.Error())
	}
	if lb.remote != nil {
		status.Revision = lb.remote.follower.Revision
		status.Controllers = lb.remote.joined.Connected()
		if len(status.Controllers) == 0 {
			status.Problems = append(status.Problems, "no controller is connected: the last state goes on")
		}
	}
	return status
}

// doesItsWork is what first-tier nodes, and others who check, are answered.
func (lb *LB) doesItsWork() bool {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	return lb.ready && !lb.cutOff && len(lb.tierProblems()) == 0
}

// change runs an edit of the desired state and carries it out, unless it is a dry run. The errors of edit are returned as they are.
func (lb *LB) change(dryRun bool, edit api.Edit) (changes []string, revision uint64, err error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if err := lb.refuseIfRemote(); err != nil {
		return nil, 0, err
	}
	before, next := lb.node, lb.node
	changes, err = next.Change(time.Now(), func(fleet *model.Fleet) error { return edit(fleet, before.Removed) })
	if err != nil || dryRun {
		return changes, lb.generation, err
	}
	lb.node = next
	if err := lb.carryOut(before); err != nil {
		return nil, 0, err
	}
	lb.logChanges("ctl", changes)
	return changes, lb.generation, nil
}

// refuseIfRemote: a change of one node would be undone by the next word of a controller.
func (lb *LB) refuseIfRemote() error {
	if lb.remote == nil {
		return nil
	}
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("this load balancer runs by controllers: use `ballast ctl --controller %s`",
		strings.Join(lb.options.Controllers, ",")))
}

// forget gives up a removed server and its id.
func (lb *LB) forget(service, server string) (changes []string, revision uint64, err error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if err := lb.refuseIfRemote(); err != nil {
		return nil, 0, err
	}
	before := lb.node
	before.Removed = slices.Clone(before.Removed)
	if err := lb.node.Forget(service, server); err != nil {
		return nil, 0, connect.NewError(connect.CodeNotFound, err)
	}
	if err := lb.carryOut(before); err != nil {
		return nil, 0, err
	}
	changes = []string{"service " + service + ": removed server " + server + " forgotten"}
	lb.logChanges("ctl", changes)
	return changes, lb.generation, nil
}

func (lb *LB) configAction(r *http.Request) (any, error) {
	if lb.remote != nil {
		return nil, api.BadRequest("this load balancer has no configuration file: it runs by controllers")
	}
	switch r.PathValue("action") {
	case "reload":
		if err := lb.Reload(); err != nil {
			return nil, api.BadRequest("%s", err)
		}
		return api.Changed{}, nil
	case "reset":
		changes, _, err := lb.change(false, func(fleet *model.Fleet, _ []node.Removed) error {
			*fleet = lb.node.Base.Clone()
			return nil
		})
		var invalid *model.Invalid
		if errors.As(err, &invalid) {
			return nil, api.BadRequest("%s", err)
		}
		return api.Changed{Changes: changes}, err
	}
	return nil, api.BadRequest("unknown action %q: use reload or reset", r.PathValue("action"))
}

// resetCounters zeroes what was counted, and nothing that steers packets. A removed server counts as just heard of: its linger
// begins anew, which is the safe side.
func (lb *LB) resetCounters(*http.Request) (any, error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	err := lb.path.ResetVerdictTraffic(0)
	for _, place := range lb.tables.Places() {
		err = errors.Join(err, lb.path.ResetVerdictTraffic(place.Number))
		for _, index := range place.Counters {
			err = errors.Join(err, lb.path.ResetServerTraffic(index))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reset counters: %w", err)
	}
	changes := []string{"counters of services and servers: reset"}
	lb.logChanges("ctl", changes)
	return api.Changed{Changes: changes}, nil
}

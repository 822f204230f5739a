package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/nodeclient"
)

func (lb *LB) routes() *api.Server {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) { return lb.status(), nil })
	s.Handle("GET "+api.PathRunning, func(*http.Request) (any, error) {
		lb.mu.Lock()
		defer lb.mu.Unlock()
		return lb.node.Running.Clone(), nil
	})
	s.Handle("GET "+api.PathCounters, func(*http.Request) (any, error) { return lb.counters() })
	s.Handle("DELETE "+api.PathCounters, lb.resetCounters)
	s.Handle("GET "+api.PathServices, func(*http.Request) (any, error) { return lb.services() })
	s.Handle("GET "+api.PathConfigDiff, func(*http.Request) (any, error) {
		lb.mu.Lock()
		defer lb.mu.Unlock()
		return api.Changed{Changes: lb.node.Differences()}, lb.refuseWithoutFile()
	})
	s.Handle("POST "+api.PathConfigAction, lb.configAction)
	s.Handle("GET "+api.PathConnections, lb.connectionsAsked)
	s.Handle("GET "+api.PathSuspects, lb.suspectsAsked)
	s.Handle("POST "+api.PathSuspects, lb.suspectSet)
	s.Handle("DELETE "+api.PathSuspects, lb.suspectCleared)
	s.HandleRaw("GET "+api.PathTrace, http.HandlerFunc(lb.serveTrace))
	s.HandleRaw("GET "+api.PathMetrics, lb.metricsHandler())
	s.HandleRaw(api.NewFleetHandler(desired{lb}))
	s.Otherwise("this load balancer does not know that command: it is of another version than this ballast")
	return s
}

func (lb *LB) status() api.LBStatus {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	stops := lb.obstacles()
	status := api.LBStatus{
		Status:     api.Status{Role: "lb", Ready: len(stops) == 0, NotReady: stops, Version: lb.options.Version, ByControllers: lb.remote != nil, Config: lb.file, Generation: lb.generation},
		Interfaces: lb.attachments.Modes(), Name: lb.name, Problems: slices.Clone(stops),
	}
	var err error
	status.Problems = slices.Concat(status.Problems, lb.unreachable(time.Now()), lb.refused, lb.cookieProblems(), lb.unserved())
	if down, all := lb.attachments.Down(); !all {
		status.Problems = append(status.Problems, down...)
	}
	if lb.kept.Unsaved() != "" {
		status.Problems = append(status.Problems, lb.kept.Unsaved())
	}
	if lb.credentials != nil {
		status.Problems = append(status.Problems, lb.credentials.Warnings(time.Now())...)
	}
	slices.Sort(status.Problems[len(stops):])
	if status.Tier, err = lb.tierStatus(); err != nil {
		status.Problems = append(status.Problems, err.Error())
	}
	if lb.remote != nil {
		status.Revision = lb.revision
		status.Controllers = lb.remote.Connected()
		if len(status.Controllers) == 0 {
			problem := nodeclient.NoController
			if status.Ready {
				problem += ": the last state goes on"
			}
			status.Problems = append(status.Problems, problem)
		}
	}
	return status
}

// change runs an edit of the desired state and carries it out, unless it is a dry run. The errors of edit are returned as they are.
func (lb *LB) change(ctx context.Context, dryRun bool, edit node.Edit) (changes []string, revision uint64, err error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if err := lb.refuseIfRemote(); err != nil {
		return nil, 0, err
	}
	before, next := lb.node, lb.node
	next.Base = next.Running // a file that ctl applies is not the one that this node runs by: it is taken as it is
	changes, err = next.Change(time.Now(), edit)
	next.Base = before.Base
	if err != nil {
		lb.log.Debug("a change was refused", "by", api.CallerName(ctx), "error", err)
	}
	if err != nil || dryRun {
		return changes, lb.generation, err
	}
	lb.node = next
	if err := lb.carryOut(before); err != nil {
		return nil, 0, err
	}
	lb.logChanges(api.CallerName(ctx), changes)
	return changes, lb.generation, nil
}

// refuseIfRemote: a change of one node would be undone by the next word of a controller.
func (lb *LB) refuseIfRemote() error {
	if lb.remote == nil {
		return nil
	}
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("this load balancer runs by controllers: use `%s`", lb.askControllers()))
}

// askControllers begins commands for whoever keeps the fleet, of a load balancer that runs by them.
func (lb *LB) askControllers() string {
	return "ballast ctl --controller " + strings.Join(lb.options.Controllers, ",")
}

func (lb *LB) refuseWithoutFile() error {
	if lb.remote == nil {
		return nil
	}
	ask := lb.askControllers()
	return api.BadRequest("this load balancer has no configuration file, as it runs by controllers: `%s apply -f FILE --dry-run` tells how the fleet differs from a file, "+
		"`%s history` who changed what", ask, ask)
}

// forget gives up a removed server and its id.
func (lb *LB) forget(ctx context.Context, service, server string) (changes []string, revision uint64, err error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if err := lb.refuseIfRemote(); err != nil {
		return nil, 0, err
	}
	before := lb.node
	if changes, err = lb.node.Forget(service, server); err != nil {
		return nil, 0, connect.NewError(connect.CodeNotFound, err)
	}
	if err := lb.carryOut(before); err != nil {
		return nil, 0, err
	}
	lb.logChanges(api.CallerName(ctx), changes)
	return changes, lb.generation, nil
}

func (lb *LB) configAction(r *http.Request) (any, error) {
	if err := lb.refuseWithoutFile(); err != nil {
		return nil, err
	}
	switch r.PathValue("action") {
	case "reload":
		return configfile.Asked(r, lb.log, lb.Reload)
	case "reset":
		return configfile.Asked(r, lb.log, func(force bool) ([]string, error) { return lb.reset(api.CallerName(r.Context()), force) })
	}
	return nil, api.BadRequest("unknown action %q: use reload or reset", r.PathValue("action"))
}

// resetCounters zeroes what was counted, and nothing that steers packets. A removed server counts as just heard of: its linger
// begins anew, which is the safe side.
func (lb *LB) resetCounters(r *http.Request) (any, error) {
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
	lb.logChanges(api.CallerName(r.Context()), changes)
	return api.Changed{Changes: changes}, nil
}

// What ctl and Prometheus ask on the socket.
package lb

import (
	"fmt"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/lb/report"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/pki"
)

// endpoints are what it answers.
type endpoints struct{ observer }

func (e endpoints) routes() *api.Server {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) { return e.status(), nil })
	s.Handle("GET "+api.PathRunning, func(*http.Request) (any, error) { return e.tables.Now().Running.Clone(), nil })
	s.Handle("GET "+api.PathCounters, func(*http.Request) (any, error) { return report.Counters(e.tables.Now()) })
	s.HandleChange(http.MethodDelete, api.PathCounters, e.resetCounters)
	s.Handle("GET "+api.PathServices, func(*http.Request) (any, error) { return e.services() })
	s.Handle("GET "+api.PathSessions, func(*http.Request) (any, error) { return report.Sessions(e.tables.Now()) })
	s.Handle("GET "+api.PathConfigDiff, func(*http.Request) (any, error) {
		return api.Changed{Changes: e.tables.Now().Differences()}, e.refuseWithoutFile()
	})
	s.HandleChange(http.MethodPost, api.PathConfigAction, e.configAction)
	s.Handle("GET "+api.PathBGP, func(*http.Request) (any, error) {
		if status := e.bgp.Status(); status != nil {
			return status, nil
		}
		return nil, api.BadRequest("node %s has no BGP: give it bgp among the fleet's nodes (docs/run/bgp.md)", e.name)
	})
	s.Handle("GET "+api.PathL2, func(*http.Request) (any, error) {
		if status := e.l2.Status(); status != nil {
			return status, nil
		}
		return nil, api.BadRequest("node %s announces nothing on its segment: give it l2 among the fleet's nodes (docs/run/bgp.md)", e.name)
	})
	s.Handle("GET "+api.PathConnections, e.sweeper.Connections)
	s.Handle("GET "+api.PathSuspects, e.sweeper.ListSuspects)
	s.HandleChange(http.MethodPost, api.PathSuspects, e.sweeper.SetSuspect)
	s.HandleChange(http.MethodDelete, api.PathSuspects, e.sweeper.ClearSuspect)
	s.HandleRaw("GET "+api.PathTrace, e.tracer)
	s.HandleRaw("GET "+api.PathMetrics, e.metricsHandler())
	s.HandleRaw(api.NewFleetHandler(fleetAPI(e)))
	s.Refuse("/"+ballastv1connect.ControllersName+"/", "this is a load balancer: controllers are listed and removed by one of them: ask it (--controller HOST, or --instance NAME on its host)")
	s.Otherwise("this load balancer does not know that command: it is of another version than this ballast")
	return s
}

func (e endpoints) metricsHandler() http.Handler {
	own := []prometheus.Collector{e.sweeper, e.bgp, e.l2, &report.Metrics{
		Tables: e.tables, NoCookie: e.clocks.NoCookie,
		Refused:  func() bool { return e.outcome.Load().config.Error != "" },
		Unsaved:  func() bool { return e.outcome.Load().unsaved != "" },
		Alone:    func() bool { return !e.outcome.Load().alone.IsZero() },
		Revision: func() (uint64, bool) { return e.outcome.Load().revision, e.controllers != nil },
		Devices:  func() (map[string]string, []*net.Interface) { return e.programs.status().modes, e.programs.waiting() },
		Judge:    fleetAPI(e).judge,
	}}
	if e.replication != nil {
		own = append(own, e.controllers, e.replication)
	}
	look := func() listen.Condition {
		now := e.status()
		if now.Config.Error != "" {
			now.Problems = append(now.Problems, now.Config.Error)
		}
		return listen.Condition{Ready: now.Ready, Problems: len(now.Problems), Epoch: e.tables.Now().Running.Keys.Current}
	}
	return listen.Metrics(listen.About{Role: string(pki.LB), Version: e.options.Version, Credentials: e.credentials, Look: look}, own...)
}

func (e endpoints) refuseWithoutFile() error {
	if e.controllers == nil {
		return nil
	}
	ask := e.askControllers()
	return api.BadRequest("this load balancer has no configuration file, as it runs by controllers: `%s apply -f FILE --dry-run` shows how the fleet differs from a file, "+
		"`%s history` who changed what", ask, ask)
}

func (e endpoints) configAction(r *http.Request, dryRun bool) (any, error) {
	if e.controllers != nil && r.PathValue("action") == "reload" {
		return configfile.AskedOfControllers(dryRun, e.controllers)
	}
	if err := e.refuseWithoutFile(); err != nil {
		return nil, err
	}
	switch r.PathValue("action") {
	case "reload":
		return configfile.Asked(r, dryRun, e.log, e.Reload)
	case "reset":
		return configfile.Asked(r, dryRun, e.log, func(how configfile.Taking) (api.Changed, error) { return e.reset(api.CallerName(r.Context()), how) })
	}
	return nil, api.BadRequest("unknown action %q: use reload or reset", r.PathValue("action"))
}

// resetCounters makes removed servers count as just seen: their linger begins again, which is the safe side.
func (e endpoints) resetCounters(r *http.Request, dryRun bool) (any, error) {
	changes := []string{"counters of services and servers: reset"}
	if dryRun {
		return api.Changed{Changes: changes}, nil
	}
	if err := e.tables.ResetCounters(); err != nil {
		return nil, fmt.Errorf("reset counters: %w", err)
	}
	e.logChanges(api.CallerName(r.Context()), changes)
	return api.Changed{Changes: changes}, nil
}

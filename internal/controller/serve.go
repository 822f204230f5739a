// What a controller serves.
package controller

import (
	"net/http"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/controller/fleetapi"
)

// routes is what nodes and ctl are served by mutual TLS.
func (c *controller) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(c.hub.Handler())
	path, fleet := api.NewFleetHandler(c.fleet)
	mux.Handle(path, fleetapi.ForOperators(fleet, api.SourceProcedures...))
	path, controllers := ballastv1connect.NewControllersHandler(c.members, api.WithStrictJSON())
	mux.Handle(path, fleetapi.ForOperators(controllers))
	path, enrolment := ballastv1connect.NewEnrolmentHandler(c.enrolment, api.WithStrictJSON())
	mux.Handle(path, fleetapi.ForOperators(enrolment))
	mux.Handle(c.enrolment.ForNodes())
	mux.Handle(c.leaving.ForNodes())
	return mux
}

// localRoutes is what root is served on this machine.
func (c *controller) localRoutes() *api.Server {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) { return c.report.Status(), nil })
	s.HandleRaw("GET "+api.PathMetrics, c.report.Metrics())
	s.HandleRaw("GET "+api.PathBackup, http.HandlerFunc(c.serveBackup))
	s.HandleRaw(api.NewFleetHandler(c.fleet))
	s.HandleRaw(ballastv1connect.NewControllersHandler(c.members, api.WithStrictJSON()))
	s.HandleRaw(ballastv1connect.NewEnrolmentHandler(c.enrolment, api.WithStrictJSON()))
	s.Otherwise("this is a controller, which sees no packets and has no configuration file: bgp, l2, config, connection, counter, session, suspect and trace are of one load balancer: " +
		"run the command there; `ballast ctl history list` and `apply --dry-run` show what changed and what differs from a file")
	return s
}

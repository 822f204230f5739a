package controller

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Status answers api.PathStatus.
type Status struct {
	api.Status
	Name        string   `json:"name"`
	Revision    uint64   `json:"revision"` // of the desired state that is known here; 0: none is
	Services    int      `json:"services"`
	Leads       int      `json:"leads"` // of these
	Term        uint64   `json:"term"`  // 0: this controller leads nothing
	Controllers []string `json:"controllers"`
	Nodes       int      `json:"nodes"` // load balancers and agents that are connected
}

// routes is what nodes and ctl are served by mutual TLS.
func (c *controller) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(c.hub.Handler())
	path, fleet := api.NewFleetHandler(fleetOf{c})
	mux.Handle(path, forOperators(fleet))
	return mux
}

// forOperators lets people's programs and controllers use the fleet API, and nobody else: a node that was broken into changes nothing.
func forOperators(handler http.Handler) http.Handler {
	errorsTo := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := certified(r)
		if err == nil && who.Role != pki.Ctl && who.Role != pki.Controller {
			err = fmt.Errorf("the certificate of %s is for role %s: the fleet is read and changed with one for role %s", who.Name, who.Role, pki.Ctl)
		}
		if err == nil {
			handler.ServeHTTP(w, r)
			return
		}
		refused := connect.NewError(connect.CodePermissionDenied, err)
		if !errorsTo.IsSupported(r) {
			http.Error(w, refused.Error(), http.StatusForbidden)
			return
		}
		errorsTo.Write(w, r, refused) // the client may have gone
	})
}

// localRoutes is what root is served on this machine.
func (c *controller) localRoutes() *api.Server {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) { return c.status(), nil })
	s.HandleRaw("GET "+api.PathMetrics, c.metrics())
	s.HandleRaw(api.NewFleetHandler(fleetOf{c}))
	return s
}

func (c *controller) status() Status {
	now := c.desired.now()
	c.mutex.Lock()
	leads := c.leads
	c.mutex.Unlock()
	s := Status{
		Status: api.Status{Role: string(pki.Controller), Ready: now != nil, Version: c.options.Version}, Name: c.name, Term: leads.term,
		Controllers: leads.names, Nodes: len(c.hub.Nodes()),
	}
	if now != nil {
		s.Revision, s.Services, s.Generation = now.revision, len(now.services), now.revision
		for name := range now.services {
			if leads.of(c.name, name) {
				s.Leads++
			}
		}
	}
	return s
}

// fleetOf is the desired state, with what is known of the fleet, for api.NewFleetHandler.
type fleetOf struct{ *controller }

func (f fleetOf) Fleet(context.Context) (model.Fleet, uint64, error) { return f.desired.Fleet() }

func (f fleetOf) Change(ctx context.Context, dryRun bool, edit api.Edit) ([]string, uint64, error) {
	return f.desired.Change(ctx, dryRun, edit)
}

func (f fleetOf) Forget(ctx context.Context, service, server string) ([]string, uint64, error) {
	return f.desired.Forget(ctx, service, server)
}

func (f fleetOf) Servers(_ context.Context, service string) ([]*ballastv1.ServerStatus, error) {
	return f.engine.Servers(service), nil
}

// MakesKeys: every node is told them by the controllers.
func (f fleetOf) MakesKeys() bool { return true }

// Nodes lists the controllers by the list that services are divided by, and the nodes that are connected to this one.
func (f fleetOf) Nodes(context.Context) ([]*ballastv1.NodeStatus, error) {
	f.mutex.Lock()
	leads, live := f.leads, slices.Clone(f.live)
	f.mutex.Unlock()
	now := f.desired.now()
	if now == nil {
		return nil, errUnknown
	}
	var nodes []*ballastv1.NodeStatus
	for _, member := range live {
		status := &ballastv1.NodeStatus{Role: string(pki.Controller), Name: member.Name, Address: member.Address, Version: member.Version}
		if member.Name == f.name {
			status.Since, status.Revision = timestamppb.New(f.began), now.revision
			status.Problems = f.credentials.Warnings(time.Now())
		}
		for name := range now.services {
			if leads.of(member.Name, name) {
				status.Services = append(status.Services, name)
			}
		}
		slices.Sort(status.Services)
		nodes = append(nodes, status)
	}
	return append(nodes, f.withHealth(f.hub.Nodes())...), nil
}

// withHealth tells of the nodes of the second tier whether they are healthy, also of those that are not connected.
func (f fleetOf) withHealth(nodes []*ballastv1.NodeStatus) []*ballastv1.NodeStatus {
	for _, s := range f.engine.Servers(model.SecondTierName) {
		at := slices.IndexFunc(nodes, func(n *ballastv1.NodeStatus) bool { return n.Role == string(pki.LB) && n.Name == s.Server.Name })
		if at < 0 {
			at = len(nodes)
			nodes = append(nodes, &ballastv1.NodeStatus{Role: string(pki.LB), Name: s.Server.Name, Problems: []string{"not connected"}})
		}
		nodes[at].Health, nodes[at].HealthDetail = s.Health, s.HealthDetail
	}
	return nodes
}

var (
	servicesMetric = prometheus.NewDesc("ballast_controller_services", "Services of the fleet.", nil, nil)
	leadsMetric    = prometheus.NewDesc("ballast_controller_services_led", "Services that this controller leads.", nil, nil)
	termMetric     = prometheus.NewDesc("ballast_controller_term", "Revision of the list that services are divided by; 0: this controller leads nothing.", nil, nil)
	revisionMetric = prometheus.NewDesc("ballast_controller_revision", "Revision of the desired state that is known here.", nil, nil)
)

// Describe makes a controller a prometheus.Collector.
func (c *controller) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect makes a controller a prometheus.Collector.
func (c *controller) Collect(out chan<- prometheus.Metric) {
	s := c.status()
	gauge := func(desc *prometheus.Desc, value float64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	gauge(servicesMetric, float64(s.Services))
	gauge(leadsMetric, float64(s.Leads))
	gauge(termMetric, float64(s.Term))
	gauge(revisionMetric, float64(s.Revision))
}

func (c *controller) metrics() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c, c.hub)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

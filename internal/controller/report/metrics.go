package report

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/pki"
)

var (
	servicesMetric  = prometheus.NewDesc("ballast_controller_services", "Services of the fleet.", nil, nil)
	leadsMetric     = prometheus.NewDesc("ballast_controller_services_led", "Services that this controller leads.", nil, nil)
	termMetric      = prometheus.NewDesc("ballast_controller_term", "Revision of the list that services are divided by; 0: this controller leads nothing.", nil, nil)
	ringVersion     = prometheus.NewDesc("ballast_controller_ring_version", "Version of the ring of load balancers that keep the replicated table; 0: there is none.", nil, nil)
	ringSynced      = prometheus.NewDesc("ballast_controller_ring_synced_version", "Newest version of the ring whose entries all chains have.", nil, nil)
	ringSize        = prometheus.NewDesc("ballast_controller_ring_load_balancers", "Load balancers on the ring.", nil, nil)
	ringLost        = prometheus.NewDesc("ballast_controller_ring_lost_ranges_total", "Ranges of the ring whose load balancers were all lost at once.", nil, nil)
	serversMetric   = prometheus.NewDesc("ballast_controller_servers", "Servers of all services by their health, removed ones not counted.", []string{"health"}, nil)
	agentlessMetric = prometheus.NewDesc("ballast_controller_servers_without_agent", "Servers that need an agent, and whose agent is not connected to this controller.", nil, nil)
	storeMembers    = prometheus.NewDesc("ballast_controller_store_members", "Members of the store, with --data-dir.", nil, nil)
	storeMajority   = prometheus.NewDesc("ballast_controller_store_majority", "1 while this controller's store reaches a majority of its members; 0: changes are refused.", nil, nil)
	storeBehind     = prometheus.NewDesc("ballast_controller_store_behind_entries", "Entries of the store that are committed and not applied here.", nil, nil)
	storeForged     = prometheus.NewDesc("ballast_controller_store_forged_total", "Requests to this controller's store in another controller's name, refused.", nil, nil)
	sourceAge       = prometheus.NewDesc("ballast_controller_source_age_seconds", "Time since the last good answer of the source that names a service's servers; before the first, since this controller asks.", []string{"service"}, nil)
	sourceFailed    = prometheus.NewDesc("ballast_controller_source_failed", "1 while a service's servers are not, or not all, what its source says.", []string{"service"}, nil)
	revisionMetric  = prometheus.NewDesc("ballast_controller_revision", "Revision of the desired state that is known here.", nil, nil)
)

// Describe makes a reporter a prometheus.Collector.
func (r *Reporter) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(r, out) }

// Collect makes a reporter a prometheus.Collector.
func (r *Reporter) Collect(out chan<- prometheus.Metric) {
	s := r.Status()
	servers := r.o.Engine.Servers("")
	r.o.Engine.MarkAgents(servers, r.o.Hub.Nodes.Agents())
	agentless, byHealth := 0, map[string]int{health.Healthy: 0, health.Unhealthy: 0, health.Unknown: 0, health.Unchecked: 0}
	for i := range servers {
		if servers[i].Removed {
			continue
		}
		byHealth[servers[i].Health]++
		if servers[i].Agent == "none" {
			agentless++
		}
	}
	for is, n := range byHealth {
		out <- prometheus.MustNewConstMetric(serversMetric, prometheus.GaugeValue, float64(n), is)
	}
	gauge := func(desc *prometheus.Desc, value float64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	gauge(servicesMetric, float64(s.Services))
	gauge(leadsMetric, float64(s.Leads))
	gauge(termMetric, float64(s.Term))
	gauge(revisionMetric, float64(s.Revision))
	gauge(agentlessMetric, float64(agentless))
	for _, source := range r.o.Sources.All() {
		out <- prometheus.MustNewConstMetric(sourceAge, prometheus.GaugeValue, source.Age.Seconds(), source.Service)
		out <- prometheus.MustNewConstMetric(sourceFailed, prometheus.GaugeValue, listen.Bool(source.Problem != ""), source.Service)
	}
	if r.o.Store != nil {
		store := r.o.Store.PeerCondition()
		gauge(storeMembers, float64(store.Members))
		gauge(storeMajority, listen.Bool(store.Majority))
		gauge(storeBehind, float64(store.Behind))
		out <- prometheus.MustNewConstMetric(storeForged, prometheus.CounterValue, float64(store.Forged))
	}
	if now := r.o.Mirror.Now(); now != nil {
		gauge(ringVersion, float64(now.Ring.Ring.Version))
		gauge(ringSynced, float64(now.Ring.Ring.Synced))
		gauge(ringSize, float64(len(now.Ring.Current())))
		out <- prometheus.MustNewConstMetric(ringLost, prometheus.CounterValue, float64(now.Ring.Ring.Lost))
	}
}

// Metrics serves Prometheus.
func (r *Reporter) Metrics() http.Handler {
	look := func() listen.Condition {
		now := r.Status()
		return listen.Condition{Ready: now.Ready, Problems: len(now.Problems), Epoch: r.o.Hub.Nodes.Keys().Keys.Current}
	}
	return listen.Metrics(listen.About{Role: string(pki.Controller), Version: r.o.Version, Credentials: r.o.Credentials, Look: look}, r, r.o.Hub, r.o.Refusals)
}

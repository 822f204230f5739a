package kube

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/daemon/listen"
)

var (
	leadingMetric   = prometheus.NewDesc("ballast_kube_leading", "1 on the replica that changes the fleet.", nil, nil)
	servicesMetric  = prometheus.NewDesc("ballast_kube_services", "Services that it keeps in the fleet.", nil, nil)
	refusedMetric   = prometheus.NewDesc("ballast_kube_services_refused", "Services and Gateways that are not in the fleet as they are wanted; their Events say why.", nil, nil)
	gatewaysMetric  = prometheus.NewDesc("ballast_kube_gateways", "Gateways of the class; absent while the API server does not have the Gateway API, or the account may not watch it.", nil, nil)
	routesMetric    = prometheus.NewDesc("ballast_kube_gateway_routes", "Routes attached to listeners of these Gateways.", nil, nil)
	waitingMetric   = prometheus.NewDesc("ballast_kube_gateway_listeners_refused", "Listeners of these Gateways that are not accepted or not programmed; their conditions say why.", nil, nil)
	keptMetric      = prometheus.NewDesc("ballast_kube_services_without_endpoints", "Services that keep their last servers because no endpoint is known.", nil, nil)
	vanishedMetric  = prometheus.NewDesc("ballast_kube_services_vanished", "Services that are kept although the cluster has no Service, or no Gateway, of the class any more, and none was deleted.", nil, nil)
	addressesMetric = prometheus.NewDesc("ballast_kube_pool_addresses", "Addresses of a pool.", []string{"pool"}, nil)
	usedMetric      = prometheus.NewDesc("ballast_kube_pool_addresses_used", "Addresses of a pool that services have, those of other owners included, or hosts.", []string{"pool"}, nil)
	passesMetric    = prometheus.NewDesc("ballast_kube_passes_total", "Comparisons of the cluster with the fleet, by result: done, or failed. Failed ones are repeated.", []string{"result"}, nil)
	doneMetric      = prometheus.NewDesc("ballast_kube_last_pass_timestamp_seconds", "When the fleet and the cluster were last in step; absent before, and on replicas that never led.", nil, nil)
)

// Describe makes a replica a prometheus.Collector.
func (r *replica) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(r, out) }

// Collect makes a replica a prometheus.Collector. Only the replica that leads knows of services and pools.
func (r *replica) Collect(out chan<- prometheus.Metric) {
	now := r.now()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	gauge(leadingMetric, listen.Bool(now.leads))
	out <- prometheus.MustNewConstMetric(passesMetric, prometheus.CounterValue, float64(now.passes-now.failures), "done")
	out <- prometheus.MustNewConstMetric(passesMetric, prometheus.CounterValue, float64(now.failures), "failed")
	if !now.done.IsZero() {
		gauge(doneMetric, float64(now.done.Unix()))
	}
	if !now.leads {
		return
	}
	gauge(servicesMetric, float64(len(now.last.Services)))
	gauge(refusedMetric, float64(now.last.Refused+now.refused))
	if r.cluster.gateways.known() {
		routes, refused := now.last.Attached()
		gauge(gatewaysMetric, float64(len(now.last.Gateways)))
		gauge(routesMetric, float64(routes))
		gauge(waitingMetric, float64(refused))
	}
	gauge(keptMetric, float64(len(now.last.Kept)))
	gauge(vanishedMetric, float64(len(now.last.Vanished)))
	for _, pool := range now.last.Pools {
		gauge(addressesMetric, pool.Addresses, pool.Name)
		gauge(usedMetric, float64(pool.Used), pool.Name)
	}
}

// metrics serves Prometheus.
func (r *replica) metrics() http.Handler {
	look := func() listen.Condition {
		problems := r.unready()
		return listen.Condition{Ready: len(problems) == 0, Problems: len(problems)}
	}
	return listen.Metrics(listen.About{Role: "kube", Version: r.Version, Credentials: r.Credentials, Look: look}, r)
}

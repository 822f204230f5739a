// What an agent counts, for Prometheus.
package agent

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ballast-lb/ballast/internal/linux/server"
)

var (
	packetsMetric = prometheus.NewDesc("ballast_agent_packets_total", "Packets by verdict of the server's programs.", []string{"verdict"}, nil)
	bytesMetric   = prometheus.NewDesc("ballast_agent_bytes_total", "Bytes of frames by verdict of the server's programs.", []string{"verdict"}, nil)
)

// collector reads the maps when Prometheus asks.
type collector struct {
	path *server.Server
	keys *keyReporter
}

func (c collector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

func (c collector) Collect(out chan<- prometheus.Metric) {
	traffic, err := c.path.Counters()
	if err != nil {
		out <- prometheus.NewInvalidMetric(packetsMetric, err)
		return
	}
	for verdict, t := range traffic {
		out <- prometheus.MustNewConstMetric(packetsMetric, prometheus.CounterValue, float64(t.Packets), verdict)
		out <- prometheus.MustNewConstMetric(bytesMetric, prometheus.CounterValue, float64(t.Bytes), verdict)
	}
	c.keys.collect(out)
}

func metricsHandler(path *server.Server, keys *keyReporter) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{path, keys})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

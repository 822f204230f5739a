// What an agent counts, for Prometheus.
package agent

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/devices"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/pki"
)

var (
	packetsMetric = prometheus.NewDesc("ballast_agent_packets_total", "Packets by verdict of the server's programs.", []string{"verdict"}, nil)
	loadMetric    = prometheus.NewDesc("ballast_agent_acceptance_load", "This server's load, by which it accepts connections of a service with dispatch choices (not with accept by backlog).", []string{"service"}, nil)
	limitMetric   = prometheus.NewDesc("ballast_agent_acceptance_limit", "Load above which the server passes connections on to another candidate.", []string{"service"}, nil)
	revision      = prometheus.NewDesc("ballast_agent_revision", "Revision of the controllers' state in use; 0: none yet. Agents get only changes that concern them.", nil, nil)
	bytesMetric   = prometheus.NewDesc("ballast_agent_bytes_total", "Bytes of frames by verdict of the server's programs.", []string{"verdict"}, nil)
)

// collector reads the maps when Prometheus asks.
type collector struct {
	path    *server.Server
	accepts *acceptor
	keys    *keyReporter
	serving func() api.AgentStatus
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
	c.accepts.collect(out)
	c.keys.collect(out)
	now := c.serving()
	out <- prometheus.MustNewConstMetric(configfile.Refused, prometheus.GaugeValue, listen.Bool(now.Config.Error != ""))
	if now.ByControllers {
		out <- prometheus.MustNewConstMetric(revision, prometheus.GaugeValue, float64(now.Revision))
	}
	devices.Collect(out, now.Interfaces, nil)
}

func (d *daemon) metricsHandler() http.Handler {
	own := []prometheus.Collector{collector{d.path, d.accepts, d.keys, d.serving}}
	if d.client != nil {
		own = append(own, d.client)
	}
	look := func() listen.Condition {
		now := d.condition()
		return listen.Condition{Ready: now.Ready, Problems: len(now.Problems), Epoch: d.keys.keys.Load().Current}
	}
	return listen.Metrics(listen.About{Role: string(pki.Agent), Version: d.options.Version, Credentials: d.credentials, Look: look}, own...)
}

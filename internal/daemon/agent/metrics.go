// What an agent counts, for Prometheus.
package agent

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/agent/acceptance"
	"github.com/ballast-lb/ballast/internal/daemon/agent/gateways"
	"github.com/ballast-lb/ballast/internal/daemon/agent/keys"
	"github.com/ballast-lb/ballast/internal/daemon/agent/translations"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/devices"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/pki"
)

var (
	packetsMetric = prometheus.NewDesc("ballast_agent_packets_total", "Packets by verdict of the server's programs.", []string{"verdict"}, nil)
	revision      = prometheus.NewDesc("ballast_agent_revision", "Revision of the controllers' state in use; 0: none yet. Agents get only changes that concern them.", nil, nil)
	bytesMetric   = prometheus.NewDesc("ballast_agent_bytes_total", "Bytes of frames by verdict of the server's programs.", []string{"verdict"}, nil)
)

// collector reads the maps when Prometheus asks.
type collector struct {
	path       *server.Server
	accepts    *acceptance.Loads
	keys       *keys.Reporter
	gateways   *gateways.Gateways
	translated *translations.Monitor
	serving    func() api.AgentStatus
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
	c.accepts.Collect(out)
	c.keys.Collect(out)
	c.gateways.Collect(out)
	c.translated.Collect(out)
	now := c.serving()
	out <- prometheus.MustNewConstMetric(configfile.Refused, prometheus.GaugeValue, listen.Bool(now.Config.Error != ""))
	if now.ByControllers {
		out <- prometheus.MustNewConstMetric(revision, prometheus.GaugeValue, float64(now.Revision))
	}
	devices.Collect(out, now.Interfaces, nil)
}

func (p reports) metricsHandler() http.Handler {
	own := []prometheus.Collector{collector{p.path, p.accepts, p.keys, p.gateways, p.translated, p.serving}}
	if p.client != nil {
		own = append(own, p.client)
	}
	condition := func() listen.Condition {
		now := p.condition()
		return listen.Condition{Ready: now.Ready, Problems: len(now.Problems), Epoch: p.keys.Current()}
	}
	return listen.Metrics(listen.About{Role: string(pki.Agent), Version: p.options.Version, Credentials: p.credentials, Look: condition}, own...)
}

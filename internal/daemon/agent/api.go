package agent

import (
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/nodeclient"
)

func (a *agent) routes() *api.Server {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) {
		status := a.status()
		a.mu.Lock()
		defer a.mu.Unlock()
		status.Problems = append(status.Problems, a.unmeasured...) // controllers have them from the report of load
		return status, nil
	})
	s.Handle("GET "+api.PathRunning, func(*http.Request) (any, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.applied.Fleet.Clone(), nil
	})
	s.Handle("GET "+api.PathCounters, func(*http.Request) (any, error) { return a.counters() })
	s.Handle("POST "+api.PathConfigAction, func(r *http.Request) (any, error) {
		if a.options.Config == "" || r.PathValue("action") != "reload" {
			return nil, api.BadRequest("this is an agent: what can be asked of it is `ballast ctl config reload`, if it runs by a file")
		}
		return configfile.Reload(r, a.log, a.Reload)
	})
	s.HandleRaw("GET "+api.PathMetrics, a.metricsHandler())
	s.Otherwise("this is an agent: `ballast ctl` status, counters, metrics and config reload work here; the rest is asked at a load balancer, or with --controller")
	return s
}

func (a *agent) status() api.AgentStatus {
	keys, connections, err := a.echoes()
	a.mu.Lock()
	defer a.mu.Unlock()
	stops := a.obstacles()
	status := api.AgentStatus{
		Status: api.Status{Role: "agent", Ready: len(stops) == 0, NotReady: stops, Version: a.options.Version, ByControllers: a.options.Config == "", Config: a.file, Generation: a.generation},
		Server: a.options.Server, Services: slices.Clone(a.wanted.Marking), Interfaces: a.attachments.Modes(), Tunnels: a.tunnelStatus(time.Now()), Problems: a.wrong(),
	}
	status.Epoch, status.Echoes = keys.Current, connections
	if a.client != nil {
		status.Revision, status.Controllers = a.revision, a.client.Connected()
		if len(status.Controllers) == 0 {
			status.Problems = append(status.Problems, a.alone())
		}
	}
	if err != nil {
		status.Problems = append(status.Problems, err.Error())
	}
	return status
}

// alone is what it means that nobody is connected. Callers hold mu.
func (a *agent) alone() string {
	switch {
	case a.options.Config != "":
		return "nobody is connected that this host's load is reported to"
	case a.stateKnown:
		return nodeclient.NoController + ": the last state goes on"
	}
	return nodeclient.NoController
}

// wrong is what is not as wanted. Callers hold mu.
func (a *agent) wrong() []string {
	found := slices.Clone(a.obstacles())
	if down, all := a.attachments.Down(); !all {
		found = append(found, down...)
	}
	if a.left && a.serves > 0 {
		found = append(found, "only connections of before go on: "+a.unnamed())
	}
	if a.kept.Unsaved() != "" {
		found = append(found, a.kept.Unsaved())
	}
	if a.credentials != nil {
		found = append(found, a.credentials.Warnings(time.Now())...)
	}
	if problem := a.strangerProblem(time.Now()); problem != "" {
		found = append(found, problem)
	}
	return found
}

func (a *agent) counters() (api.Counters, error) {
	traffic, err := a.path.Counters()
	out := api.Counters{Counters: make(map[string]uint64, len(traffic))}
	for name, t := range traffic {
		out.Counters[name] = t.Packets
	}
	return out, err
}

var (
	packetsMetric = prometheus.NewDesc("ballast_agent_packets_total", "Packets by verdict of the server's programs.", []string{"verdict"}, nil)
	bytesMetric   = prometheus.NewDesc("ballast_agent_bytes_total", "Bytes of frames by verdict of the server's programs.", []string{"verdict"}, nil)
)

// collector reads the maps when Prometheus asks.
type collector struct{ agent *agent }

func (c collector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

func (c collector) Collect(out chan<- prometheus.Metric) {
	traffic, err := c.agent.path.Counters()
	if err != nil {
		out <- prometheus.NewInvalidMetric(packetsMetric, err)
		return
	}
	for verdict, t := range traffic {
		out <- prometheus.MustNewConstMetric(packetsMetric, prometheus.CounterValue, float64(t.Packets), verdict)
		out <- prometheus.MustNewConstMetric(bytesMetric, prometheus.CounterValue, float64(t.Bytes), verdict)
	}
	c.agent.collectKeys(out)
}

func (a *agent) metricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{a})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

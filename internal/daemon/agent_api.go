package daemon

import (
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ballast-lb/ballast/internal/api"
)

func (a *Agent) routes() *api.Server {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) { return a.status(), nil })
	s.Handle("GET "+api.PathCounters, func(*http.Request) (any, error) { return a.counters() })
	s.HandleRaw("GET "+api.PathMetrics, a.metricsHandler())
	return s
}

func (a *Agent) status() api.AgentStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	status := api.AgentStatus{
		Status:   api.Status{Role: "agent", Ready: a.ready, Version: a.options.Version, Config: a.file, Generation: a.generation},
		Services: slices.Clone(a.wanted.Marking), Interfaces: map[string]string{}, Problems: slices.Clone(a.problems),
	}
	for name, device := range a.attached {
		status.Interfaces[name] = string(device.mode)
	}
	return status
}

func (a *Agent) counters() (api.Counters, error) {
	traffic, err := a.path.Counters()
	out := api.Counters{Counters: make(map[string]uint64, len(traffic))}
	for name, t := range traffic {
		out.Counters[name] = t.Packets
	}
	return out, err
}

var (
	agentPackets = prometheus.NewDesc("ballast_agent_packets_total", "Packets by verdict of the server's programs.", []string{"verdict"}, nil)
	agentBytes   = prometheus.NewDesc("ballast_agent_bytes_total", "Bytes of frames by verdict of the server's programs.", []string{"verdict"}, nil)
)

// agentCollector reads the maps when Prometheus asks.
type agentCollector struct{ agent *Agent }

func (c agentCollector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

func (c agentCollector) Collect(out chan<- prometheus.Metric) {
	traffic, err := c.agent.path.Counters()
	if err != nil {
		out <- prometheus.NewInvalidMetric(agentPackets, err)
		return
	}
	for verdict, t := range traffic {
		out <- prometheus.MustNewConstMetric(agentPackets, prometheus.CounterValue, float64(t.Packets), verdict)
		out <- prometheus.MustNewConstMetric(agentBytes, prometheus.CounterValue, float64(t.Bytes), verdict)
	}
}

func (a *Agent) metricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(agentCollector{a})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

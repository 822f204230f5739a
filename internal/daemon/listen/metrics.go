package listen

import (
	"net/http"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// liveHeap is what the last collection of garbage has left. All other figures of memory also count garbage, which may be more than that.
var liveHeap = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/gc/heap/live:bytes$`)}

// Metrics answers Prometheus with a daemon's own metrics and those that it has as a process and as a program in Go.
func Metrics(own ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(liveHeap)))
	registry.MustRegister(own...)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

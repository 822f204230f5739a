package listen

import (
	"net/http"
	"regexp"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ballast-lb/ballast/internal/pki"
)

// liveHeap is what the last collection of garbage has left. All other figures of memory also count garbage, which may be more than that.
var liveHeap = collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/gc/heap/live:bytes$`)}

// About is what every daemon tells Prometheus of itself.
type About struct {
	Role, Version string
	Credentials   *pki.Credentials // nil: it has none
	Look          func() Condition
}

// Condition is how a daemon is now.
type Condition struct {
	Ready    bool
	Problems int
	Epoch    uint32 // of the key that it writes cookies with, or has others write; 0: it knows none
}

var (
	buildInfoMetric   = prometheus.NewDesc("ballast_build_info", "1. Labels: the daemon's role (lb, agent, controller), its version, and that of Go.", []string{"role", "version", "goversion"}, nil)
	readyMetric       = prometheus.NewDesc("ballast_ready", "1 while /healthz answers 200.", nil, nil)
	problemsMetric    = prometheus.NewDesc("ballast_problems", "Number of problems in the daemon's status.", nil, nil)
	keyEpochMetric    = prometheus.NewDesc("ballast_key_epoch", "Epoch of the key that cookies are written with; absent without a key.", nil, nil)
	revokedMetric     = prometheus.NewDesc("ballast_certificates_revoked", "Entries of the list of revoked certificates, as the daemon knows it: equal on all daemons.", nil, nil)
	refusedMetric     = prometheus.NewDesc("ballast_certificates_refused_total", "Handshakes and requests refused, and connections cut, because the peer's certificate is revoked. If it grows, one is in use.", nil, nil)
	certificateMetric = prometheus.NewDesc("ballast_certificate_expiry_timestamp_seconds", "When a certificate expires: the daemon's own, or that of its authority.", []string{"certificate"}, nil)
)

// Describe is of prometheus.Collector.
func (a About) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{buildInfoMetric, readyMetric, problemsMetric, keyEpochMetric, certificateMetric, revokedMetric, refusedMetric} {
		out <- desc
	}
}

// Collect is of prometheus.Collector.
func (a About) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	now := a.Look()
	gauge(buildInfoMetric, 1, a.Role, a.Version, runtime.Version())
	gauge(readyMetric, Bool(now.Ready))
	gauge(problemsMetric, float64(now.Problems))
	if now.Epoch != 0 {
		gauge(keyEpochMetric, float64(now.Epoch))
	}
	if a.Credentials != nil {
		own, authority := a.Credentials.Ends()
		seconds := func(t time.Time) float64 { return float64(t.Unix()) }
		gauge(certificateMetric, seconds(own), "own")
		gauge(certificateMetric, seconds(authority), "authority")
		entries, refused := a.Credentials.RevokedCount()
		gauge(revokedMetric, float64(entries))
		out <- prometheus.MustNewConstMetric(refusedMetric, prometheus.CounterValue, float64(refused))
	}
}

// Bool is 1 for true.
func Bool(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Metrics answers Prometheus with a daemon's own metrics, what all daemons tell, and what they have as a process and as a program in Go.
func Metrics(about About, own ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(liveHeap)), about)
	registry.MustRegister(own...)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

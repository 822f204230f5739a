package nodeclient

import "github.com/prometheus/client_golang/prometheus"

var (
	connectedMetric  = prometheus.NewDesc("ballast_controllers_connected", "Controllers that the node has a stream to.", nil, nil)
	configuredMetric = prometheus.NewDesc("ballast_controllers_configured", "Controllers in --controller.", nil, nil)
)

// Describe makes Streams a prometheus.Collector.
func (s *Streams) Describe(out chan<- *prometheus.Desc) {
	out <- connectedMetric
	out <- configuredMetric
}

// Collect makes Streams a prometheus.Collector.
func (s *Streams) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.MustNewConstMetric(connectedMetric, prometheus.GaugeValue, float64(len(s.Connected())))
	out <- prometheus.MustNewConstMetric(configuredMetric, prometheus.GaugeValue, float64(len(s.options.Controllers)))
}

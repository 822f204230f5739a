package hub

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/pki"
)

// metrics count what goes over the streams.
type metrics struct {
	refused   *prometheus.CounterVec
	messages  *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	coalesced *prometheus.CounterVec
}

func counter(name, help, label string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
}

func newMetrics() metrics {
	m := metrics{
		refused:   counter("ballast_control_refused_total", "Streams that were refused or cut.", "reason"),
		messages:  counter("ballast_control_messages_total", "Messages of streams.", "direction"),
		bytes:     counter("ballast_control_bytes_total", "Bytes of messages of streams, before encryption.", "direction"),
		coalesced: counter("ballast_control_coalesced_total", "Updates that took the place of one that still waited for its peer.", "kind"),
	}
	for _, direction := range []string{"sent", "received"} { // there from the beginning: rates are wrong of what appears at 1
		m.messages.WithLabelValues(direction)
		m.bytes.WithLabelValues(direction)
	}
	return m
}

func (m *metrics) vectors() []*prometheus.CounterVec {
	return []*prometheus.CounterVec{m.refused, m.messages, m.bytes, m.coalesced}
}

func (m *metrics) sent(bytes int) {
	m.messages.WithLabelValues("sent").Inc()
	m.bytes.WithLabelValues("sent").Add(float64(bytes))
}

func (m *metrics) received(bytes int64) {
	m.messages.WithLabelValues("received").Inc()
	m.bytes.WithLabelValues("received").Add(float64(bytes))
}

// coalesce counts updates that took the place of one that waited. A kind has no series before its first.
func (m *metrics) coalesce(kind string, updates int) {
	if updates > 0 {
		m.coalesced.WithLabelValues(kind).Add(float64(updates))
	}
}

var (
	peersMetric     = prometheus.NewDesc("ballast_control_peers", "Connected load balancers and agents.", []string{"role"}, nil)
	notReadyMetric  = prometheus.NewDesc("ballast_control_peers_not_ready", "Connected load balancers and agents that are not ready, or have not reported it yet.", []string{"role"}, nil)
	troubledMetric  = prometheus.NewDesc("ballast_control_peers_with_problems", "Connected load balancers and agents with problems.", []string{"role"}, nil)
	lostNodesMetric = prometheus.NewDesc("ballast_control_peers_lost", "Load balancers and agents that were connected within a day, and are not.", []string{"role"}, nil)
	behindMetric    = prometheus.NewDesc("ballast_control_behind_seconds", "Longest time for which a connected load balancer has applied nothing of what it was sent; 0: none is behind.", nil, nil)
)

// Describe makes a Hub a prometheus.Collector.
func (h *Hub) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{peersMetric, notReadyMetric, troubledMetric, lostNodesMetric, behindMetric, echoesMetric, reportMetric} {
		out <- desc
	}
	for _, vector := range h.metrics.vectors() {
		vector.Describe(out)
	}
}

// Collect makes a Hub a prometheus.Collector.
func (h *Hub) Collect(out chan<- prometheus.Metric) {
	connected, notReady, troubled, lost := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	for _, n := range h.Nodes.List() {
		connected[n.Role]++
		if n.Ready != "yes" {
			notReady[n.Role]++
		}
		if len(n.Problems) > 0 {
			troubled[n.Role]++
		}
	}
	for _, n := range h.Nodes.Lost() {
		lost[n.Role]++
	}
	for _, role := range []string{string(pki.LB), string(pki.Agent)} {
		for desc, count := range map[*prometheus.Desc]map[string]int{peersMetric: connected, notReadyMetric: notReady, troubledMetric: troubled, lostNodesMetric: lost} {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(count[role]), role)
		}
	}
	out <- prometheus.MustNewConstMetric(behindMetric, prometheus.GaugeValue, h.Nodes.longestLag(time.Now()).Seconds())
	h.Nodes.collectKeys(out)
	for _, vector := range h.metrics.vectors() {
		vector.Collect(out)
	}
}

// countedBody counts what is read of a request.
type countedBody struct {
	io.ReadCloser
	read *atomic.Int64
}

func (b *countedBody) Read(into []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(into)
	b.read.Add(int64(n))
	return n, err
}

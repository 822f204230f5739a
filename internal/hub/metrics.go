package hub

import (
	"io"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/pki"
)

// metrics count what goes over the streams.
type metrics struct {
	peers     *prometheus.Desc
	refused   *prometheus.CounterVec
	messages  *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	coalesced *prometheus.CounterVec
}

func newMetrics() metrics {
	counter := func(name, help string, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ballast_control_" + name, Help: help}, []string{label})
	}
	m := metrics{
		peers:     prometheus.NewDesc("ballast_control_peers", "Nodes that are connected.", []string{"role"}, nil),
		refused:   counter("refused_total", "Streams that were refused or cut.", "reason"),
		messages:  counter("messages_total", "Messages of streams.", "direction"),
		bytes:     counter("bytes_total", "Bytes of messages of streams, before encryption.", "direction"),
		coalesced: counter("coalesced_total", "Updates that took the place of one that still waited for its peer.", "kind"),
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

// Describe makes a Hub a prometheus.Collector.
func (h *Hub) Describe(out chan<- *prometheus.Desc) {
	out <- h.metrics.peers
	out <- echoesMetric
	out <- reportMetric
	for _, vector := range h.metrics.vectors() {
		vector.Describe(out)
	}
}

// Collect makes a Hub a prometheus.Collector.
func (h *Hub) Collect(out chan<- prometheus.Metric) {
	count := map[pki.Role]int{}
	h.mutex.Lock()
	for key := range h.peers {
		count[key.role]++
	}
	h.mutex.Unlock()
	for _, role := range []pki.Role{pki.LB, pki.Agent} {
		out <- prometheus.MustNewConstMetric(h.metrics.peers, prometheus.GaugeValue, float64(count[role]), string(role))
	}
	h.collectKeys(out)
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

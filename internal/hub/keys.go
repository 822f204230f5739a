package hub

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/pki"
)

// reportedEpochs bounds what is kept of an agent's report: it has two keys, and what is older is one number.
const reportedEpochs = 4

// takeKeys keeps what an agent says of keys. What makes no sense is cut short.
func (h *Hub) takeKeys(p *peer, told *ballastv1.KeyReport) {
	report := &ballastv1.KeyReport{Epochs: slices.Clone(told.Epochs[:min(len(told.Epochs), reportedEpochs)]), Current: told.Current,
		Connections: map[uint32]uint64{}, Fingerprints: map[uint32][]byte{}, Placement: told.Placement[:min(len(told.Placement), rotation.FingerprintSize)],
		Tickets: takeTickets(told), OwnTickets: told.OwnTickets}
	for _, epoch := range slices.Sorted(maps.Keys(told.Connections))[:min(len(told.Connections), reportedEpochs)] {
		report.Connections[epoch] = told.Connections[epoch]
	}
	for _, epoch := range report.Epochs {
		if print := told.Fingerprints[epoch]; len(print) == rotation.FingerprintSize {
			report.Fingerprints[epoch] = print
		}
	}
	if told.Unavailable != "" {
		report.Unavailable = problemsOf([]string{told.Unavailable})[0]
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	p.report, p.reported = report, time.Now()
}

// KeyNodes tells what is known of nodes' keys.
func (h *Hub) KeyNodes() *rotation.Nodes {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	nodes := &rotation.Nodes{Keys: h.keys}
	for _, p := range h.peers {
		n := rotation.Node{Agent: p.identity.Role == pki.Agent, Name: p.identity.Name, Addresses: p.identity.Addresses, HasKeys: h.hasKeys(p), Contested: p.contested()}
		if r := p.report; r != nil {
			n.Report = &rotation.Report{Age: time.Since(p.reported), Epochs: r.Epochs, Current: r.Current, Connections: r.Connections, Unavailable: r.Unavailable,
				Fingerprints: r.Fingerprints, Placement: r.Placement, Tickets: r.Tickets, OwnTickets: r.OwnTickets}
		}
		nodes.List = append(nodes.List, n)
	}
	h.lost.expire()
	for key := range h.lost.nodes {
		nodes.Lost = append(nodes.Lost, rotation.Node{Agent: key.role == pki.Agent, Name: key.name})
	}
	slices.SortFunc(nodes.List, rotation.Compare)
	slices.SortFunc(nodes.Lost, rotation.Compare)
	return nodes
}

var (
	echoesMetric = prometheus.NewDesc("ballast_control_key_connections",
		"Connections by the epoch of the key whose cookie their client echoed last, of all connected agents; 0: a dropped key.", []string{"epoch"}, nil)
	reportMetric = prometheus.NewDesc("ballast_control_key_report_age_seconds", "Age of the oldest report of connections by key epoch.", nil, nil)
)

// collectKeys tells how far a rotation is.
func (h *Hub) collectKeys(out chan<- prometheus.Metric) {
	nodes := h.KeyNodes()
	for _, epoch := range append(nodes.Keys.Epochs(), 0) {
		out <- prometheus.MustNewConstMetric(echoesMetric, prometheus.GaugeValue, float64(nodes.Connections(epoch)), strconv.FormatUint(uint64(epoch), 10))
	}
	if age, ok := nodes.OldestReport(); ok {
		out <- prometheus.MustNewConstMetric(reportMetric, prometheus.GaugeValue, age.Seconds())
	}
}

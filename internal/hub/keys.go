// What agents report of keys.
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

// recordKeys takes what an agent reports of keys. What makes no sense is cut short.
func (n *Nodes) recordKeys(p *peer, reported *ballastv1.KeyReport) {
	report := &ballastv1.KeyReport{Epochs: slices.Clone(reported.Epochs[:min(len(reported.Epochs), reportedEpochs)]), Current: reported.Current,
		Connections: map[uint32]uint64{}, Fingerprints: map[uint32][]byte{}, Placement: reported.Placement[:min(len(reported.Placement), rotation.FingerprintSize)],
		Tickets: ticketFingerprints(reported), OwnTickets: reported.OwnTickets}
	for _, epoch := range slices.Sorted(maps.Keys(reported.Connections))[:min(len(reported.Connections), reportedEpochs)] {
		report.Connections[epoch] = reported.Connections[epoch]
	}
	for _, epoch := range report.Epochs {
		if print := reported.Fingerprints[epoch]; len(print) == rotation.FingerprintSize {
			report.Fingerprints[epoch] = print
		}
	}
	if reported.Unavailable != "" {
		report.Unavailable = problemsOf([]string{reported.Unavailable})[0]
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	p.keys, p.keysAt = report, time.Now()
}

// Keys returns what is known of nodes' keys.
func (n *Nodes) Keys() *rotation.Nodes {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	keys, standings := n.topics.standings(time.Now())
	nodes := &rotation.Nodes{Keys: keys}
	for _, p := range n.peers {
		node := rotation.Node{Agent: p.isAgent(), Name: p.identity.Name, Addresses: p.identity.Addresses,
			HasKeys: standings[&p.subscriber].hasKeys, Contested: p.contested()}
		if r := p.keys; r != nil {
			node.Report = &rotation.Report{Age: time.Since(p.keysAt), Epochs: r.Epochs, Current: r.Current, Connections: r.Connections, Unavailable: r.Unavailable,
				Fingerprints: r.Fingerprints, Placement: r.Placement, Tickets: r.Tickets, OwnTickets: r.OwnTickets}
		}
		nodes.List = append(nodes.List, node)
	}
	n.lost.expire()
	for key := range n.lost.nodes {
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

// collectKeys exports how far a rotation is.
func (n *Nodes) collectKeys(out chan<- prometheus.Metric) {
	nodes := n.Keys()
	for _, epoch := range append(nodes.Keys.Epochs(), 0) {
		out <- prometheus.MustNewConstMetric(echoesMetric, prometheus.GaugeValue, float64(nodes.Connections(epoch)), strconv.FormatUint(uint64(epoch), 10))
	}
	if age, ok := nodes.OldestReport(); ok {
		out <- prometheus.MustNewConstMetric(reportMetric, prometheus.GaugeValue, age.Seconds())
	}
}

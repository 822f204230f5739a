// Prometheus metrics of services, servers and nodes. The maps are read at each scrape.
package report

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/plan"
)

var (
	packetsMetric = prometheus.NewDesc("ballast_packets_total", "Packets by service and verdict.", []string{"service", "verdict"}, nil)
	bytesMetric   = prometheus.NewDesc("ballast_bytes_total", "Bytes of IP packets by service and verdict.", []string{"service", "verdict"}, nil)
	serverPackets = prometheus.NewDesc("ballast_server_packets_total", "Packets sent to a server.", []string{"service", "server", "id"}, nil)
	serverBytes   = prometheus.NewDesc("ballast_server_bytes_total", "Bytes of IP packets sent to a server.", []string{"service", "server", "id"}, nil)
	serverNew     = prometheus.NewDesc("ballast_server_connections_total", "Connections dispatched to a server.", []string{"service", "server", "id"}, nil)
	serverState   = prometheus.NewDesc("ballast_server_state", "1 for the state that a server is in.", []string{"service", "server", "id", "state"}, nil)
	sessionHellos = prometheus.NewDesc("ballast_session_hellos_total", "First packets with data of connections of a service with session tls, by what they showed.", []string{"service", "outcome"}, nil)
	nodePackets   = prometheus.NewDesc("ballast_node_packets_total", "Packets sent to a node of the second tier.", []string{"service", "node", "id"}, nil)
	nodeBytes     = prometheus.NewDesc("ballast_node_bytes_total", "Bytes of IP packets sent to a node of the second tier.", []string{"service", "node", "id"}, nil)
	nodeNew       = prometheus.NewDesc("ballast_node_connections_total", "Connections dispatched to a node of the second tier.", []string{"service", "node", "id"}, nil)
	nodeHealthy   = prometheus.NewDesc("ballast_node_healthy", "1: a node of the second tier gets packets; 0: it is unhealthy.", []string{"node", "id"}, nil)
	generation    = prometheus.NewDesc("ballast_generation", "Changes applied to the data path since the daemon started.", nil, nil)
	pathErrors    = prometheus.NewDesc("ballast_path_errors_total", "ICMP errors that say that the way to a server is narrower than its route, by what became of them.", []string{"outcome"}, nil)
	stateUnsaved  = prometheus.NewDesc("ballast_state_unsaved", "1 while the state file cannot be written: a restart would know an older state.", nil, nil)
)

// Metrics is a prometheus.Collector.
type Metrics struct {
	Tables   *dataplane.Tables
	NoCookie NoCookie
	Refused  func() bool // the configuration
	Unsaved  func() bool // the state
}

// Describe is of prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, out) }

// Collect is of prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	now := m.Tables.Now()
	services, err := Services(now, m.NoCookie)
	if err == nil {
		var none api.ServiceStatus // what belongs to no service
		none.Verdicts, err = now.Verdicts(plan.Place{})
		services = append(services, none)
	}
	sessions, lost := Sessions(now)
	if err = errors.Join(err, lost); err != nil {
		out <- prometheus.NewInvalidMetric(packetsMetric, err)
		return
	}
	for i := range sessions {
		for outcome, hellos := range sessions[i].Hellos {
			counter(out, sessionHellos, hellos, sessions[i].Service, outcome)
		}
	}
	for i := range services {
		collectService(out, &services[i])
	}
	counter(out, generation, now.Generation)
	for outcome, errors := range m.Tables.Outcomes() {
		counter(out, pathErrors, errors, outcome)
	}
	gauge(out, configfile.Refused, boolGauge(m.Refused()))
	gauge(out, stateUnsaved, boolGauge(m.Unsaved()))
	tier := now.Tier()
	for _, node := range tier.Second {
		gauge(out, nodeHealthy, boolGauge(!tier.Down[node.ID]), node.Name, strconv.Itoa(int(node.ID)))
	}
}

func collectService(out chan<- prometheus.Metric, s *api.ServiceStatus) {
	for verdict, traffic := range s.Verdicts {
		counter(out, packetsMetric, traffic.Packets, s.Name, verdict)
		counter(out, bytesMetric, traffic.Bytes, s.Name, verdict)
	}
	for _, node := range s.Nodes {
		id := strconv.Itoa(int(node.ID))
		counter(out, nodePackets, node.Packets, s.Name, node.Name, id)
		counter(out, nodeBytes, node.Bytes, s.Name, node.Name, id)
		counter(out, nodeNew, node.Connections, s.Name, node.Name, id)
	}
	for _, server := range s.Servers {
		// A removed server's name may have been given to another one, its id not.
		id := strconv.Itoa(int(server.ID))
		counter(out, serverPackets, server.Packets, s.Name, server.Name, id)
		counter(out, serverBytes, server.Bytes, s.Name, server.Name, id)
		counter(out, serverNew, server.Connections, s.Name, server.Name, id)
		state := server.State.String()
		if server.Removed {
			state = "removed"
		}
		gauge(out, serverState, 1, s.Name, server.Name, id, state)
	}
}

func counter(out chan<- prometheus.Metric, desc *prometheus.Desc, value uint64, labels ...string) {
	out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
}

func gauge(out chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// boolGauge returns 1 for true.
func boolGauge(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

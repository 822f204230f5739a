// Prometheus metrics of services, servers and nodes. The maps are read at each scrape.
package report

import (
	"errors"
	"net"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ballast-lb/ballast/internal/algo/slowstart"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/devices"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

var (
	packetsMetric = prometheus.NewDesc("ballast_packets_total", "Packets by service and verdict.", []string{"service", "verdict"}, nil)
	bytesMetric   = prometheus.NewDesc("ballast_bytes_total", "Bytes of IP packets by service and verdict.", []string{"service", "verdict"}, nil)
	serverPackets = prometheus.NewDesc("ballast_server_packets_total", "Packets sent to a server.", []string{"service", "server", "id"}, nil)
	serverBytes   = prometheus.NewDesc("ballast_server_bytes_total", "Bytes of IP packets sent to a server.", []string{"service", "server", "id"}, nil)
	serverNew     = prometheus.NewDesc("ballast_server_connections_total", "Connections dispatched to a server by this load balancer.", []string{"service", "server", "id"}, nil)
	serverState   = prometheus.NewDesc("ballast_server_state", "1 for the state that a server is in: active, draining, off or removed.", []string{"service", "server", "id", "state"}, nil)
	searchesTotal = prometheus.NewDesc("ballast_timestamp_searches_total", "Packets whose TCP options match none of the usual patterns, and were searched for the timestamp, which costs some 100 ns. Worry: it is most of the traffic.", []string{"service"}, nil)
	sessionHellos = prometheus.NewDesc("ballast_session_hellos_total", "First packets with data of connections with session tls, by outcome: resumed; by the policy: none (no session), unknown (of no server, or of a dropped key), unavailable (server unhealthy or removed), limited (more clients than session_clients), untimed (no timestamps), incomplete, malformed, not_tls.", []string{"service", "outcome"}, nil)
	predecessors  = prometheus.NewDesc("ballast_predecessor_connections", "Estimate of the connections that went on to the predecessor within the last minute; 0: it is idle.", []string{"service"}, nil)
	synProxyOn    = prometheus.NewDesc("ballast_syn_proxy_on", "1 while this load balancer answers the SYNs of a service with syn_proxy; 0: they are below syn_limit.", []string{"service"}, nil)
	serverHealthy = prometheus.NewDesc("ballast_server_healthy", "Result of checks, whatever all_down makes of it: 0: unhealthy; 1: healthy, or not checked.", []string{"service", "server", "id"}, nil)
	serverInUse   = prometheus.NewDesc("ballast_server_in_use", "1: a server gets new connections from here; 0: its state, weight or health prevents it.", []string{"service", "server", "id"}, nil)
	serverWeight  = prometheus.NewDesc("ballast_server_weight", "Weight of a server for new connections, as the dispatch policy uses it now; 0: none.", []string{"service", "server", "id"}, nil)
	serverStarts  = prometheus.NewDesc("ballast_server_slow_start_ratio", "Part of its weight that a server has during slow_start; absent: all of it.", []string{"service", "server", "id"}, nil)
	serverLiving  = prometheus.NewDesc("ballast_server_living_connections", "Open connections of a server (LIVE of ctl server list), where they are known.", []string{"service", "server", "id"}, nil)
	takingServers = prometheus.NewDesc("ballast_service_taking_servers", "Servers of a service that get new connections: active, weight not 0, not excluded by health. Not of public services, nor of those that pass to the second tier.", []string{"service"}, nil)
	healthyCount  = prometheus.NewDesc("ballast_service_healthy_servers", "Servers of a service that get new connections and do not fail their checks. Not of public services, nor of those that pass to the second tier.", []string{"service"}, nil)
	pathless      = prometheus.NewDesc("ballast_next_hops_missing", "1 for each server, node or predecessor (predecessor of SERVICE) that gets connections and has no known next hop; absent: it has one.", []string{"server", "address"}, nil)
	revision      = prometheus.NewDesc("ballast_revision", "Revision of the controllers' state in use; 0: none yet.", nil, nil)
	judgesAlone   = prometheus.NewDesc("ballast_judges_alone", "1 while no controller judges servers, and this load balancer does by its own checks.", nil, nil)
	nodePackets   = prometheus.NewDesc("ballast_node_packets_total", "Packets sent to a node of the second tier.", []string{"service", "node", "id"}, nil)
	nodeBytes     = prometheus.NewDesc("ballast_node_bytes_total", "Bytes of IP packets sent to a node of the second tier.", []string{"service", "node", "id"}, nil)
	nodeNew       = prometheus.NewDesc("ballast_node_connections_total", "Connections dispatched to a node of the second tier.", []string{"service", "node", "id"}, nil)
	nodeHealthy   = prometheus.NewDesc("ballast_node_healthy", "Result of checks of a node of the second tier: 0: unhealthy; 1: healthy, or not checked.", []string{"node", "id"}, nil)
	changesMetric = prometheus.NewDesc("ballast_changes_total", "Changes applied to the data path since the daemon started.", nil, nil)
	pathErrors    = prometheus.NewDesc("ballast_path_errors_total", "ICMP errors that report a smaller MTU on the path to a server, by outcome: believed; forged (no proof); doubted (ignored after many forged ones); foreign (not about our packets, or nothing new).", []string{"outcome"}, nil)
	stateUnsaved  = prometheus.NewDesc("ballast_state_unsaved", "1 while the state file cannot be written: a restart would use an older state.", nil, nil)
)

// Metrics is a prometheus.Collector.
type Metrics struct {
	Tables   *dataplane.Tables
	NoCookie NoCookie
	Refused  func() bool           // the configuration
	Unsaved  func() bool           // the state
	Alone    func() bool           // it judges in place of controllers
	Revision func() (uint64, bool) // of controllers, of a load balancer that runs by them
	// Devices tells which interfaces the program is on, by its mode, and which wait for it.
	Devices func() (modes map[string]string, waiting []*net.Interface)
	// Judge tells the health, weight and living connections of a service's servers.
	Judge func(*dataplane.Snapshot, *api.ServiceStatus) []*ballastv1.ServerStatus
}

// Describe is of prometheus.Collector.
func (m *Metrics) Describe(chan<- *prometheus.Desc) {} // else registering would collect all

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
	starting := m.Tables.Starting()
	for i := range services {
		collectService(out, &services[i])
		if proxy := services[i].SYNProxy; proxy != model.SYNProxyOff {
			gauge(out, synProxyOn, listen.Bool(proxy == model.SYNProxyAlways || now.Flooded[services[i].Name]), services[i].Name)
		}
		if services[i].Name == "" || now.SendsToNodes(&services[i].Service) {
			continue
		}
		failing, down := now.FailingOf(services[i].Name), now.DownOf(services[i].Name)
		for _, judged := range m.Judge(now, &services[i]) {
			collectJudged(out, judged, failing)
		}
		for j := range services[i].Servers {
			server := &services[i].Servers[j]
			if server.Removed {
				continue
			}
			gauge(out, serverInUse, listen.Bool(server.TakesNew() && !down[server.ID]), services[i].Name, server.Name, strconv.Itoa(int(server.ID)))
			if part, starts := starting[services[i].Name][server.ID]; starts {
				gauge(out, serverStarts, float64(part.Tenths)/slowstart.Whole, services[i].Name, server.Name, strconv.Itoa(int(server.ID)))
			}
		}
	}
	for name, servers := range now.Taking() {
		gauge(out, takingServers, float64(servers.New), name)
		gauge(out, healthyCount, float64(servers.Healthy), name)
	}
	for address, name := range now.Unreached() {
		gauge(out, pathless, 1, name, address.String())
	}
	if known, follows := m.Revision(); follows {
		gauge(out, revision, float64(known))
		gauge(out, judgesAlone, listen.Bool(m.Alone()))
	}
	modes, waiting := m.Devices()
	devices.Collect(out, modes, waiting)
	counter(out, changesMetric, now.Generation)
	for outcome, errors := range m.Tables.Outcomes() {
		counter(out, pathErrors, errors, outcome)
	}
	gauge(out, configfile.Refused, listen.Bool(m.Refused()))
	gauge(out, stateUnsaved, listen.Bool(m.Unsaved()))
	tier, failing := now.Tier(), now.FailingOf(model.SecondTierName)
	for _, node := range tier.Second {
		gauge(out, nodeHealthy, listen.Bool(!failing[node.ID]), node.Name, strconv.Itoa(int(node.ID)))
	}
}

func collectJudged(out chan<- prometheus.Metric, s *ballastv1.ServerStatus, failing map[uint16]bool) {
	labels := []string{s.Service, s.Server.Name, strconv.FormatUint(uint64(s.Server.Id), 10)}
	if !s.Removed {
		gauge(out, serverHealthy, listen.Bool(s.Health != health.Unhealthy && !failing[uint16(s.Server.Id)]), labels...)
		gauge(out, serverWeight, float64(s.Weight), labels...)
	}
	if s.Connections != nil {
		gauge(out, serverLiving, float64(*s.Connections), labels...)
	}
}

func collectService(out chan<- prometheus.Metric, s *api.ServiceStatus) {
	for verdict, traffic := range s.Verdicts {
		if traffic.Packets == 0 && s.Name != "" { // of thousands of services most are
			continue
		}
		counter(out, packetsMetric, traffic.Packets, s.Name, verdict)
		counter(out, bytesMetric, traffic.Bytes, s.Name, verdict)
	}
	if s.Name != "" {
		counter(out, searchesTotal, s.TimestampSearches, s.Name)
		if s.PredecessorConnections != nil {
			gauge(out, predecessors, float64(*s.PredecessorConnections), s.Name)
		}
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

package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ballast-lb/ballast/internal/api"
	datapath "github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// counters sums every verdict over all services and what belongs to none.
func (lb *LB) counters() (api.Counters, error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	total := map[string]uint64{}
	numbers := []uint32{0}
	for _, place := range lb.tables.Places() {
		numbers = append(numbers, place.Number)
	}
	for _, number := range numbers {
		verdicts, err := lb.verdicts(number)
		if err != nil {
			return api.Counters{}, err
		}
		for name, traffic := range verdicts {
			total[name] += traffic.Packets
		}
	}
	return api.Counters{Counters: total}, nil
}

// verdicts returns what a service number counted, by the verdict's name. Callers hold mu.
func (lb *LB) verdicts(number uint32) (map[string]api.Traffic, error) {
	names, err := datapath.VerdictNames()
	if err != nil {
		return nil, err
	}
	traffic, err := lb.path.VerdictTraffic(number)
	if err != nil {
		return nil, err
	}
	out := make(map[string]api.Traffic, len(traffic))
	for verdict, t := range traffic {
		if verdict > 0 { // "continue" never leaves the program
			out[names[verdict]] = api.Traffic(t)
		}
	}
	return out, nil
}

func (lb *LB) services() ([]api.ServiceStatus, error) {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	places := lb.tables.Places()
	out := []api.ServiceStatus{}
	for _, s := range lb.node.Running.Services {
		place := places[s.Name]
		verdicts, err := lb.verdicts(place.Number)
		if err != nil {
			return nil, err
		}
		status := api.ServiceStatus{Service: s, Verdicts: verdicts}
		if place.Nodes {
			if status.Nodes, err = lb.nodeTraffic(place); err != nil {
				return nil, err
			}
			place.Counters = nil // servers get nothing from here
		}
		noCookie := lb.cannotTakePart(&s)
		add := func(servers []model.Server, removed bool) error {
			for _, server := range servers {
				traffic, open, err := lb.serverTraffic(s.Dispatch, place, server.ID)
				if err != nil {
					return err
				}
				status.Servers = append(status.Servers, api.ServerStatus{
					Server: server, Removed: removed, Packets: traffic.Packets, Bytes: traffic.Bytes, Connections: traffic.Connections,
					Open: open, Path: lb.describePath(server.Address), TakesPart: !noCookie[server.ID],
				})
			}
			return nil
		}
		if err := errors.Join(add(s.Servers, false), add(lb.node.Lingering(s.Name), true)); err != nil {
			return nil, err
		}
		out = append(out, status)
	}
	return out, nil
}

// serverTraffic is what was sent to a server, and how many of its connections live as far as this node can tell. Callers hold mu.
func (lb *LB) serverTraffic(dispatch model.Dispatch, place plan.Place, id uint16) (traffic datapath.ServerTraffic, open int32, err error) {
	index, counted := place.Counters[id]
	if !counted {
		return traffic, 0, nil
	}
	if traffic, err = lb.path.ServerTraffic(index); err != nil {
		return traffic, 0, err
	}
	return traffic, lb.openConnections(dispatch, index, traffic), nil
}

func (lb *LB) describePath(address netip.Addr) string {
	path, ok := lb.paths.Known[address]
	why, unknown := lb.paths.Why[address]
	switch {
	case !ok && unknown:
		return why
	case !ok:
		return "by the second tier" // whose nodes look for it
	}
	mac := path.DestinationMAC
	text := fmt.Sprintf("%s %02x:%02x:%02x:%02x:%02x:%02x mtu %d", deviceName(path.Ifindex), mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], path.MTU)
	if path.VLAN != 0 {
		text += " vlan " + strconv.Itoa(int(path.VLAN))
	}
	return text
}

// deviceName is how people know a device; one that has gone has its index only.
func deviceName(index uint32) string {
	if device, err := net.InterfaceByIndex(int(index)); err == nil {
		return device.Name
	}
	return fmt.Sprintf("if%d", index)
}

var (
	packetsMetric = prometheus.NewDesc("ballast_packets_total", "Packets by service and verdict.", []string{"service", "verdict"}, nil)
	bytesMetric   = prometheus.NewDesc("ballast_bytes_total", "Bytes of IP packets by service and verdict.", []string{"service", "verdict"}, nil)
	serverPackets = prometheus.NewDesc("ballast_server_packets_total", "Packets sent to a server.", []string{"service", "server", "id"}, nil)
	serverBytes   = prometheus.NewDesc("ballast_server_bytes_total", "Bytes of IP packets sent to a server.", []string{"service", "server", "id"}, nil)
	serverNew     = prometheus.NewDesc("ballast_server_connections_total", "Connections dispatched to a server.", []string{"service", "server", "id"}, nil)
	serverState   = prometheus.NewDesc("ballast_server_state", "1 for the state that a server is in.", []string{"service", "server", "id", "state"}, nil)
	nodePackets   = prometheus.NewDesc("ballast_node_packets_total", "Packets sent to a node of the second tier.", []string{"service", "node", "id"}, nil)
	nodeBytes     = prometheus.NewDesc("ballast_node_bytes_total", "Bytes of IP packets sent to a node of the second tier.", []string{"service", "node", "id"}, nil)
	nodeNew       = prometheus.NewDesc("ballast_node_connections_total", "Connections dispatched to a node of the second tier.", []string{"service", "node", "id"}, nil)
	nodeHealthy   = prometheus.NewDesc("ballast_node_healthy", "1: a node of the second tier gets packets; 0: it is unhealthy.", []string{"node", "id"}, nil)
	generation    = prometheus.NewDesc("ballast_generation", "Changes applied to the data path since the daemon started.", nil, nil)
	pathErrorsHad = prometheus.NewDesc("ballast_path_errors_total", "ICMP errors that say that the way to a server is narrower than its route, by what became of them.", []string{"outcome"}, nil)
	stateUnsaved  = prometheus.NewDesc("ballast_state_unsaved", "1 while the state file cannot be written: a restart would know an older state.", nil, nil)
	fileRefused   = prometheus.NewDesc("ballast_config_refused", "1 while the configuration file cannot be applied.", nil, nil)
)

// collector reads the maps when Prometheus asks.
type collector struct{ lb *LB }

func (c collector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

func (c collector) Collect(out chan<- prometheus.Metric) {
	counter := func(desc *prometheus.Desc, value uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	services, err := c.lb.services()
	if err != nil {
		out <- prometheus.NewInvalidMetric(packetsMetric, err)
		return
	}
	c.lb.mu.Lock()
	unserved, err := c.lb.verdicts(0)
	generationNow, refused, unsaved := c.lb.generation, c.lb.file.Error != "", c.lb.kept.Unsaved() != ""
	tier, pathErrors := c.lb.tier(), c.lb.paths.Outcomes()
	c.lb.mu.Unlock()
	if err != nil {
		out <- prometheus.NewInvalidMetric(packetsMetric, err)
		return
	}
	services = append(services, api.ServiceStatus{Verdicts: unserved})
	for _, s := range services {
		for verdict, traffic := range s.Verdicts {
			counter(packetsMetric, traffic.Packets, s.Name, verdict)
			counter(bytesMetric, traffic.Bytes, s.Name, verdict)
		}
		for _, node := range s.Nodes {
			id := strconv.Itoa(int(node.ID))
			counter(nodePackets, node.Packets, s.Name, node.Name, id)
			counter(nodeBytes, node.Bytes, s.Name, node.Name, id)
			counter(nodeNew, node.Connections, s.Name, node.Name, id)
		}
		for _, server := range s.Servers {
			// A removed server's name may have been given to another one, its id not.
			id := strconv.Itoa(int(server.ID))
			counter(serverPackets, server.Packets, s.Name, server.Name, id)
			counter(serverBytes, server.Bytes, s.Name, server.Name, id)
			counter(serverNew, server.Connections, s.Name, server.Name, id)
			state := server.State.String()
			if server.Removed {
				state = "removed"
			}
			out <- prometheus.MustNewConstMetric(serverState, prometheus.GaugeValue, 1, s.Name, server.Name, id, state)
		}
	}
	counter(generation, generationNow)
	for outcome, errors := range pathErrors {
		counter(pathErrorsHad, errors, outcome)
	}
	out <- prometheus.MustNewConstMetric(fileRefused, prometheus.GaugeValue, truth(refused))
	out <- prometheus.MustNewConstMetric(stateUnsaved, prometheus.GaugeValue, truth(unsaved))
	for _, node := range tier.Second {
		out <- prometheus.MustNewConstMetric(nodeHealthy, prometheus.GaugeValue, truth(!tier.Down[node.ID]), node.Name, strconv.Itoa(int(node.ID)))
	}
}

// truth is how Prometheus is told yes and no.
func truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func (lb *LB) metricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{lb}, tableCollector{lb})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// traceRate is how many events a second a trace reports at most.
const traceRate = 200

// traceSession is the one trace that may run.
type traceSession struct {
	trace      *datapath.Trace
	suppressed uint32
}

func (t *traceSession) refill(*datapath.LB) {
	if t.trace == nil {
		return
	}
	if suppressed, err := t.trace.Allow(traceRate); err == nil {
		t.suppressed += suppressed
	}
}

// serveTrace streams events as JSON, one a line, until the client goes.
func (lb *LB) serveTrace(w http.ResponseWriter, r *http.Request) {
	filter, err := lb.traceFilter(r)
	if err == nil {
		err = lb.beginTrace(filter)
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		json.NewEncoder(w).Encode(api.BadRequest("%s", err))
		return
	}
	stop := lb.trace.trace
	go func() {
		<-r.Context().Done()
		stop.Close()
	}()
	defer lb.endTrace()
	names, _ := datapath.VerdictNames()
	flusher := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	flusher.Flush()
	encoder := json.NewEncoder(w)
	for {
		event, err := stop.Next()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			lb.log.Error("trace ended", "error", err)
			return
		}
		if encoder.Encode(lb.explain(event, names)) != nil {
			return
		}
		flusher.Flush()
	}
}

func (lb *LB) beginTrace(filter datapath.TraceFilter) error {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	if lb.trace.trace != nil {
		return errors.New("a trace is running already: end it first")
	}
	trace, err := lb.path.StartTrace(filter)
	if err != nil {
		return err
	}
	lb.trace = traceSession{trace: trace}
	lb.trace.refill(lb.path)
	return nil
}

func (lb *LB) endTrace() {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	lb.trace.trace.Close()
	lb.trace = traceSession{}
}

func (lb *LB) traceFilter(r *http.Request) (filter datapath.TraceFilter, err error) {
	query := r.URL.Query()
	if name := query.Get("service"); name != "" {
		lb.mu.Lock()
		place, ok := lb.tables.Places()[name]
		lb.mu.Unlock()
		if !ok {
			return filter, fmt.Errorf("there is no service %q: see `ballast ctl services`", name)
		}
		filter.Service = place.Number
	}
	if client := query.Get("client"); client != "" {
		if filter.Client, err = netip.ParseAddr(client); err != nil {
			return filter, fmt.Errorf("client: %w: give an address", err)
		}
	}
	if port := query.Get("port"); port != "" {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return filter, fmt.Errorf("port: %w", err)
		}
		filter.ClientPort = uint16(number)
	}
	return filter, nil
}

// explain puts names in place of numbers.
func (lb *LB) explain(e datapath.TraceEvent, verdicts []string) api.TraceEvent {
	out := api.TraceEvent{
		Source: e.Source, Destination: e.Destination, Protocol: e.Protocol, Flags: e.TCPFlags, Length: e.Length,
		ID: e.Server, Verdict: verdicts[e.Verdict], Timestamp: e.Timestamp, Echo: e.Echo,
	}
	lb.mu.Lock()
	defer lb.mu.Unlock()
	out.Suppressed, lb.trace.suppressed = lb.trace.suppressed, 0
	for name, place := range lb.tables.Places() {
		if e.Service == 0 || place.Number != e.Service {
			continue
		}
		out.Service = name
		out.Server = lb.serverName(name, e.Server)
		for _, stop := range e.Stops {
			out.Stops = append(out.Stops, lb.serverName(name, stop))
		}
	}
	return out
}

// serverName is the name of whom the service's packets with that id go to from here: a server, or a node of the second tier. Callers
// hold mu.
func (lb *LB) serverName(service string, id uint16) string {
	servers := lb.node.Lingering(service)
	s := lb.node.Running.Service(service)
	if service == model.SecondTierName || s != nil && lb.sendsToNodes(s) {
		servers, s = nil, lb.secondTier()
	}
	if s != nil {
		servers = append(servers, s.Servers...)
	}
	for _, server := range servers {
		if server.ID == id {
			return server.Name
		}
	}
	return ""
}

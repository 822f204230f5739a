package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/filtered"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Status answers api.PathStatus.
type Status struct {
	api.Status
	Name        string   `json:"name"`
	Revision    uint64   `json:"revision"` // of the desired state that is known here; 0: none is
	Services    int      `json:"services"`
	Leads       int      `json:"leads"` // of these
	Term        uint64   `json:"term"`  // 0: this controller leads nothing
	Controllers []string `json:"controllers"`
	Nodes       int      `json:"nodes"` // load balancers and agents that are connected
	Problems    []string `json:"problems"`
}

// routes is what nodes and ctl are served by mutual TLS.
func (c *controller) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(c.hub.Handler())
	path, fleet := api.NewFleetHandler(fleetOf{c})
	mux.Handle(path, forOperators(fleet))
	path, controllers := ballastv1connect.NewControllersHandler(controllersAPI{c})
	mux.Handle(path, forOperators(controllers))
	return mux
}

// forOperators lets people's programs and controllers use the fleet API, and nobody else: a node that was broken into changes nothing.
func forOperators(handler http.Handler) http.Handler {
	errorsTo := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := hub.Certified(r)
		if err == nil && who.Role != pki.Ctl && who.Role != pki.Controller {
			err = fmt.Errorf("the certificate of %s is for role %s: the fleet is read and changed with one for role %s", who.Name, who.Role, pki.Ctl)
		}
		if err == nil {
			by := api.Caller{Name: who.Name, Role: string(who.Role), Address: r.RemoteAddr, Certificate: r.TLS.PeerCertificates[0]}
			handler.ServeHTTP(w, r.WithContext(api.WithCaller(r.Context(), by)))
			return
		}
		hub.NoteRefused(r, pki.WrongRole, err)
		refused := connect.NewError(connect.CodePermissionDenied, err)
		if !errorsTo.IsSupported(r) {
			http.Error(w, refused.Error(), http.StatusForbidden)
			return
		}
		errorsTo.Write(w, r, refused) // the client may have gone
	})
}

// localRoutes is what root is served on this machine.
func (c *controller) localRoutes() *api.Server {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) { return c.status(), nil })
	s.HandleRaw("GET "+api.PathMetrics, c.metrics())
	s.HandleRaw("GET "+api.PathBackup, http.HandlerFunc(c.serveBackup))
	s.HandleRaw(api.NewFleetHandler(fleetOf{c}))
	s.HandleRaw(ballastv1connect.NewControllersHandler(controllersAPI{c}))
	s.Otherwise("this is a controller, which sees no packets and has no configuration file: bgp, config, connection, counter, session, suspect and trace are of one load balancer: " +
		"run the command there; `ballast ctl history list` and `apply --dry-run` tell what changed and what differs from a file")
	return s
}

// obstacles are what keeps this controller from its work, empty: it is ready. Nodes that it has told something go on without it.
func (c *controller) obstacles() (found []string) {
	if why := c.mirror.Unknown(); why != "" {
		found = append(found, why)
	}
	if c.credentials.OwnRevoked() != nil {
		return append(found, "its certificate is revoked: nodes leave it, and it leads nothing")
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if !c.lives() {
		found = append(found, "it is not among the controllers that the store takes for alive: the store cannot be reached, or has no quorum")
	}
	return found
}

// lives: the store takes this controller for alive, as far as is known here. Callers hold mutex.
func (c *controller) lives() bool {
	return slices.ContainsFunc(c.live, func(m store.Member) bool { return m.Name == c.name })
}

func (c *controller) status() Status {
	now, stops := c.mirror.Now(), c.obstacles()
	c.mutex.Lock()
	leads, live := c.leads, c.live
	c.mutex.Unlock()
	s := Status{
		Status: api.Status{Role: string(pki.Controller), Ready: len(stops) == 0, NotReady: slices.Clone(stops), Version: c.options.Version}, Name: c.name, Term: leads.term,
		Controllers: leads.names, Nodes: len(c.hub.Nodes.List()), Problems: slices.Concat(stops, c.problems(), contested(live), c.fleetProblems()),
	}
	if now != nil {
		s.Revision, s.Services, s.Generation = now.Revision, len(now.Services), now.Revision
		for name := range now.Services {
			if leads.of(c.name, name) {
				s.Leads++
			}
		}
	}
	return s
}

// problems are what operators should know of this controller.
func (c *controller) problems() []string {
	problems := c.credentials.Warnings(time.Now())
	if c.mirror.Restored() {
		problems = append(problems, desired.RestoredProblem)
	}
	if problem := roomProblem(c.options.DataDir, roomLeast); problem != "" {
		problems = append(problems, problem)
	}
	problems = append(problems, c.ticketProblems(c.mirror.Now())...)
	if c.peers.cluster != nil {
		problems = append(problems, c.peers.cluster.PeerCondition().Problems()...)
		problems = append(problems, c.revokedMembers()...)
	}
	if err := c.mirror.Broken(); err != nil {
		problems = append(problems, fmt.Sprintf("the fleet in the store contradicts itself: nodes are sent nothing new until it is changed: %v", err))
	}
	return problems
}

// fleetProblems are what clients notice, whatever each node says of itself.
func (c *controller) fleetProblems() (problems []string) {
	fleet, _, err := c.mirror.Fleet()
	if err != nil || len(fleet.Services) == 0 {
		return nil
	}
	connected := 0
	for _, n := range c.hub.Nodes.List() {
		if n.Role == string(pki.LB) {
			connected++
		}
	}
	if connected == 0 {
		return []string{"no load balancer is connected: nothing says that clients are served"}
	}
	for _, cause := range filtered.Seen(c.engine.Tunnels(c.hub.Nodes.Agents())) {
		problems = append(problems, cause.Problem())
	}
	problems = append(problems, c.mtuProblems(&fleet)...)
	var speakers []string
	for i := range fleet.Nodes {
		if !fleet.Nodes[i].BGP.IsZero() {
			speakers = append(speakers, fleet.Nodes[i].Name)
		}
	}
	by, reporting, known := c.hub.Nodes.Announced(speakers)
	if reporting == 0 || !known {
		return problems
	}
	said := map[string]bool{}
	for i := range fleet.Services {
		s := &fleet.Services[i]
		if vip := s.VIP.String(); !s.Functions() && by[vip] == 0 && !said[vip] {
			said[vip] = true
			problems = append(problems, fmt.Sprintf("VIP %s is announced to no router by any connected load balancer: see `ballast ctl bgp show` there", vip))
		}
	}
	return problems
}

// fleetOf is the desired state, with what is known of the fleet, for api.NewFleetHandler.
type fleetOf struct{ *controller }

func (f fleetOf) Fleet(ctx context.Context) (model.Fleet, uint64, error) {
	if _, _, err := f.mirror.Known(ctx); err != nil {
		return model.Fleet{}, 0, err
	}
	return f.mirror.Fleet()
}

func (f fleetOf) Newest(ctx context.Context) (uint64, error) { return f.writer.Newest(ctx) }

func (f fleetOf) History(context.Context) (list []*ballastv1.FleetChange, err error) {
	now := f.mirror.Now()
	if now == nil {
		return nil, desired.ErrUnknown
	}
	for _, c := range now.History.Changes {
		list = append(list, &ballastv1.FleetChange{Time: timestamppb.New(c.Time), Name: c.By.Name, Role: c.By.Role, Address: c.By.Address, Changes: c.Changes})
	}
	return list, nil
}

func (f fleetOf) Change(ctx context.Context, dryRun bool, edit node.Edit) ([]string, uint64, error) {
	return f.editor.Change(ctx, dryRun, func(next *node.Node) error {
		before := vipsOf(&next.Running)
		if err := edit(next); err != nil {
			return err
		}
		return f.checkVIPs(before, &next.Running)
	})
}

func (f fleetOf) Forget(ctx context.Context, service, server string) ([]string, uint64, error) {
	return f.editor.Forget(ctx, service, server)
}

func (f fleetOf) Servers(_ context.Context, service string) ([]*ballastv1.ServerStatus, error) {
	servers := f.engine.Servers(service)
	f.engine.MarkAgents(servers, f.hub.Nodes.Agents())
	return hub.ServersToProto(servers), nil
}

// LostLoadBalancers may run on without a controller.
func (f fleetOf) LostLoadBalancers() (names []string) {
	for _, n := range f.hub.Nodes.Lost() {
		if n.Role == string(pki.LB) {
			names = append(names, n.Name)
		}
	}
	return names
}

func (f fleetOf) KeyNodes() *rotation.Nodes { return f.hub.Nodes.Keys() }

// MakesKeys: every node is told them by the controllers.
func (f fleetOf) MakesKeys() bool { return true }

// Nodes lists this controller, the others that keep the state, as far as it knows, and the nodes that are connected to it.
func (f fleetOf) Nodes(context.Context) ([]*ballastv1.NodeStatus, error) {
	stops := f.obstacles()
	f.mutex.Lock()
	leads, live, gone, lives := f.leads, slices.Clone(f.live), maps.Clone(f.gone), f.lives()
	f.mutex.Unlock()
	if f.peers.cluster != nil {
		maps.DeleteFunc(gone, func(name string, _ *ballastv1.NodeStatus) bool { return !f.peers.cluster.HasPeer(name) }) // they were removed
	}
	if !lives {
		delete(gone, f.name) // it answers
		live = append(live, store.Member{Name: f.name, Address: f.address, Version: f.options.Version})
		slices.SortFunc(live, func(a, b store.Member) int { return cmp.Compare(a.Name, b.Name) })
	}
	now := f.mirror.Now()
	if now == nil {
		return nil, desired.ErrUnknown
	}
	var nodes []*ballastv1.NodeStatus
	for _, member := range live {
		status := &ballastv1.NodeStatus{Role: string(pki.Controller), Name: member.Name, Address: member.Address, Version: member.Version,
			Ready: "yes", LastSeen: timestamppb.Now()} // it keeps its lease
		switch {
		case member.Name == f.name:
			status.Since, status.Revision = timestamppb.New(f.began), now.Revision
			status.Problems = append(stops, f.problems()...)
			if len(stops) > 0 {
				status.Ready = "no"
			}
		case !lives:
			status.Ready, status.LastSeen = "", nil
			status.Problems = []string{fmt.Sprintf("as last known: %s, which was asked, hears nothing of the store", f.name)}
		}
		status.Problems = append(status.Problems, contested([]store.Member{member})...)
		for name := range now.Services {
			if leads.of(member.Name, name) {
				status.Services = append(status.Services, name)
			}
		}
		slices.Sort(status.Services)
		nodes = append(nodes, status)
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		nodes = append(nodes, gone[name])
	}
	return append(nodes, f.withHealth(append(f.hub.Nodes.List(), f.hub.Nodes.Lost()...))...), nil
}

// withHealth tells of the nodes of the second tier whether they are healthy, also of those that are not connected.
func (f fleetOf) withHealth(nodes []*ballastv1.NodeStatus) []*ballastv1.NodeStatus {
	for _, s := range f.engine.Servers(model.SecondTierName) {
		at := slices.IndexFunc(nodes, func(n *ballastv1.NodeStatus) bool { return n.Role == string(pki.LB) && n.Name == s.Server.Name })
		if at < 0 {
			at = len(nodes)
			nodes = append(nodes, &ballastv1.NodeStatus{Role: string(pki.LB), Name: s.Server.Name, Problems: []string{"not connected"}})
		}
		nodes[at].Health, nodes[at].HealthDetail = s.Health, s.HealthDetail
	}
	return nodes
}

var (
	servicesMetric  = prometheus.NewDesc("ballast_controller_services", "Services of the fleet.", nil, nil)
	leadsMetric     = prometheus.NewDesc("ballast_controller_services_led", "Services that this controller leads.", nil, nil)
	termMetric      = prometheus.NewDesc("ballast_controller_term", "Revision of the list that services are divided by; 0: this controller leads nothing.", nil, nil)
	ringVersion     = prometheus.NewDesc("ballast_controller_ring_version", "Version of the ring of load balancers that keep the replicated table; 0: there is none.", nil, nil)
	ringSynced      = prometheus.NewDesc("ballast_controller_ring_synced_version", "Newest version of the ring whose entries all chains have.", nil, nil)
	ringSize        = prometheus.NewDesc("ballast_controller_ring_load_balancers", "Load balancers on the ring.", nil, nil)
	ringLost        = prometheus.NewDesc("ballast_controller_ring_lost_ranges_total", "Ranges of the ring whose load balancers were all lost at once.", nil, nil)
	serversMetric   = prometheus.NewDesc("ballast_controller_servers", "Servers of all services by their health, removed ones not counted.", []string{"health"}, nil)
	agentlessMetric = prometheus.NewDesc("ballast_controller_servers_without_agent", "Servers that need an agent, and whose agent is not connected to this controller.", nil, nil)
	storeMembers    = prometheus.NewDesc("ballast_controller_store_members", "Members of the store, with --data-dir.", nil, nil)
	storeMajority   = prometheus.NewDesc("ballast_controller_store_majority", "1 while this controller's store reaches a majority of its members; 0: changes are refused.", nil, nil)
	storeBehind     = prometheus.NewDesc("ballast_controller_store_behind_entries", "Entries of the store that are committed and not applied here.", nil, nil)
	storeForged     = prometheus.NewDesc("ballast_controller_store_forged_total", "Requests to this controller's store in another controller's name, refused.", nil, nil)
	revisionMetric  = prometheus.NewDesc("ballast_controller_revision", "Revision of the desired state that is known here.", nil, nil)
)

// Describe makes a controller a prometheus.Collector.
func (c *controller) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect makes a controller a prometheus.Collector.
func (c *controller) Collect(out chan<- prometheus.Metric) {
	s := c.status()
	servers := c.engine.Servers("")
	c.engine.MarkAgents(servers, c.hub.Nodes.Agents())
	agentless, byHealth := 0, map[string]int{health.Healthy: 0, health.Unhealthy: 0, health.Unknown: 0, health.Unchecked: 0}
	for i := range servers {
		if servers[i].Removed {
			continue
		}
		byHealth[servers[i].Health]++
		if servers[i].Agent == "none" {
			agentless++
		}
	}
	for is, n := range byHealth {
		out <- prometheus.MustNewConstMetric(serversMetric, prometheus.GaugeValue, float64(n), is)
	}
	gauge := func(desc *prometheus.Desc, value float64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	gauge(servicesMetric, float64(s.Services))
	gauge(leadsMetric, float64(s.Leads))
	gauge(termMetric, float64(s.Term))
	gauge(revisionMetric, float64(s.Revision))
	gauge(agentlessMetric, float64(agentless))
	if c.peers.cluster != nil {
		store := c.peers.cluster.PeerCondition()
		gauge(storeMembers, float64(store.Members))
		gauge(storeMajority, listen.Bool(store.Majority))
		gauge(storeBehind, float64(store.Behind))
		out <- prometheus.MustNewConstMetric(storeForged, prometheus.CounterValue, float64(store.Forged))
	}
	if now := c.mirror.Now(); now != nil {
		gauge(ringVersion, float64(now.Ring.Ring.Version))
		gauge(ringSynced, float64(now.Ring.Ring.Synced))
		gauge(ringSize, float64(len(now.Ring.Current())))
		out <- prometheus.MustNewConstMetric(ringLost, prometheus.CounterValue, float64(now.Ring.Ring.Lost))
	}
}

func (c *controller) metrics() http.Handler {
	look := func() listen.Condition {
		now := c.status()
		return listen.Condition{Ready: now.Ready, Problems: len(now.Problems), Epoch: c.hub.Nodes.Keys().Keys.Current}
	}
	return listen.Metrics(listen.About{Role: string(pki.Controller), Version: c.options.Version, Credentials: c.credentials, Look: look}, c, c.hub, c.refusals)
}

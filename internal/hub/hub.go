package hub

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Limits bound what one peer can do to a controller. Zero values: DefaultLimits.
type Limits struct {
	HelloTimeout time.Duration // from the beginning of a stream until Hello
	WriteTimeout time.Duration // that a peer may take nothing while something waits for it
	MessageBytes int           // of one message from a node
	Messages     rate.Limit    // a second, in the long run; a hundred seconds' worth at once
	Bytes        rate.Limit    // a second, in the long run; ten seconds' worth at once
	Joins        rate.Limit    // a second of one name, in the long run; ten at once
}

// DefaultLimits leave room for a load balancer's report of 4,096 services x 16 servers (4 MB) twice a second, and for an agent's
// reports at 100 Hz with every service on one host.
var DefaultLimits = Limits{
	HelloTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
	MessageBytes: 16 << 20, Messages: 1000, Bytes: 16 << 20, Joins: 1,
}

// Reports takes what nodes report; an Engine does. Reports of one node come in order, those of several at the same time.
type Reports interface {
	Traffic(lb string, servers []engine.ServerTraffic)
	Health(lb string, servers []engine.ServerHealth)
	Load(agent pki.Identity, load *engine.Load)
	Losses(agent pki.Identity, losses map[string]health.Loss)
}

// Options say who a hub is and whom it tells.
type Options struct {
	Name    string // of the controller, or of the load balancer whose own controller this is
	Version string
	Reports Reports
	// Changed is called, if it is given, when nodes have come or gone. LoadBalancers tells which there are.
	Changed func()
	// Replicated is called, if it is given, when a load balancer has said how it stands to the ring. ReplicaReports tells it.
	Replicated func()
	// Newest is the revision of the desired state that its store confirms to be the newest; nil: there is no store.
	Newest func(context.Context) (uint64, error)
	// Credentials sign the ring, so that load balancers can pass it on; nil: nobody signs it.
	Credentials *pki.Credentials
	// Identify tells who sends a request; nil: its certificate does.
	Identify func(*http.Request) (pki.Identity, error)
	Limits   Limits
	Log      *slog.Logger
}

// manyChanges are not looked through for every peer to find its turn.
const manyChanges = 16

// Hub serves the streams of load balancers and agents: it tells each what it should know, first all of it and then what changes,
// and takes their reports. All methods are safe for concurrent use and return at once, whatever peers do: what waits for a
// peer is a set of names, so the newest state and the newest weights of a service take the place of older ones.
type Hub struct {
	options Options
	metrics metrics
	streams streams

	setting sync.Mutex // held while a view is taken; services change under both locks

	mutex    sync.Mutex
	known    bool // there has been a view
	revision uint64
	keys     model.Keys
	keyed    uint64 // revision in which keys became what they are
	tickets  serviceTickets
	nodes    *ballastv1.Nodes
	services map[string]*service
	soft     *softState
	checks   map[string][]string // by load balancer
	peers    map[peerKey]*peer
	lbs      map[string]*peer // those of peers that are load balancers
	lost     *lostNodes       // that were among peers

	unable bool // this controller judges nobody

	sources *tunnelSources
	revoked []*ballastv1.Revocation // certificates

	ring *ring
}

// service is one service in the form that it is sent in.
type service struct {
	revision uint64
	lbs      []byte // field of State, for load balancers
	agents   []byte // the same for agents
	hosts    hosts  // of its servers, and of those that have left
	tickets  hosts  // whose agents get keys of its session tickets
}

// hosts are known by the names and addresses of servers.
type hosts struct {
	names     map[string]bool
	addresses map[netip.Addr]bool
}

func (h *hosts) add(servers []model.Server) {
	if h.names == nil {
		*h = hosts{map[string]bool{}, map[netip.Addr]bool{}}
	}
	for i := range servers {
		h.names[servers[i].Name] = true
		h.addresses[servers[i].Address] = true
	}
}

func (h *hosts) have(who *pki.Identity) bool {
	return h.names[who.Name] || slices.ContainsFunc(who.Addresses, func(a netip.Addr) bool { return h.addresses[a] })
}

// New returns a hub that has no state to tell yet: nodes that join before there is one are welcomed and wait.
func New(o Options) *Hub {
	l := &o.Limits
	l.HelloTimeout = cmp.Or(l.HelloTimeout, DefaultLimits.HelloTimeout)
	l.WriteTimeout = cmp.Or(l.WriteTimeout, DefaultLimits.WriteTimeout)
	l.MessageBytes = cmp.Or(l.MessageBytes, DefaultLimits.MessageBytes)
	l.Messages = cmp.Or(l.Messages, DefaultLimits.Messages)
	l.Bytes = cmp.Or(l.Bytes, DefaultLimits.Bytes)
	l.Joins = cmp.Or(l.Joins, DefaultLimits.Joins)
	if o.Identify == nil {
		o.Identify = Certified
	}
	h := &Hub{options: o, services: map[string]*service{}, soft: newSoftState(), checks: map[string][]string{},
		peers: map[peerKey]*peer{}, lost: newLostNodes(), lbs: map[string]*peer{},
		sources: newTunnelSources(o.Name), ring: newRing(o.Credentials, o.Log)}
	h.metrics = newMetrics()
	h.streams = streams{&h.options, &h.metrics, newAdmission(l.Joins), h}
	return h
}

// Handler returns the route of the streams and what answers it. It needs HTTP/2.
func (h *Hub) Handler() (path string, handler http.Handler) { return h.streams.handler() }

// confirm refuses a node that knows a newer state than this controller, unless the store has none newer: it was restored from a copy. A
// controller that is cut off from the store would lead the node back to a state that was given up, keys included.
func (h *Hub) confirm(ctx context.Context, p *peer) *refusal {
	told := func() (revision uint64, known bool) {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		return h.revision, h.known
	}
	if revision, known := told(); !known || revision >= p.revision || h.options.Newest == nil {
		return nil // the first that is read of the store is confirmed
	}
	newest, err := h.options.Newest(ctx)
	revision, _ := told()
	if err == nil && revision < newest {
		err = errors.New("it has just read a newer one")
	}
	if err != nil {
		return &refusal{"behind", connect.CodeUnavailable, fmt.Sprintf("controller %s knows revision %d of the desired state, %s %s runs by %d: %v",
			h.options.Name, revision, p.identity.Role, p.identity.Name, p.revision, err)}
	}
	return nil
}

// enter makes p the one stream of its node.
func (h *Hub) enter(p *peer) {
	h.mutex.Lock()
	before := h.peers[p.key()]
	if h.peers[p.key()] = p; before != nil {
		p.displace(before)
	}
	h.lost.remove(p.key())
	p.checks = len(h.checks[p.identity.Name]) > 0
	p.tunnels = p.identity.Role == pki.Agent
	p.revoked = h.revoked
	h.takeSources(p, p.addresses, nil) // agents are told before it can forward what it is told
	if p.identity.Role == pki.LB {
		h.lbs[p.identity.Name] = p
		p.replicas, p.judging = h.ring.view != nil, h.unable
		h.soft.enter(p)
	}
	h.mutex.Unlock()
	if before != nil {
		before.stop(connect.NewError(connect.CodeAborted, fmt.Errorf("%s %s has joined again from %s", p.identity.Role, p.identity.Name, p.address)))
	}
	h.options.Log.Info("node joined", "role", p.identity.Role, "name", p.identity.Name, "address", p.address, "version", p.version)
	h.changed()
}

func (h *Hub) leave(p *peer, why error) {
	h.mutex.Lock()
	replaced := h.peers[p.key()] != p
	if !replaced {
		delete(h.peers, p.key())
		h.lose(p)
		if h.lbs[p.identity.Name] == p {
			delete(h.lbs, p.identity.Name)
			h.sources.left(p.identity.Name)
			h.spreadSources()
		}
	}
	h.mutex.Unlock()
	h.options.Log.Info("node left", "role", p.identity.Role, "name", p.identity.Name, "address", p.address, "reason", why)
	if !replaced {
		h.changed()
	}
}

func (h *Hub) changed() {
	if h.options.Changed != nil {
		h.options.Changed()
	}
}

func encodeService(v *engine.ServiceView) *service {
	s := &service{revision: v.Revision, lbs: serviceField(forLBs(v)), agents: serviceField(forAgents(v))}
	s.hosts.add(v.Service.Servers)
	s.hosts.add(v.Removed)
	if v.Service.Session == model.SessionTLS {
		s.tickets.add(v.Service.Servers)
	}
	return s
}

// concerns reports whether a node is told of the service: load balancers of all, agents of those that they are servers of.
func (s *service) concerns(who *pki.Identity) bool {
	if s == nil || who.Role == pki.LB {
		return s != nil
	}
	return s.hosts.have(who)
}

// grants reports whether a node gets the keys of the service's session tickets: an agent of a server that has not left. Load balancers never do.
func (s *service) grants(who *pki.Identity) bool {
	return s != nil && who.Role == pki.Agent && s.tickets.have(who)
}

// serviceChange is what a service was and is; nil: it is not there.
type serviceChange struct {
	before, after *service
	skipped       bool // it was something else in between
}

// SetState takes the desired state as it is now. Peers are told what has changed since what they were told last.
func (h *Hub) SetState(view *engine.View) {
	h.setting.Lock()
	defer h.setting.Unlock()
	services := make(map[string]*service, len(view.Services)) // encoded while peers are served
	changes := map[string]serviceChange{}
	for i := range view.Services {
		v := &view.Services[i]
		before := h.services[v.Service.Name]
		after := before
		if before == nil || v.Revision == 0 || before.revision != v.Revision {
			after = encodeService(v)
		}
		services[v.Service.Name] = after
		if before == nil || !bytes.Equal(before.lbs, after.lbs) || !bytes.Equal(before.agents, after.agents) {
			changes[v.Service.Name] = serviceChange{before: before, after: after}
		}
	}
	for name, before := range h.services {
		if services[name] == nil {
			changes[name] = serviceChange{before: before}
		}
	}
	nodes := nodesOf(view)
	newNodes := !proto.Equal(nodes, h.nodes)
	for _, name := range view.Skipped {
		if name == model.SecondTierName {
			newNodes = true
			continue
		}
		changes[name] = serviceChange{h.services[name], services[name], true}
	}

	h.mutex.Lock()
	defer h.mutex.Unlock()
	complete := view.Whole || view.Revision < h.revision // the store was restored from a copy
	if complete {
		h.soft.restart()
	}
	newKeys := !h.known || !proto.Equal(api.KeysToProto(&view.Keys), api.KeysToProto(&h.keys))
	if newKeys || complete {
		h.keyed = view.Revision
	}
	newTickets := h.tickets.set(view.Tickets)
	h.known, h.revision, h.keys, h.nodes, h.services = true, view.Revision, view.Keys, nodes, services
	for name, change := range changes {
		if change.after == nil {
			h.soft.drop(name)
		}
	}
	for _, p := range h.inTurn(changes) {
		p.nodes = p.nodes || newNodes && p.identity.Role == pki.LB
		p.tickets = p.tickets || newTickets && p.identity.Role == pki.Agent
		h.tell(p, changes, newKeys, complete)
	}
}

// inTurn returns the peers in the order in which they are told: agents that a service is new to, so that they take its packets; load
// balancers, which may send some; the other agents, whose number times that of their servers is what there is most of to send. The
// caller holds the lock.
func (h *Hub) inTurn(changes map[string]serviceChange) []*peer {
	var turns [3][]*peer
	for _, p := range h.peers {
		turn := 2
		if p.identity.Role == pki.LB {
			turn = 1
		} else if len(changes) < manyChanges {
			for _, change := range changes {
				if !change.before.concerns(&p.identity) && change.after.concerns(&p.identity) {
					turn = 0
				}
			}
		}
		turns[turn] = append(turns[turn], p)
	}
	return slices.Concat(turns[:]...)
}

// tell marks what has changed for a peer. The caller holds the lock.
func (h *Hub) tell(p *peer, changes map[string]serviceChange, keys, complete bool) {
	p.complete = p.complete || complete
	p.keys = p.keys || keys
	for name, change := range changes {
		before, after := change.before, change.after
		p.tickets = p.tickets || before.grants(&p.identity) != after.grants(&p.identity) || change.skipped && after.grants(&p.identity)
		same := before != nil && after != nil && bytes.Equal(before.agents, after.agents)
		if !change.skipped && (!before.concerns(&p.identity) && !after.concerns(&p.identity) || p.identity.Role == pki.Agent && same) {
			continue
		}
		if p.dirty[name] {
			h.metrics.coalesced.WithLabelValues("state").Inc()
		}
		p.dirty[name] = true
		if after == nil {
			delete(p.weights, name)
		}
	}
	p.wakeUp()
}

// Weigh takes an update of a service's weights for all load balancers. Those of a service that is not known are dropped: it has gone, or comes
// with the next view.
func (h *Hub) Weigh(service string, update *follow.Update) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.services[service] != nil {
		h.metrics.coalesce("weights", h.soft.weigh(service, update, h.lbs))
	}
}

// Count takes what agents have counted of a service's open connections, for the load balancers that dispatch some of them.
func (h *Hub) Count(service string, counts *follow.Counts, shares map[string]float64) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.services[service] != nil {
		h.metrics.coalesce("open", h.soft.count(service, &openCounts{counts, shares}, h.lbs))
	}
}

// SetChecks says which services each load balancer is to check the servers of.
func (h *Hub) SetChecks(checks map[string][]string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for name, p := range h.lbs {
		if !slices.Equal(h.checks[name], checks[name]) {
			p.checks = true
			p.wakeUp()
		}
	}
	h.checks = maps.Clone(checks)
}

// SetJudging says whether this controller can judge servers; else load balancers that hear no other do it.
func (h *Hub) SetJudging(able bool) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if able != h.unable {
		return
	}
	h.unable = !able
	for _, p := range h.lbs {
		p.judging = true
		p.wakeUp()
	}
}

// LoadBalancers returns the names of those that are connected, ascending.
func (h *Hub) LoadBalancers() (names []string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return slices.Sorted(maps.Keys(h.lbs))
}

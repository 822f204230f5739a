package hub

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

// peerKey is what there is one stream of.
type peerKey struct {
	role pki.Role
	name string
}

// peer is a node that is connected. What waits for it is kept as names, and looked up when it is sent.
type peer struct {
	identity pki.Identity
	address  string
	version  string
	// addresses are those that it told when it joined.
	addresses        []string
	revision         uint64 // of the state that the node ran by when it joined
	takesRevocations bool
	since            time.Time
	rival            string // host from which its place was taken; empty: from none, or long ago
	call             *call
	messages         *rate.Limiter
	bytes            *rate.Limiter
	taken            int64 // bytes of the stream that the limiter knows of

	slow atomic.Bool // it took nothing for as long as the limit says
	wake chan struct{}
	end  chan error // why the stream has to end, from outside

	// Under the hub's lock.
	says     uint64               // that it has carried out; see applied
	ahead    time.Time            // when it first said one that was not known here
	report   *ballastv1.KeyReport // of an agent; nil: there was none yet
	reported time.Time
	told     uint64                   // revision that it was sent last
	behind   time.Time                // load balancers: since when they have carried out nothing of what they were sent; zero: they have all
	ready    string                   // as NodeStatus has it
	problems []string                 // as it tells them
	barred   bool                     // its certificate is revoked
	vips     *ballastv1.Announcements // load balancers: as told last; nil: it has no BGP, or is of an older version
	paths    *ballastv1.PathMTUs      // load balancers; nil: it has not told them
	receiver *ballastv1.Receiver      // agents; nil: it has not told it
	sources  []string                 // agents: of load that do not work
	complete bool                     // it has to be told everything
	keys     bool
	tickets  bool // agents
	nodes    bool
	dirty    map[string]bool         // services that it has to be told of
	judging  bool                    // load balancers: whether we judge has changed
	checks   bool                    // its list of checks has changed
	tunnels  bool                    // agents: the list of where tunnels come from has changed
	replicas bool                    // load balancers: the ring has changed
	revoked  []*ballastv1.Revocation // that it has to be told of
	weights  map[string]uint64       // services whose weights have changed -> number of the last update that it knows
	queue    []string                // the same services in the order of their turns
	counts   map[string]bool         // load balancers: services whose open connections were counted again
}

// call is one request, as far as gRPC hides it.
type call struct {
	request *http.Request
	read    atomic.Int64 // bytes of the body

	mutex   sync.Mutex
	control *http.ResponseController // nil: the request is over, and what it was made of may serve another one
}

// deadlines ends reading and writing at some time; zero: never. A nil one stays as it is.
func (c *call) deadlines(read, write *time.Time) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.control == nil {
		return
	}
	if read != nil {
		c.control.SetReadDeadline(*read) // fails only on a stream that has ended
	}
	if write != nil {
		c.control.SetWriteDeadline(*write)
	}
}

func (c *call) over() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.control = nil
}

func newPeer(identity pki.Identity, hello *ballastv1.Hello, c *call, limits *Limits) *peer {
	// Seconds' worth: a load balancer tells of every server by itself when all fail at once.
	const messages, bytes = 100, 10
	return &peer{
		identity: identity, address: c.request.RemoteAddr, version: legible(hello.Version), addresses: hello.Addresses, revision: hello.Revision, takesRevocations: hello.TakesRevocations,
		since: time.Now(), call: c,
		messages: rate.NewLimiter(limits.Messages, int(messages*limits.Messages)), bytes: rate.NewLimiter(limits.Bytes, int(bytes*limits.Bytes)),
		wake: make(chan struct{}, 1), end: make(chan error, 1), complete: true, dirty: map[string]bool{}, weights: map[string]uint64{}, counts: map[string]bool{},
	}
}

func (p *peer) key() peerKey { return peerKey{p.identity.Role, p.identity.Name} }

// rivalLife is how long a node whose place was taken from another host is not believed: two that share a certificate take it in turns.
const rivalLife = time.Minute

// displace takes the place of the stream before of the same node, which may be another host's. The caller holds the hub's lock.
func (p *peer) displace(before *peer) {
	theirs, ours := hostOf(before.address), hostOf(p.address)
	switch {
	case theirs != ours && !slices.Contains(p.addresses, theirs) && !slices.Contains(before.addresses, ours):
		p.rival = theirs
	case time.Since(before.since) < rivalLife:
		p.rival = before.rival
	}
}

// contested says who else joins as this node; empty: nobody does. The caller holds the hub's lock.
func (p *peer) contested() string {
	if p.rival == "" || time.Since(p.since) >= rivalLife {
		return ""
	}
	ours := hostOf(p.address)
	return fmt.Sprintf("%s and %s both join as %s: one has the other's certificate, unless the host has just changed its address",
		min(p.rival, ours), max(p.rival, ours), p.identity.Name)
}

// hostOf is an address without its port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

func (p *peer) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// farewellTimeout is how long a peer may take to be told why its stream ends.
const farewellTimeout = time.Second

// stop ends the peer's stream for a reason that it is told if it reads.
func (p *peer) stop(why error) {
	select {
	case p.end <- why:
	default:
	}
	now := time.Now()
	farewell := now.Add(farewellTimeout)
	p.call.deadlines(&now, &farewell) // it reads no more
}

// next returns what the peer has to be told next, nil if nothing: whom it must not believe, where tunnels come from and state before
// everything else, weights last.
func (h *Hub) next(p *peer) *frame {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	switch {
	case len(p.revoked) > 0 && p.takesRevocations:
		return p.nextRevocations()
	case p.judging:
		p.judging = false
		return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Judging{Judging: &ballastv1.Judging{Able: !h.unable}}})
	case p.tunnels:
		p.tunnels = false
		return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Sources{Sources: h.sources.list}})
	case !h.known:
		return nil
	case p.complete || p.keys || p.tickets || p.nodes || len(p.dirty) > 0:
		return h.nextState(p)
	case p.replicas:
		p.replicas = false
		return messageFrame(h.ring.message(p.identity.Name))
	case p.checks:
		p.checks = false
		return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Checks{Checks: &ballastv1.Checks{Services: h.checks[p.identity.Name]}}})
	}
	return h.soft.next(p)
}

// nextState returns what is new to the peer in one message. It tells every change up to the hub's revision.
func (h *Hub) nextState(p *peer) *frame {
	rest := &ballastv1.State{Revision: h.revision, Complete: p.complete}
	if p.complete || p.keys {
		rest.Keys = api.KeysToProto(&h.keys)
	}
	if p.identity.Role == pki.LB && (p.complete || p.nodes) {
		rest.Nodes = h.nodes
	}
	if p.identity.Role == pki.Agent && (p.complete || p.tickets) {
		rest.Tickets = h.tickets.of(&p.identity, h.services)
	}
	names := maps.Keys(p.dirty)
	if p.complete {
		names = maps.Keys(h.services)
	}
	var services [][]byte
	for _, name := range slices.Sorted(names) {
		s := h.services[name]
		switch {
		case s.concerns(&p.identity) && p.identity.Role == pki.LB:
			services = append(services, s.lbs)
		case s.concerns(&p.identity):
			services = append(services, s.agents)
		case !p.complete:
			rest.Gone = append(rest.Gone, name)
		}
	}
	p.complete, p.keys, p.tickets, p.nodes = false, false, false, false
	if p.told = h.revision; p.behind.IsZero() && p.identity.Role == pki.LB {
		p.behind = time.Now()
	}
	clear(p.dirty)
	return stateFrame(rest, services)
}

// A node that is connected.
package hub

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

// peerKey is what there is one stream of.
type peerKey struct {
	role pki.Role
	name string
}

// peer is a node that is connected. What no lock guards does not change, except as its comment states.
type peer struct {
	subscriber
	address   string
	version   string
	addresses []string // load balancers: that tunnels come from, as it reported when it joined
	revision  uint64   // of the state that the node ran by when it joined
	since     time.Time
	call      *call
	messages  *rate.Limiter
	bytes     *rate.Limiter
	taken     int64 // bytes of the stream that the limiter knows of; of the goroutine that receives

	heard   atomic.Int64 // when its last message came, a time.Duration after since
	alive   atomic.Bool  // it says every second that it works
	slow    atomic.Bool  // it took nothing for Limits.WriteTimeout
	end     chan error   // why the stream has to end, from outside
	revoked bool         // its certificate is, now that the stream has ended

	// Nodes.mutex guards what follows.
	rival string // host whose stream this one replaced; empty: none, or long ago
	reported
}

// reported is what a node has reported of itself last.
type reported struct {
	ready        string // as NodeStatus has it, when it was reported
	readyAt      time.Time
	problems     []string
	vips         *ballastv1.Announcements // load balancers; nil: it has neither BGP nor L2, or is of an older version
	paths        *ballastv1.PathMTUs      // load balancers; nil: none yet
	predecessors map[string]uint64        // load balancers: connections that went on to them, by service
	receiver     *ballastv1.Receiver      // agents; nil: none yet
	unavailable  []string                 // agents: sources of load that do not work
	keys         *ballastv1.KeyReport     // agents; nil: none yet
	keysAt       time.Time
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
	// Seconds' worth: a load balancer reports every server by itself when all fail at once.
	const messages, bytes = 100, 10
	return &peer{
		subscriber: subscriber{identity, hello.TakesRevocations, make(chan struct{}, 1)},
		address:    c.request.RemoteAddr, version: legible(hello.Version), addresses: hello.Addresses, revision: hello.Revision,
		since: time.Now(), call: c,
		messages: rate.NewLimiter(limits.Messages, int(messages*limits.Messages)), bytes: rate.NewLimiter(limits.Bytes, int(bytes*limits.Bytes)),
		end: make(chan error, 1),
	}
}

func (p *peer) key() peerKey { return peerKey{p.identity.Role, p.identity.Name} }

// rivalLife is how long a node that replaced a stream from another host is not believed: two that share a certificate replace each other.
const rivalLife = time.Minute

// displace notes that p replaces a stream of the same node, which may be another host's. The caller holds Nodes.mutex.
func (p *peer) displace(before *peer) {
	theirs, ours := hostOf(before.address), hostOf(p.address)
	switch {
	case theirs != ours && !slices.Contains(p.addresses, theirs) && !slices.Contains(before.addresses, ours):
		p.rival = theirs
	case time.Since(before.since) < rivalLife:
		p.rival = before.rival
	}
}

// contested names who else joins as this node; empty: nobody does. The caller holds Nodes.mutex.
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

// farewellTimeout is how long a peer may take to receive why its stream ends.
const farewellTimeout = time.Second

// stop ends the peer's stream for a reason that it is sent.
func (p *peer) stop(why error) {
	select {
	case p.end <- why:
	default:
	}
	now := time.Now()
	farewell := now.Add(farewellTimeout)
	p.call.deadlines(&now, &farewell) // it reads no more
}

// The hub: the streams of nodes, what nodes are sent, and who is connected.
package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"

	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/machine/health"
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
	Alive(lb string)
	Load(agent pki.Identity, load *engine.Load)
	Losses(agent pki.Identity, losses map[string]health.Loss)
}

// Options are the identity of a hub and the receivers of its events.
type Options struct {
	Name    string // of the controller, or of the load balancer whose own controller this is
	Version string
	Reports Reports
	// Changed is called, if it is given, when nodes have come or gone. Nodes.LoadBalancers returns which there are.
	Changed func()
	// Replicated is called, if it is given, when a load balancer has reported its part of the ring. Nodes.ReplicaReports returns it.
	Replicated func()
	// Newest is the revision of the desired state that its store confirms to be the newest; nil: there is no store.
	Newest func(context.Context) (uint64, error)
	// Credentials sign the ring, so that load balancers can pass it on; nil: nobody signs it.
	Credentials *pki.Credentials
	// Identify returns who sends a request; nil: its certificate does.
	Identify func(*http.Request) (pki.Identity, error)
	Limits   Limits
	Log      *slog.Logger
}

// Hub wires the streams of load balancers and agents to what they are sent and to what is known of them.
type Hub struct {
	Topics *Topics
	Nodes  *Nodes

	options Options
	metrics metrics
	streams streams
}

// New returns a hub that has no state to send yet: nodes that join before there is one are welcomed and wait.
func New(o Options) *Hub {
	o.Limits.setDefaults()
	if o.Identify == nil {
		o.Identify = Certified
	}
	h := &Hub{options: o, metrics: newMetrics()}
	h.Topics = newTopics(o.Name, o.Credentials, o.Log, &h.metrics)
	h.Nodes = newNodes(h.Topics)
	h.streams = streams{&h.options, &h.metrics, newAdmission(o.Limits.Joins), h}
	return h
}

func (l *Limits) setDefaults() {
	l.HelloTimeout = cmp.Or(l.HelloTimeout, DefaultLimits.HelloTimeout)
	l.WriteTimeout = cmp.Or(l.WriteTimeout, DefaultLimits.WriteTimeout)
	l.MessageBytes = cmp.Or(l.MessageBytes, DefaultLimits.MessageBytes)
	l.Messages = cmp.Or(l.Messages, DefaultLimits.Messages)
	l.Bytes = cmp.Or(l.Bytes, DefaultLimits.Bytes)
	l.Joins = cmp.Or(l.Joins, DefaultLimits.Joins)
}

// Handler returns the route of the streams and what answers it. It needs HTTP/2.
func (h *Hub) Handler() (path string, handler http.Handler) { return h.streams.handler() }

// confirm refuses a node that knows a newer state than this controller, unless the store has none newer: it was restored from a copy. A
// controller that is cut off from the store would lead the node back to a state that was given up, keys included.
func (h *Hub) confirm(ctx context.Context, p *peer) *refusal {
	if revision, known := h.Topics.revision(); !known || revision >= p.revision || h.options.Newest == nil {
		return nil // the first that is read of the store is confirmed
	}
	newest, err := h.options.Newest(ctx)
	revision, _ := h.Topics.revision()
	if err == nil && revision < newest {
		err = errors.New("it has just read a newer one")
	}
	if err != nil {
		return &refusal{"behind", connect.CodeUnavailable, fmt.Sprintf("controller %s knows revision %d of the desired state, %s %s runs by %d: %v",
			h.options.Name, revision, p.identity.Role, p.identity.Name, p.revision, err)}
	}
	return nil
}

func (h *Hub) enter(p *peer) {
	if before := h.Nodes.enter(p); before != nil {
		before.stop(connect.NewError(connect.CodeAborted, fmt.Errorf("%s %s has joined again from %s", p.identity.Role, p.identity.Name, p.address)))
	}
	h.options.Log.Info("node joined", "role", p.identity.Role, "name", p.identity.Name, "address", p.address, "version", p.version)
	h.changed()
}

func (h *Hub) leave(p *peer, why error) {
	replaced := h.Nodes.leave(p)
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

func (h *Hub) next(p *peer) *frame { return h.Topics.next(&p.subscriber) }

// Package bootstrap is the ports of a controller, which answer before its store is open.
package bootstrap

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/controller/members"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/enrol"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Options are what a controller listens at.
type Options struct {
	Listen, Metrics string // TCP addresses; Metrics: empty: none
	Socket          string // of this machine; empty: none
	// Waiting answers at Socket before the store is open.
	Waiting     http.Handler
	Credentials *pki.Credentials
	Log         *slog.Logger
}

// Ports are what a controller listens at, and what answers there.
type Ports struct {
	o                      Options
	nodes, socket, metrics net.Listener // the last two: nil if they are not wanted
	peer                   peerServer   // of nodes
	local, measured        *server
	refusals               *hub.Refusals // of nodes
	joining                atomic.Pointer[func(*tls.Conn)]
	obstacles              atomic.Pointer[func() []string]
}

// Listen opens the ports.
func Listen(o Options) (p *Ports, err error) {
	p = &Ports{
		o: o, refusals: hub.NewRefusals(o.Log),
		peer:  peerServer{nonce: rand.Text(), rest: newServer(http.HandlerFunc(answerWaits)), store: newServer(nil), shown: &members.Shown{}},
		local: newServer(o.Waiting), measured: newServer(nil),
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if o.Socket != "" {
		if p.socket, err = api.Listen(o.Socket); err != nil {
			return p, err
		}
	}
	if p.nodes, err = net.Listen("tcp", o.Listen); err != nil {
		return p, fmt.Errorf("listen for nodes: %w: is another controller running? use another --listen", err)
	}
	if o.Metrics != "" {
		if p.metrics, err = net.Listen("tcp", o.Metrics); err != nil {
			return p, fmt.Errorf("serve metrics: %w", err)
		}
	}
	waiting := func() []string { return []string{Waits} }
	p.obstacles.Store(&waiting)
	return p, nil
}

// Close stops listening.
func (p *Ports) Close() {
	for _, l := range []net.Listener{p.nodes, p.socket, p.metrics} {
		if l != nil {
			l.Close() // also what has ended by itself
		}
	}
}

// Address is where nodes connect.
func (p *Ports) Address() net.Addr { return p.nodes.Addr() }

// Refusals are those at the port for nodes.
func (p *Ports) Refusals() *hub.Refusals { return p.refusals }

// Nonce proves to other controllers that whoever asks them in this one's name is this process.
func (p *Ports) Nonce() string { return p.peer.nonce }

// Shown is what controllers have shown at the port for nodes.
func (p *Ports) Shown() *members.Shown { return p.peer.shown }

// OpenStore has the store answer its peers from now on.
func (p *Ports) OpenStore(h http.Handler) { p.peer.store.open(h) }

// Handlers are what answers at each port once the store is open. Joining answers nodes that have no certificate.
type Handlers struct {
	Nodes, Local, Metrics http.Handler
	Joining               func(*tls.Conn)
}

// Open has handlers answer from now on. What keeps the controller from its work is told with its metrics.
func (p *Ports) Open(h Handlers, obstacles func() []string) {
	p.obstacles.Store(&obstacles)
	p.joining.Store(&h.Joining)
	p.measured.open(h.Metrics)
	p.local.open(h.Local)
	p.peer.rest.open(h.Nodes)
}

// Serve answers until the function that it returns is called. A port that cannot be served ends the process by fail.
func (p *Ports) Serve(fail context.CancelCauseFunc) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	run := func(serve func() error) {
		serving.Go(func() {
			if err := serve(); err != nil {
				fail(err)
			}
		})
	}
	joining := &hub.Joining{Protocol: enrol.Protocol, Serve: func(c *tls.Conn) {
		if serve := p.joining.Load(); serve != nil { // else who asks tries another controller, or again
			(*serve)(c)
		}
	}}
	run(func() error { return hub.Serve(ctx, p.nodes, p.o.Credentials, p.refusals, &p.peer, joining) })
	if p.socket != nil {
		local := api.NewServer()
		local.HandleRaw("/", p.local)
		run(func() error { return local.Serve(ctx, p.socket) })
	}
	if p.metrics != nil {
		run(func() error {
			return listen.ServeMetrics(ctx, p.o.Log, p.metrics, p.measured, func() []string { return (*p.obstacles.Load())() })
		})
	}
	return func() { cancel(); serving.Wait() }
}

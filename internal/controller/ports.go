// The ports of a controller, which answer before its store is open.
package controller

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/console"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
)

// ports are what a controller listens at, and what answers there.
type ports struct {
	nodes, socket, metrics, page net.Listener     // the last three: nil if they are not wanted
	console                      *console.Console // at page
	peer                         peerFront        // of nodes
	local, measured              *front
	refusals                     *hub.Refusals // of nodes
	obstacles                    atomic.Pointer[func() []string]
}

func listenAt(o *Options, credentials *pki.Credentials) (p *ports, err error) {
	name := credentials.Identity().Name
	p = &ports{
		refusals: hub.NewRefusals(o.Log),
		peer:     peerFront{nonce: rand.Text(), rest: newFront(http.HandlerFunc(tellWaits)), store: newFront(nil)},
		local:    newFront(waitingRoutes(o.Version, name)), measured: newFront(nil),
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if o.RunDir != "" {
		if p.socket, err = api.Listen(api.SocketPath(o.RunDir, name)); err != nil {
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
	if p.console, p.page, err = listenForConsole(o, credentials); err != nil {
		return p, err
	}
	waiting := func() []string { return []string{waits} }
	p.obstacles.Store(&waiting)
	return p, nil
}

func (p *ports) close() {
	for _, l := range []net.Listener{p.nodes, p.socket, p.metrics, p.page} {
		if l != nil {
			l.Close() // also what has ended by itself
		}
	}
}

// open has a controller answer from now on.
func (p *ports) open(c *controller) {
	obstacles := c.obstacles
	p.obstacles.Store(&obstacles)
	c.refusals = p.refusals
	p.measured.open(c.metrics())
	p.local.open(c.localRoutes())
	p.peer.rest.open(c.routes())
}

// serve answers until the function that it returns is called. A port that cannot be served ends the process by fail.
func (p *ports) serve(credentials *pki.Credentials, log *slog.Logger, fail context.CancelCauseFunc) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	run := func(serve func() error) {
		serving.Go(func() {
			if err := serve(); err != nil {
				fail(err)
			}
		})
	}
	run(func() error { return hub.Serve(ctx, p.nodes, credentials, p.refusals, &p.peer) })
	if p.socket != nil {
		local := api.NewServer()
		local.HandleRaw("/", p.local)
		run(func() error { return local.Serve(ctx, p.socket) })
	}
	if p.metrics != nil {
		run(func() error {
			return listen.ServeMetrics(ctx, log, p.metrics, p.measured, func() []string { return (*p.obstacles.Load())() })
		})
	}
	return func() { cancel(); serving.Wait() }
}

// Package controller is the process `ballast controller`: the desired state in a store, a hub that nodes are connected to, an engine that
// judges and weighs, and the services that this one of several leads.
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/daemon/readiness"
	"github.com/ballast-lb/ballast/internal/daemon/systemd"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

// Options are what `ballast controller` is started with.
type Options struct {
	Name    string   // of the certificate; empty: the only one in TLSDir that is for a controller
	Listen  string   // TCP address for nodes and ctl
	Public  string   // host:port that others reach it at, for lists; empty: Listen, with the name of the host if it names none
	TLSDir  string   // certificates
	RunDir  string   // the socket is in the folder Name below it; empty: none
	Metrics string   // TCP address for Prometheus; empty: none
	DataDir string   // of the store in this process
	Etcd    []string // endpoints of a store elsewhere, instead of DataDir
	EtcdCA, EtcdCert,
	EtcdKey string
	EtcdPrefix string
	Store      store.Store // instead of both, for tests: it is not closed
	Timing     node.Timing
	Limits     hub.Limits
	Version    string
	Log        *slog.Logger
	Ready      func(address string) // if given: called when nodes can join
	// TicketSettle is rotation.TicketSettle for tests; zero: as it is.
	TicketSettle time.Duration
}

// Implementation constants.
const (
	agePeriod    = time.Minute
	writeTimeout = 5 * time.Second
)

// controller is the process.
type controller struct {
	options     Options
	name        string
	address     string
	log         *slog.Logger
	credentials *pki.Credentials
	store       store.Store
	desired     *Desired
	hub         *hub.Hub
	engine      *engine.Engine
	began       time.Time
	findings    findings
	joined      chan struct{} // wakes remember
	ring        ringKeeper
	tickets     ticketKeeper

	mutex sync.Mutex
	leads leadership
	live  []store.Member
	gone  map[string]*ballastv1.NodeStatus // controllers that lived, by name
}

// Run serves nodes and ctl until ctx ends.
func Run(ctx context.Context, o Options) (err error) {
	credentials, err := pki.Load(o.TLSDir, o.Name, pki.Controller)
	if err != nil {
		return err
	}
	name := credentials.Identity().Name
	var socket net.Listener
	if o.RunDir != "" {
		if socket, err = api.Listen(api.SocketPath(o.RunDir, name)); err != nil {
			return err
		}
		defer socket.Close()
	}
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listen for nodes: %w: is another controller running? use another --listen", err)
	}
	defer listener.Close()
	var metrics net.Listener
	if o.Metrics != "" {
		if metrics, err = net.Listen("tcp", o.Metrics); err != nil {
			return fmt.Errorf("serve metrics: %w", err)
		}
		defer metrics.Close()
	}
	s, closeStore, err := openStore(ctx, &o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	c := newController(o, credentials, s, listener.Addr())
	return c.run(ctx, listener, socket, metrics)
}

func openStore(ctx context.Context, o *Options) (s store.Store, closeStore func() error, err error) {
	switch {
	case o.Store != nil:
		return o.Store, func() error { return nil }, nil
	case len(o.Etcd) > 0 && o.DataDir != "":
		return nil, nil, errors.New("two stores: give --data-dir or --etcd, not both")
	case len(o.Etcd) > 0:
		s, err = etcd.Connect(ctx, etcd.ConnectOptions{Endpoints: o.Etcd, CA: o.EtcdCA, Certificate: o.EtcdCert, Key: o.EtcdKey, Prefix: o.EtcdPrefix, Log: o.Log})
	case o.DataDir != "":
		s, err = etcd.Embed(ctx, etcd.EmbedOptions{DataDir: o.DataDir, Log: o.Log})
	default:
		return nil, nil, errors.New("no store: give --data-dir for a controller by itself, or --etcd for several")
	}
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

func newController(o Options, credentials *pki.Credentials, s store.Store, listening net.Addr) *controller {
	c := &controller{options: o, name: credentials.Identity().Name, address: public(o.Public, listening), log: o.Log, credentials: credentials,
		store: s, began: time.Now()}
	c.desired = NewDesired(s, o.Timing, o.Log)
	c.tickets.settle = cmp.Or(o.TicketSettle, rotation.TicketSettle)
	c.findings.wake, c.joined, c.ring.wake = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	c.engine = engine.New(engine.Options{
		Weigh: func(service string, update *follow.Update) { c.hub.Weigh(service, update) },
		Down:  c.findings.health, Off: c.findings.off,
		Checks: func(checks map[string][]string) { c.hub.SetChecks(checks) },
		Log:    o.Log,
	})
	c.hub = hub.New(hub.Options{Name: c.name, Version: o.Version, Reports: c.engine, Limits: o.Limits, Log: o.Log,
		Changed: c.nodesChanged, Replicated: c.ringWake,
		Newest: c.desired.Newest})
	return c
}

// public is where others reach the controller, as far as it knows.
func public(given string, listening net.Addr) string {
	if given != "" {
		return given
	}
	address, ok := listening.(*net.TCPAddr)
	if !ok || !address.IP.IsUnspecified() {
		return listening.String()
	}
	host, err := os.Hostname()
	if err != nil {
		return listening.String()
	}
	return net.JoinHostPort(host, fmt.Sprint(address.Port))
}

func (c *controller) run(ctx context.Context, listener, socket, metrics net.Listener) error {
	told := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	fail := func(err error) {
		if err != nil {
			cancel(err)
		}
	}
	running.Go(func() { c.credentials.Watch(ctx, c.log) })
	for _, job := range []func(context.Context){c.desired.Follow, c.spread, c.revoke, c.takePart, c.engine.Run, c.write, c.age, c.remember, c.keepRing, c.keepTickets} {
		running.Go(func() { job(ctx) })
	}
	if socket != nil {
		running.Go(func() { fail(c.localRoutes().Serve(ctx, socket)) })
	}
	if metrics != nil {
		running.Go(func() { fail(listen.ServeMetrics(ctx, c.log, metrics, c.metrics(), c.obstacles)) })
	}
	running.Go(func() { readiness.Log(ctx, c.log, c.obstacles) })
	running.Go(func() { systemd.Serve(ctx, c.log, func() { c.status() }, "nodes go on with what they know") })
	defer c.log.Info("stopped: nodes go on with what they know", "name", c.name)
	c.log.Info("serving", "name", c.name, "address", listener.Addr(), "version", c.options.Version)
	if c.options.Ready != nil {
		c.options.Ready(listener.Addr().String())
	}
	fail(hub.Serve(ctx, listener, c.credentials, c.routes()))
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.Cause(told)) {
		return cause
	}
	return nil // it was told to stop
}

// spread gives every new state to those who work with it.
func (c *controller) spread(ctx context.Context) {
	for {
		view, changed := c.desired.View()
		if view != nil {
			if view.Skipped, view.Whole = c.desired.show(view.Revision); view.Whole {
				view.CompareAll() // revisions may mean other things now
			}
			c.engine.SetState(view)
			c.hub.SetState(view)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// leadsService reports whether this controller leads a service now.
func (c *controller) leadsService(name string) bool {
	c.mutex.Lock()
	l := c.leads
	c.mutex.Unlock()
	return l.of(c.name, name)
}

// age lets removed servers be forgotten. Without a load balancer nobody knows whether anybody speaks to them.
func (c *controller) age(ctx context.Context) {
	tick := time.NewTicker(agePeriod)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			blind := len(c.hub.LoadBalancers()) == 0
			err := c.desired.Age(ctx, now, c.leadsService, func(service string, id uint16) uint64 {
				if blind {
					return uint64(now.UnixNano())
				}
				return c.engine.Activity(service, id)
			})
			if err != nil && ctx.Err() == nil {
				c.log.Warn("removed servers are not forgotten yet", "error", err)
			}
			if err := c.keepRevoked(ctx, now); err != nil && ctx.Err() == nil {
				c.log.Warn("the list of revoked certificates is not kept", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

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
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/daemon/console"
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
	Console string   // TCP address of the console; empty: none
	DataDir string   // of the store in this process
	Join    []string // host:port of controllers that this one, with DataDir, joins unless it has done so before
	Etcd    []string // endpoints of a store elsewhere, instead of DataDir
	// ConsoleToken is a file with the token that people log in with; empty: certificates let them in, and on loopback everybody is.
	ConsoleToken string
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
	agePeriod = time.Minute
	keepAlive = 30 * time.Second // of connections between stores, as etcd has it
)

// controller is the process.
type controller struct {
	options     Options
	name        string
	address     string
	log         *slog.Logger
	credentials *pki.Credentials
	store       store.Store
	mirror      *desired.Mirror
	writer      *desired.Writer
	editor      desired.Editor
	ager        *desired.Ager
	hub         *hub.Hub
	refusals    *hub.Refusals // of its ports
	engine      *engine.Engine
	began       time.Time
	findings    findings
	joined      chan struct{} // wakes remember
	ring        ringKeeper
	tickets     ticketKeeper
	peers       peers
	console     *console.Console // nil: none

	mutex sync.Mutex
	leads leadership
	live  []store.Member
	gone  map[string]*ballastv1.NodeStatus // controllers that lived, by name
}

// Run serves nodes and ctl until told ends.
func Run(told context.Context, o Options) (err error) {
	credentials, err := pki.Load(o.TLSDir, o.Name, pki.Controller)
	if err != nil {
		return err
	}
	ports, err := listenAt(&o, credentials)
	if err != nil {
		return err
	}
	defer ports.close()
	defer func() { o.noteEnd(credentials, err) }()
	ctx, cancel := context.WithCancelCause(told)
	defer cancel(nil)
	stopServing := ports.serve(credentials, o.Log, cancel)
	defer stopServing()
	address := public(o.Public, ports.nodes.Addr(), credentials.Identity().Addresses)
	opened, err := openStore(ctx, &o, credentials, address, &ports.peer)
	if err == nil {
		newController(o, credentials, opened, address).run(ctx, ports, cancel)
		err = opened.close()
	}
	cause := context.Cause(ctx)
	switch {
	case cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.Cause(told)):
		return cause
	case told.Err() != nil && errors.Is(err, told.Err()):
		return nil // it was told to stop
	}
	return err
}

// noteEnd keeps why the process ends.
func (o *Options) noteEnd(credentials *pki.Credentials, why error) {
	if o.RunDir != "" {
		api.NoteEnd(api.SocketPath(o.RunDir, credentials.Identity().Name), why)
	}
}

// openedStore is a store with what is to be done about it.
type openedStore struct {
	store.Store
	cluster *etcd.Store // in this process; nil: the state is kept elsewhere
	shown   *shownCertificates
	close   func() error
}

func openStore(ctx context.Context, o *Options, credentials *pki.Credentials, address string, front *peerFront) (openedStore, error) {
	var s *etcd.Store
	var err error
	switch {
	case o.Store != nil:
		return openedStore{Store: o.Store, close: func() error { return nil }}, nil
	case len(o.Etcd) > 0 && o.DataDir != "":
		return openedStore{}, errors.New("two stores: give --data-dir or --etcd, not both")
	case len(o.Etcd) > 0:
		s, err = etcd.Connect(ctx, etcd.ConnectOptions{Endpoints: o.Etcd, CA: o.EtcdCA, Certificate: o.EtcdCert, Key: o.EtcdKey, Prefix: o.EtcdPrefix, Log: o.Log})
		if err != nil {
			return openedStore{}, err
		}
		return openedStore{Store: s, close: s.Close}, nil
	case o.DataDir == "":
		return openedStore{}, errors.New("no store: give --data-dir, or --etcd")
	}
	peering := &etcd.Peering{Address: address, Serve: front.store.open}
	peering.CA, peering.Certificate, peering.Key = credentials.Files()
	peering.Dial = func(ctx context.Context, name, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		return credentials.HeldDialer(credentials.At(pki.Controller, name, host), (&net.Dialer{KeepAlive: keepAlive}).DialContext)(ctx, "tcp", address)
	}
	peering.Caller = func(r *http.Request) string {
		who, _ := hub.Certified(r) // the port for nodes has verified it
		return who.Name
	}
	if len(o.Join) > 0 {
		peering.Join = func(ctx context.Context) ([]etcd.Peer, error) {
			return join(ctx, o.Log, o.Join, credentials, address, front.nonce)
		}
	}
	s, err = etcd.Embed(ctx, etcd.EmbedOptions{DataDir: o.DataDir, Name: credentials.Identity().Name, Peering: peering, Log: o.Log,
		Ends: func(why error) { o.noteEnd(credentials, why) }})
	if err != nil {
		return openedStore{}, err
	}
	return openedStore{s, s, &front.shown, s.Close}, nil
}

func newController(o Options, credentials *pki.Credentials, s openedStore, address string) *controller {
	c := &controller{options: o, name: credentials.Identity().Name, address: address, log: o.Log, credentials: credentials,
		store: s.Store, peers: peers{cluster: s.cluster, shown: s.shown}, began: time.Now()}
	c.mirror = desired.NewMirror(s.Store, o.Log)
	c.writer = desired.NewWriter(c.mirror)
	c.editor, c.ager = desired.NewEditor(c.writer), desired.NewAger(c.writer, o.Timing)
	c.tickets.settle = cmp.Or(o.TicketSettle, rotation.TicketSettle)
	c.findings.wake, c.joined, c.ring.wake = make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	c.engine = engine.New(engine.Options{
		Weigh: func(service string, update *follow.Update) { c.hub.Topics.SetWeights(service, update) },
		Count: func(service string, counts *follow.Counts, shares map[string]float64) {
			c.hub.Topics.SetCounts(service, counts, shares)
		},
		Down: c.findings.health, Off: c.findings.off,
		Checks: func(checks map[string][]string) { c.hub.Topics.SetChecks(checks) },
		Log:    o.Log,
	})
	c.hub = hub.New(hub.Options{Name: c.name, Version: o.Version, Reports: c.engine, Limits: o.Limits, Log: o.Log,
		Changed: c.nodesChanged, Replicated: c.ringWake, Credentials: credentials,
		Newest: c.writer.Newest})
	c.hub.Topics.SetJudging(false) // before it leads
	return c
}

// public is where others reach the controller, as far as it knows.
func public(given string, listening net.Addr, certified []netip.Addr) string {
	if given != "" {
		return given
	}
	address, ok := listening.(*net.TCPAddr)
	if !ok || !address.IP.IsUnspecified() {
		return listening.String()
	}
	if len(certified) > 0 {
		return netip.AddrPortFrom(certified[0], uint16(address.Port)).String()
	}
	host, err := os.Hostname()
	if err != nil {
		return listening.String()
	}
	return net.JoinHostPort(host, fmt.Sprint(address.Port))
}

// run does a controller's work on ports that are served, until ctx ends.
func (c *controller) run(ctx context.Context, ports *ports, cancel context.CancelCauseFunc) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.credentials.Watch(ctx, c.log) })
	for _, job := range []func(context.Context){c.mirror.Follow, c.publish, c.revoke, c.takePart, c.engine.Run, c.write, c.age, c.remember, c.keepRing, c.keepTickets} {
		running.Go(func() { job(ctx) })
	}
	if c.console = ports.console; c.console != nil {
		running.Go(func() {
			if err := c.console.Serve(ctx, ports.page, c.view); err != nil {
				cancel(err)
			}
		})
	}
	ports.open(c)
	running.Go(func() { readiness.Log(ctx, c.log, c.obstacles) })
	running.Go(func() { systemd.Serve(ctx, c.log, func() { c.status() }, "nodes go on with what they know") })
	defer c.log.Info("stopped: nodes go on with what they know", "name", c.name)
	c.log.Info("serving", "name", c.name, "address", ports.nodes.Addr(), "version", c.options.Version)
	if c.options.Ready != nil {
		c.options.Ready(ports.nodes.Addr().String())
	}
	var failed <-chan error
	if c.peers.cluster != nil {
		failed = c.peers.cluster.Failed()
	}
	select {
	case err := <-failed:
		cancel(err)
	case <-ctx.Done():
	}
}

// publish gives every new state to those who work with it.
func (c *controller) publish(ctx context.Context) {
	c.mirror.Publish(ctx, func(view *engine.View) {
		c.engine.SetState(view)
		c.hub.Topics.SetState(view)
	})
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
			blind := len(c.hub.Nodes.LoadBalancers()) == 0
			err := c.ager.Age(ctx, now, c.leadsService, func(service string, id uint16) uint64 {
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

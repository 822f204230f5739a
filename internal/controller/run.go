// Package controller is the process `ballast controller`: the desired state in a store, a hub that nodes are connected
// to, an engine that judges and weighs, and the services that this one of several leads.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/controller/bootstrap"
	"github.com/ballast-lb/ballast/internal/controller/report"
	"github.com/ballast-lb/ballast/internal/daemon/periodic"
	"github.com/ballast-lb/ballast/internal/daemon/readiness"
	"github.com/ballast-lb/ballast/internal/daemon/systemd"
	"github.com/ballast-lb/ballast/internal/discovery"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
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
	// ConsoleToken is a file with the token that people log in with; empty: certificates let them in, and on loopback
	// everybody is.
	ConsoleToken string
	EtcdCA, EtcdCert,
	EtcdKey string
	EtcdPrefix string
	Store      store.Store // instead of both, for tests: it is not closed
	Timing     fleet.Timing
	Limits     hub.Limits
	Version    string
	Log        *slog.Logger
	Ready      func(address string) // if given: called when nodes can join
	// TicketSettle is rotation.TicketSettle for tests; zero: as it is.
	TicketSettle time.Duration
	Asking       discovery.Options // of servers
}

const agePeriod = time.Minute

// Run serves nodes and ctl until parent ends.
func Run(parent context.Context, o Options) (err error) {
	credentials, err := pki.Load(o.TLSDir, o.Name, pki.Controller)
	if err != nil {
		return err
	}
	ports, err := bootstrap.Listen(bootstrap.Options{Listen: o.Listen, Metrics: o.Metrics, Socket: o.socket(credentials), Credentials: credentials, Log: o.Log,
		Waiting: report.Waiting(o.Version, credentials.Identity().Name, bootstrap.Waits)})
	if err != nil {
		return err
	}
	defer ports.Close()
	page, err := listenForConsole(&o, credentials)
	if err != nil {
		return err
	}
	defer page.close()
	defer func() { o.noteEnd(credentials, err) }()
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	stopServing := ports.Serve(cancel)
	defer stopServing()
	address := public(o.Public, ports.Address(), credentials.Identity().Addresses)
	opened, err := openStore(ctx, &o, credentials, address, ports)
	if err == nil {
		newController(o, credentials, opened, address, ports).run(ctx, ports, page, cancel)
		err = opened.close()
	}
	cause := context.Cause(ctx)
	switch {
	case cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.Cause(parent)):
		return cause
	case parent.Err() != nil && errors.Is(err, parent.Err()):
		return nil // it was told to stop
	}
	return err
}

// noteEnd keeps why the process ends.
func (o *Options) noteEnd(credentials *pki.Credentials, why error) {
	if socket := o.socket(credentials); socket != "" {
		api.NoteEnd(socket, why)
	}
}

// socket is where root is served on this machine; empty: nowhere.
func (o *Options) socket(credentials *pki.Credentials) string {
	if o.RunDir == "" {
		return ""
	}
	return api.SocketPath(o.RunDir, credentials.Identity().Name)
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
func (c *controller) run(ctx context.Context, ports *bootstrap.Ports, page consolePage, cancel context.CancelCauseFunc) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.credentials.Watch(ctx, c.log) })
	for _, job := range c.jobs() {
		running.Go(func() { job(ctx) })
	}
	if page.console != nil {
		running.Go(func() {
			if err := page.console.Serve(ctx, page.listener, c.source()); err != nil {
				cancel(err)
			}
		})
	}
	ports.Open(bootstrap.Handlers{Nodes: c.routes(), Local: c.localRoutes(), Metrics: c.report.Metrics(), Joining: c.enrolment.Serve}, c.report.Obstacles)
	running.Go(func() { readiness.Log(ctx, c.log, c.report.Obstacles) })
	running.Go(func() { systemd.Serve(ctx, c.log, func() { c.report.Status() }, "nodes go on with what they know") })
	defer c.log.Info("stopped: nodes go on with what they know", "name", c.name)
	c.log.Info("serving", "name", c.name, "address", ports.Address(), "version", c.version)
	if c.ready != nil {
		c.ready(ports.Address().String())
	}
	var failed <-chan error
	if c.store.cluster != nil {
		failed = c.store.cluster.Failed()
	}
	select {
	case err := <-failed:
		cancel(err)
	case <-ctx.Done():
	}
}

// jobs are what goes on until the context of each ends.
func (c *controller) jobs() []func(context.Context) {
	return []func(context.Context){c.mirror.Follow, c.publish, c.revoked.Run, c.election.Run, c.engine.Run, c.findings.Run, c.age, c.balancers.Run, c.ring.Run, c.tickets.Run, c.sources.Run}
}

// publish gives every new state to those who work with it.
func (c *controller) publish(ctx context.Context) {
	c.mirror.Publish(ctx, func(view *engine.View) {
		c.engine.SetState(view)
		c.hub.Topics.SetState(view)
	})
}

// age lets removed servers be forgotten. Without a load balancer nobody knows whether anybody speaks to them.
func (c *controller) age(ctx context.Context) {
	periodic.Every(ctx, agePeriod, func(now time.Time) {
		blind := len(c.hub.Nodes.LoadBalancers()) == 0
		err := c.ager.Age(ctx, now, c.election.Leads, func(service string, id uint16) uint64 {
			if blind {
				return uint64(now.UnixNano())
			}
			return c.engine.Activity(service, id)
		})
		if err != nil && ctx.Err() == nil {
			c.log.Warn("removed servers are not forgotten yet", "error", err)
		}
		if err := c.revoked.Keep(ctx, now); err != nil && ctx.Err() == nil {
			c.log.Warn("the list of revoked certificates is not kept", "error", err)
		}
		if err := c.enrolment.Keep(ctx, now); err != nil && ctx.Err() == nil {
			c.log.Warn("what is over of invitations and nodes stays in the store", "error", err)
		}
	})
}

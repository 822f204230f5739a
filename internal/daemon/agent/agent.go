// Package agent is the process `ballast agent`: it keeps a server's data path equal to what the fleet has this host serve.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/agent/acceptance"
	"github.com/ballast-lb/ballast/internal/daemon/agent/answers"
	"github.com/ballast-lb/ballast/internal/daemon/agent/desired"
	"github.com/ballast-lb/ballast/internal/daemon/agent/gateways"
	"github.com/ballast-lb/ballast/internal/daemon/agent/keys"
	"github.com/ballast-lb/ballast/internal/daemon/agent/loadreport"
	"github.com/ballast-lb/ballast/internal/daemon/agent/programs"
	"github.com/ballast-lb/ballast/internal/daemon/agent/serving"
	"github.com/ballast-lb/ballast/internal/daemon/agent/translations"
	"github.com/ballast-lb/ballast/internal/daemon/agent/tunnels"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/devices"
	"github.com/ballast-lb/ballast/internal/daemon/exits"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/daemon/periodic"
	"github.com/ballast-lb/ballast/internal/daemon/readiness"
	"github.com/ballast-lb/ballast/internal/daemon/renewal"
	"github.com/ballast-lb/ballast/internal/daemon/revocations"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/daemon/systemd"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/linux/resident"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

// agePeriod is how often what only time changes is checked.
const agePeriod = time.Second

// Options are what `ballast agent` is started with.
type Options struct {
	// Config is the path of the configuration file that the agent runs by; empty: it runs by Controllers.
	Config      string
	Controllers []string // host:port of whom it reports to: controllers, or load balancers that run by a file
	TLSDir      string   // certificates, with Controllers
	Name        string   // of this host in its certificate
	Cgroup      string   // directory of the cgroup whose CPU is the server's; empty: all of the host
	StateDir    string   // without Config: where the last state is kept

	Server     string // name of this host's server entries; empty: those whose address is this host's
	Instance   string
	Interfaces []string // devices that packets come in by; empty: those of the servers' addresses. Those that answers leave by are added, without XDP
	XDPMode    attach.XDPMode
	// TunnelsSettle is sources.Settle for tests; zero: as it is.
	TunnelsSettle time.Duration
	RunDir        string
	QUICGroup     string // who may read the files of connection ids; empty: root alone
	TicketGroup   string // the same of session tickets
	KeepTracking  bool   // services with session tls stay in connection tracking: no table of nftables is made
	TicketKey     string // file with the key of session tickets; empty: one of this host's own
	MaxTranslated uint32 // connections whose addresses the host translates, as server.Limits has them
	GatewayTable  uint32 // routing table with the default route of network functions; 0: their route is not ours
	Metrics       string // TCP address for Prometheus, empty: none
	Version       string
	Log           *slog.Logger
}

// parts are what an agent is made of. Each is safe for concurrent use.
type parts struct {
	options     Options
	log         *slog.Logger
	credentials *pki.Credentials   // with Controllers
	client      *nodeclient.Client // nil: without controllers
	revocations *revocations.List  // nil: it runs by a file
	renewal     *renewal.Renewal   // as well

	path       *server.Server
	reconciler *guarded[*reconciler] // who has it may take tunnels, not the other way round
	tunnels    *guarded[*tunnels.Tunnels]
	keys       *keys.Reporter
	load       *loadreport.Reporter
	accepts    *acceptance.Loads
	answers    *answers.Monitor
	translated *translations.Monitor
	gateways   *gateways.Gateways
}

// daemon is safe for concurrent use.
type daemon struct {
	parts
	reports reports
	reading sync.Mutex // held while the file is read and applied; others' locks only while it is applied
}

// Run runs until ctx ends. The data path stays attached and works on; Detach removes it.
func Run(ctx context.Context, o Options) (err error) {
	resident.Spare()
	if o.Config != "" {
		path, err := filepath.Abs(o.Config) // status shows it
		if err != nil {
			return err
		}
		o.Config = path
	}
	listener, err := api.Listen(api.SocketPath(o.RunDir, o.Instance))
	if err != nil {
		return err
	}
	defer listener.Close()
	defer func() { api.NoteEnd(api.SocketPath(o.RunDir, o.Instance), err) }()
	d := &daemon{parts: parts{options: o, log: o.Log}}
	d.reports = reports{&d.parts}
	if len(o.Controllers) > 0 { // before anything is attached
		if d.credentials, err = pki.Load(o.TLSDir, o.Name, pki.Agent); err != nil {
			return err
		}
		if o.Config == "" {
			if d.revocations, err = revocations.Load(d.credentials, statefile.Agent(o.StateDir, o.Instance), pki.Agent, o.Log); err != nil {
				return err
			}
			d.renewal = renewal.New(d.credentials, o.Controllers, o.Log)
		}
		d.client = nodeclient.NewClient(d.clientOptions())
	}
	if len(o.Interfaces) > 0 {
		if _, err := devices.Find(o.Interfaces); err != nil {
			return err
		}
	}
	metrics, err := listen.TCP("serve metrics", o.Metrics)
	if err != nil {
		return err
	}
	if err := instance.CheckRole(o.RunDir, o.Instance, pki.Agent); err != nil {
		return err
	}
	undo, err := attach.BeforeStart(instance.PinDir(o.RunDir, o.Instance))
	if err != nil {
		return err
	}
	if err := d.start(); err != nil {
		return errors.Join(err, undo())
	}
	defer func() { o.Log.Info("stopped: "+instance.Leaves, "instance", o.Instance) }()
	defer d.path.Close()

	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	if err := netdev.Watch(ctx, func(bool) { d.reconciler.Do((*reconciler).networkChanged) }); err != nil {
		return errors.Join(err, undo())
	}
	running.Go(func() {
		periodic.Every(ctx, devices.Period, func(now time.Time) { d.reconciler.Do(func(r *reconciler) { r.checkDevices(now) }) })
	})
	running.Go(func() { periodic.Every(ctx, agePeriod, d.ageTunnels) })
	running.Go(func() { d.accepts.Run(ctx) })
	if o.GatewayTable != 0 {
		d.followGateways(time.Now())
		running.Go(func() { d.gateways.Run(ctx) })
		running.Go(func() { periodic.Every(ctx, agePeriod, d.followGateways) })
	}
	running.Go(func() { periodic.Every(ctx, agePeriod, d.answers.Observe) })
	running.Go(func() {
		d.translated.Look(time.Now())
		periodic.Every(ctx, translations.Period, d.translated.Look)
	})
	running.Go(func() { readiness.Log(ctx, o.Log, d.reports.health) })
	if d.credentials != nil {
		running.Go(func() { d.credentials.Watch(ctx, o.Log) })
	}
	if d.renewal != nil {
		running.Go(func() { d.renewal.Run(ctx) })
	}
	if o.Config != "" {
		if err := configfile.Watch(ctx, o.Config, o.Log, func() { d.reload(configfile.Taking{}) }); err != nil {
			return errors.Join(err, undo())
		}
		d.reload(configfile.Taking{}) // it may have changed before it was watched
	}
	if d.client != nil {
		d.runReports(ctx, &running)
	}
	if metrics != nil {
		running.Go(func() { listen.ServeMetrics(ctx, d.log, metrics, d.reports.metricsHandler(), d.reports.health) })
	}
	d.log.Info("started", "instance", o.Instance, "services", d.reports.status().Services)
	running.Go(func() { systemd.Serve(ctx, o.Log, d.awaitProgress, instance.Leaves) })
	if err := resident.GiveBack(); err != nil { // nobody else needs what BPF objects were parsed in
		d.log.Warn("memory of the start is kept", "error", err)
	}
	return d.routes().Serve(ctx, listener)
}

// Detach removes the data path that an agent has left. Where that breaks connections, confirm is asked first: nothing is removed if it returns an error,
// which Detach returns.
func Detach(o Options, confirm func(harm string) error) error {
	return instance.Detach(o.RunDir, o.Instance, pki.Agent, func(dir string) error {
		living, err := server.Living(dir)
		harm := model.Counted(living, "living connection carries a cookie and breaks", "living connections carry cookies and break")
		if err != nil {
			harm = fmt.Sprintf("living connections that carry cookies break; they could not be counted: %s", err)
		}
		if living > 0 || err != nil {
			if err := confirm(harm); err != nil {
				return err
			}
		}
		return errors.Join(os.RemoveAll(api.IDDir(o.RunDir, o.Instance)), os.RemoveAll(api.TicketDir(o.RunDir, o.Instance)),
			detachFeatures(o.RunDir, o.Instance, o.Log))
	})
}

// Living counts the connections that carry cookies, by what an agent has left pinned; none where nothing is pinned.
func Living(runDir, name string) (uint64, error) {
	dir := instance.PinDir(runDir, name)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return server.Living(dir)
}

// start brings the data path up.
func (d *daemon) start() (err error) {
	o, pins := &d.options, instance.PinDir(d.options.RunDir, d.options.Instance)
	t := tunnels.New(o.Config != "", o.TunnelsSettle, o.Log)
	d.tunnels = guard(t)
	r := &reconciler{log: o.Log, configPath: o.Config, credentials: d.credentials, instance: o.Instance, tunnels: d.tunnels,
		desired: desired.State{Saved: statefile.File{Path: statefile.Agent(o.StateDir, o.Instance), Log: o.Log}}}
	file, err := r.firstFile(t)
	if err != nil {
		return err
	}
	if d.client != nil {
		d.client.Resume(r.desired.Revision)
	}
	if err := instance.Prepare(o.RunDir, o.Log); err != nil {
		return err
	}
	if d.gateways, err = gateways.New(gateways.Options{Table: o.GatewayTable, RunDir: o.RunDir, Instance: o.Instance, Log: o.Log}); err != nil {
		return err
	}
	if d.path, err = server.Open(pins, server.Limits{Translated: o.MaxTranslated}); err != nil {
		return err
	}
	if r.features, err = newFeatures(o, d.path); err != nil {
		return errors.Join(err, d.path.Close())
	}
	d.keys, d.load, d.accepts, d.answers = r.features.keys, r.features.load, r.features.accepts, answers.New(d.path, o.Log)
	d.translated = translations.New(d.path, o.MaxTranslated, o.Log)
	r.path = d.path
	r.serving = serving.New(serving.Options{Name: o.Server, ByFile: o.Config != "", Path: d.path, Log: o.Log})
	r.programs = programs.Programs{Attachments: devices.Attachments{Hooks: d.path, Mode: o.XDPMode, Log: o.Log}, Interfaces: o.Interfaces,
		Exits: exits.Devices{Hooks: d.path, Log: o.Log, Busy: true}}
	if err = t.Open(d.path); err == nil {
		err = r.start(file, pin.Any(pins))
	}
	if err != nil {
		return errors.Join(err, d.path.Close())
	}
	d.reconciler = guard(r)
	return nil
}

// clientOptions are of the streams to controllers or, with a file, to load balancers that take load reports.
func (d *daemon) clientOptions() nodeclient.Options {
	o := nodeclient.Options{Controllers: d.options.Controllers, Credentials: d.credentials, Log: d.log, Hello: d.hello}
	if d.options.Config != "" { // a load balancer does not know what this server is
		o.Peers = []pki.Role{pki.LB}
		return o
	}
	o.OnState, o.OnSources, o.OnLeft, o.OnRevocations = d.onState, d.onSources, d.onLeft, d.revocations.Take
	return o
}

// runReports reports until ctx ends and, without a file, follows controllers.
func (d *daemon) runReports(ctx context.Context, running *sync.WaitGroup) {
	running.Go(func() { d.client.Run(ctx) })
	running.Go(func() { readiness.Report(ctx, d.client.Send, d.reports.condition) })
	if d.options.Config == "" {
		configfile.OnHangup(ctx, d.client.Rejoin)
		running.Go(func() { periodic.Every(ctx, agePeriod, d.resyncIfNeeded) })
	}
	running.Go(func() { d.load.Run(ctx, d.client.Send) })
	running.Go(func() { d.keys.Run(ctx, d.client.Send) })
}

// awaitProgress waits until it could change something: whoever keeps others from that for good is stuck.
func (d *daemon) awaitProgress() {
	d.reconciler.Do(func(*reconciler) {})
	d.tunnels.Do(func(*tunnels.Tunnels) {})
}

func (d *daemon) reload(how configfile.Taking) (changed api.Changed, err error) {
	d.reading.Lock()
	defer d.reading.Unlock()
	file, err := configfile.Load(d.options.Config, d.log)
	d.reconciler.Do(func(r *reconciler) { changed, err = r.reload(file, err, how) })
	return changed, err
}

// onState takes a state of a controller, unless another one has sent a newer one. One that knows no service may know none that this host is a
// server of: going on marking does no harm.
func (d *daemon) onState(controller string, state *ballastv1.State) {
	d.client.Follow(controller, state, func() (err error) {
		d.reconciler.Do(func(r *reconciler) { err = r.adopt(controller, state) })
		return err
	})
}

// resyncIfNeeded asks controllers for everything where that is needed, and saves what could not be saved.
func (d *daemon) resyncIfNeeded(now time.Time) {
	d.client.ResyncIfNeeded(now, func() {})
	d.reconciler.Do(func(r *reconciler) {
		if r.desired.Saved.Unsaved() != "" {
			r.save()
		}
	})
}

// changeTunnels lets change find out whose tunnels are taken, and keeps that.
func (d *daemon) changeTunnels(change func(*tunnels.Tunnels) (changed bool)) {
	changed := false
	d.tunnels.Do(func(t *tunnels.Tunnels) { changed = change(t) })
	d.reconciler.Do(func(r *reconciler) {
		if changed && r.known { // else there is no state to keep it with
			r.save()
		}
	})
}

func (d *daemon) onSources(controller string, message *ballastv1.TunnelSources) {
	d.changeTunnels(func(t *tunnels.Tunnels) bool { return t.Update(controller, message) })
}

func (d *daemon) onLeft(controller string) {
	d.tunnels.Do(func(t *tunnels.Tunnels) { t.Leave(controller, time.Now()) })
}

func (d *daemon) ageTunnels(now time.Time) {
	d.changeTunnels(func(t *tunnels.Tunnels) bool { return t.Age(now) })
}

// followGateways tells which load balancers a network function may send to.
func (d *daemon) followGateways(time.Time) {
	var own, balancers []netip.Addr
	d.reconciler.Do(func(r *reconciler) { own = r.serving.Functions() })
	d.tunnels.Do(func(t *tunnels.Tunnels) { balancers = t.From() })
	d.gateways.Set(own, balancers)
}

func (d *daemon) hello() *ballastv1.Hello {
	hello := &ballastv1.Hello{Protocol: api.ControlProtocol, Role: string(pki.Agent), Name: d.credentials.Identity().Name, Version: d.options.Version}
	if local, err := netdev.LocalAddresses(); err == nil {
		for _, address := range local {
			hello.Addresses = append(hello.Addresses, address.String())
		}
	}
	return hello
}

func (d *daemon) routes() *api.Server {
	s := api.NewServer()
	s.Handle("GET "+api.PathStatus, func(*http.Request) (any, error) {
		status := d.reports.status()
		status.Problems = append(status.Problems, d.load.Unmeasured()...) // controllers have it from the report of load
		return status, nil
	})
	s.Handle("GET "+api.PathRunning, func(*http.Request) (fleet any, err error) {
		d.reconciler.Do(func(r *reconciler) { fleet = r.serving.Applied.Fleet.Clone() })
		return fleet, nil
	})
	s.Handle("GET "+api.PathCounters, func(*http.Request) (any, error) { return d.reports.counters() })
	s.HandleChange(http.MethodPost, api.PathConfigAction, func(r *http.Request, dryRun bool) (any, error) {
		if r.PathValue("action") != "reload" {
			return nil, api.BadRequest("this is an agent: what can be asked of it is `ballast ctl config reload`")
		}
		if d.options.Config == "" {
			return configfile.AskedOfControllers(dryRun, d.client)
		}
		return configfile.Asked(r, dryRun, d.log, d.reload)
	})
	s.HandleRaw("GET "+api.PathMetrics, d.reports.metricsHandler())
	s.Otherwise("this is an agent: `ballast ctl` status, counters, metrics and config reload work here; the rest is asked at a load balancer, or with --controller")
	return s
}

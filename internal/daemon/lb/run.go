// A load balancer from its start to its end.
package lb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/devices"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/daemon/lb/bgp"
	"github.com/ballast-lb/ballast/internal/daemon/lb/carried"
	"github.com/ballast-lb/ballast/internal/daemon/lb/checks"
	"github.com/ballast-lb/ballast/internal/daemon/lb/clocks"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/decider"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/daemon/lb/explain"
	"github.com/ballast-lb/ballast/internal/daemon/lb/flowlog"
	"github.com/ballast-lb/ballast/internal/daemon/lb/l2"
	"github.com/ballast-lb/ballast/internal/daemon/lb/liveness"
	"github.com/ballast-lb/ballast/internal/daemon/lb/replication"
	"github.com/ballast-lb/ballast/internal/daemon/lb/sweeper"
	"github.com/ballast-lb/ballast/internal/daemon/lb/synproxy"
	"github.com/ballast-lb/ballast/internal/daemon/lb/tracing"
	"github.com/ballast-lb/ballast/internal/daemon/lb/traffic"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/daemon/periodic"
	"github.com/ballast-lb/ballast/internal/daemon/readiness"
	"github.com/ballast-lb/ballast/internal/daemon/renewal"
	"github.com/ballast-lb/ballast/internal/daemon/revocations"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/daemon/systemd"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/linux/resident"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Run runs until ctx ends. The data path stays attached and forwards on; instance.Detach removes it.
func Run(ctx context.Context, o Options) (err error) {
	resident.Spare()
	if o.Config != "" {
		path, err := filepath.Abs(o.Config) // it is shown in status
		if err != nil {
			return err
		}
		o.Config = path
	}
	if err := resolveListeners(&o); err != nil {
		return err
	}
	listener, err := api.Listen(api.SocketPath(o.RunDir, o.Instance))
	if err != nil {
		return err
	}
	defer listener.Close()
	defer func() { api.NoteEnd(api.SocketPath(o.RunDir, o.Instance), err) }()
	lb, err := newLifecycle(o)
	if err != nil {
		return err
	}
	if len(o.Controllers) > 0 || o.Listen != "" { // before anything is attached
		if lb.credentials, err = pki.Load(o.TLSDir, o.Name, pki.LB); err != nil {
			return err
		}
	}
	if len(o.Controllers) > 0 {
		if lb.revocations, err = revocations.Load(lb.credentials, statefile.LB(o.StateDir, o.Instance), pki.LB, o.Log); err != nil {
			return err
		}
		lb.renewal = renewal.New(lb.credentials, o.Controllers, o.Log)
	}
	if lb.name, err = nodeName(o.Name, lb.credentials); err != nil {
		return err
	}
	flows, err := flowlog.Open(o.FlowLog, lb.name, o.Log)
	if err != nil {
		return err
	}
	if o.ExecChecks != "" {
		if err := check.CheckDir(o.ExecChecks); err != nil {
			return err
		}
	}
	interfaces, err := devices.Find(o.Interfaces)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(interfaces, func(device *net.Interface) bool { return device.Flags&net.FlagLoopback == 0 }) {
		return errors.New("attach to the loopback device alone: no client's packet comes in by it: name the devices that they do come in by with --interface")
	}
	if err := errors.Join(listen.Try("serve metrics", o.Metrics), listen.Try("listen for agents", o.Listen)); err != nil {
		return err
	}
	if lb.console, err = lb.newConsole(); err != nil {
		return err
	}
	lb.newDecider()
	if err := instance.CheckRole(o.RunDir, o.Instance, pki.LB); err != nil {
		return err
	}
	undo, err := attach.BeforeStart(lb.pins())
	if err != nil {
		return err
	}
	if err := lb.start(interfaces, flows); err != nil {
		return errors.Join(err, undo())
	}
	defer func() { o.Log.Info("stopped: "+instance.Leaves, "instance", o.Instance) }()
	defer func() { // what is under way is finished, and nothing begins any more: the process ends here
		lb.changes.mutex.Lock()
		lb.programs.mutex.Lock()
		lb.tables.Stop()
	}()
	return lb.run(ctx, listener, undo)
}

// lifecycle is a load balancer that starts, runs and ends.
type lifecycle struct{ *changes }

func newLifecycle(o Options) (*lifecycle, error) {
	peer, err := replication.ParseAddress(o.PeerAddress)
	if err != nil {
		return nil, err
	}
	attachments := devices.Attachments{Mode: o.XDPMode, Log: o.Log}
	lb := &lifecycle{&changes{parts: &parts{options: o, log: o.Log, peerAddress: peer, programs: programs{attachments: attachments}, clocks: clocks.Clocks{Log: o.Log}}}}
	lb.owned.kept = statefile.File{Path: statefile.LB(o.StateDir, o.Instance), Log: o.Log}
	lb.outcome.Store(&outcome{})
	return lb, nil
}

// newDecider is called before there is anything to decide.
func (lb *lifecycle) newDecider() {
	o := checks.Options{
		Instance: lb.options.Instance, Dir: lb.pins(), OnRequest: lb.options.Config == "", Log: lb.log,
		// Who writes the file is root here anyway. Who tells controllers what to check need not be.
		Exec:   check.Exec{Dir: lb.options.ExecChecks, Any: lb.options.ExecChecks == "" && lb.options.Config != ""},
		Sender: checkSender{lb.parts}, Refuses: lb.programs.exits.Refuses,
	}
	if lb.options.Config == "" {
		r := remote{lb.changes}
		lb.controllers, o.Report = r.newClient(), r.reportHealth
	} else {
		lb.local = decider.NewLocal(decider.Options{Weigh: lb.reweigh, Count: lb.count, Loads: lb.load, Unhealthy: lb.onUnhealthy, Off: lb.onDrained, Log: lb.log})
		o.Report = lb.local.Health
	}
	lb.checks = checks.New(o)
}

// nodeName is what the node is called in the fleet: as in its certificate if it has one.
func nodeName(given string, credentials *pki.Credentials) (string, error) {
	switch {
	case credentials != nil:
		return credentials.Identity().Name, nil
	case given != "":
		return given, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find this node's name: %w: use --name", err)
	}
	return name, nil
}

// start brings the data path up: tables first, program last, so that no packet meets an empty table.
func (lb *lifecycle) start(interfaces []*net.Interface, flows *flowlog.Log) error {
	if err := instance.Prepare(lb.options.RunDir, lb.log); err != nil {
		return err
	}
	lb.owned.state = &desired.State{Self: lb.name}
	remedy := statefile.StartFromFile
	if lb.controllers != nil {
		remedy = statefile.StartFromControllers
	}
	saved, err := loadState(&lb.owned.kept, remedy)
	if err != nil {
		return err
	}
	forwards := pin.Any(lb.pins()) // what an earlier process has left
	waits := lb.controllers != nil && saved == nil && forwards
	var file *config.File
	if lb.local != nil {
		if file, err = configfile.Load(lb.options.Config, lb.log); err != nil {
			return err
		}
	}
	limits, err := limitsFor(lb.pins(), lb.options.Limits, file, saved)
	if err != nil {
		return err
	}
	lb.tables, err = dataplane.Open(dataplane.Options{Dir: lb.pins(), Limits: limits, Self: lb.name, NoCookie: lb.clocks.NoCookie, Log: lb.log})
	if err != nil {
		return err
	}
	if lb.controllers != nil {
		if lb.replication, err = (remote{lb.changes}).newReplication(saved); err != nil {
			return errors.Join(err, lb.tables.Path().Close())
		}
	}
	responder := liveness.Options{Pins: lb.pins(), Tables: lb.tables, Stop: lb.programs.cannotForward, Log: lb.log}
	judge := &carried.Judge{Stop: lb.programs.cannotForward, Refuses: lb.programs.exits.Refuses}
	announcer := bgp.Options{Tables: lb.tables, Carried: judge, Save: lb.saveState, TookOver: forwards, Log: lb.log}
	segment := l2.Options{Name: lb.name, Pins: lb.pins(), Tables: lb.tables, Carried: judge, Receives: lb.programs.receives, Save: lb.saveState, Log: lb.log}
	if saved != nil {
		announcer.Kept, segment.Kept = saved.BGP, saved.L2
	}
	if lb.replication != nil {
		judge.Ring, responder.Ring = lb.replication.NotReady, lb.replication.NotReady
	}
	lb.liveness = liveness.New(responder)
	announcer.BFD = lb.liveness
	lb.bgp = bgp.New(announcer)
	if lb.l2, err = l2.New(segment); err != nil {
		return errors.Join(err, lb.tables.Path().Close())
	}
	lb.sweeper = sweeper.New(sweeper.Options{Tables: lb.tables, Flows: flows, Save: lb.saveState, Log: lb.log})
	lb.synProxy = synproxy.New(lb.tables, lb.log)
	lb.tracer = tracing.New(lb.tables, lb.log)
	lb.explainer = explain.New(lb.name, lb.tables, lb.programs.devices)
	lb.programs.attachments.Hooks = lb.tables.Path()
	lb.programs.exits.Hooks, lb.programs.exits.Log = lb.tables.Path(), lb.log
	if saved != nil {
		lb.resume(saved)
	}
	if waits {
		lb.programs.pending = interfaces
		lb.log.Warn("no state is known: what an earlier process left is left unchanged until a controller says what to do", "file", lb.owned.kept.Path)
		return nil
	}
	err = lb.change(func(c changing) error { return c.begin(file) })
	if err == nil {
		err = lb.attach(interfaces, devices.BusyPatience)
	}
	if err != nil {
		return errors.Join(err, lb.tables.Path().Close())
	}
	return nil
}

// resume goes on with what an earlier process has saved.
func (lb *lifecycle) resume(saved *savedState) {
	lb.owned.state = saved.state(lb.name)
	lb.clocks.Load(saved.TakesPart)
	lb.sweeper.Load(saved.Suspects)
	if lb.controllers != nil {
		lb.owned.revision = saved.Revision
		lb.controllers.Resume(saved.Revision)
		lb.change(func(c changing) error {
			c.resumeAlone(saved)
			return nil
		})
	}
}

// run does all that goes on until ctx ends.
func (lb *lifecycle) run(ctx context.Context, listener net.Listener, undo func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { lb.age(ctx, &running) })
	running.Go(func() { lb.tables.Start(ctx) })
	running.Go(func() { lb.bgp.Run(ctx) })
	running.Go(func() { lb.l2.Run(ctx) })
	running.Go(func() { lb.liveness.Run(ctx) })
	running.Go(func() { lb.explainer.Run(ctx) })
	running.Go(func() { lb.tracer.Run(ctx) })
	running.Go(func() { lb.synProxy.Run(ctx) })
	running.Go(func() { readiness.Log(ctx, lb.log, observer{lb.changes}.notReady) })
	if lb.credentials != nil {
		running.Go(func() { lb.credentials.Watch(ctx, lb.log) })
	}
	if lb.renewal != nil {
		running.Go(func() { lb.renewal.Run(ctx) })
	}
	running.Go(func() { lb.clocks.Probe(ctx, lb.tables, lb.onClocks) })
	reclaimed := lb.sweeper.Watch() // before anybody knows that we are here
	running.Go(func() { lb.sweeper.Run(ctx, reclaimed) })
	metrics, err := listen.TCP("serve metrics", lb.options.Metrics)
	var agents net.Listener
	if err == nil {
		agents, err = listen.TCP("listen for agents", lb.options.Listen)
	}
	if err == nil {
		err = lb.startConsole(ctx, &running)
	}
	if err == nil {
		err = netdev.Watch(ctx, lb.networkChanged)
	}
	if err == nil && len(lb.tables.Now().Pathless) > 0 {
		lb.networkChanged(true) // neighbours may have answered before anybody listened
	}
	if err == nil {
		err = netdev.WatchTooBig(ctx, lb.pathNarrowed)
	}
	if err == nil {
		err = lb.startDecider(ctx, &running, agents)
	}
	if err != nil {
		return errors.Join(err, undo())
	}
	serve := endpoints{observer{lb.changes}}
	if metrics != nil {
		running.Go(func() { listen.ServeMetrics(ctx, lb.log, metrics, serve.metricsHandler(), serve.notReady) })
	}
	running.Go(func() { systemd.Serve(ctx, lb.log, lb.takeTurns, instance.Leaves) })
	if err := resident.GiveBack(); err != nil { // nobody else needs what BPF objects were parsed in
		lb.log.Warn("memory of the start is kept", "error", err)
	}
	return serve.routes().Serve(ctx, listener)
}

// startDecider starts what decides, and what tells it of this node, until ctx ends.
func (lb *lifecycle) startDecider(ctx context.Context, running *sync.WaitGroup, agents net.Listener) error {
	r := remote{lb.changes}
	report := r.reportTraffic
	if lb.local != nil {
		if err := configfile.Watch(ctx, lb.options.Config, lb.log, func() { lb.Reload(configfile.Taking{}) }); err != nil {
			return err
		}
		if taken := lb.outcome.Load().config; config.Changed(taken.Path, taken.SHA256) { // between the first look and the watch
			lb.Reload(configfile.Taking{})
		}
		running.Go(func() { lb.local.Run(ctx) })
		report = lb.local.Traffic
	} else {
		running.Go(func() { lb.controllers.Run(ctx) })
		running.Go(func() { lb.replication.Run(ctx) })
		running.Go(func() { readiness.Report(ctx, lb.controllers.Send, observer{lb.changes}.condition) })
		configfile.OnHangup(ctx, lb.controllers.Rejoin)
	}
	if agents != nil {
		running.Go(func() { lb.local.Serve(ctx, agents, lb.credentials, lb.options.Version) })
	}
	running.Go(func() { traffic.Report(ctx, lb.tables, report) })
	running.Go(func() { lb.checks.Run(ctx) })
	return nil
}

// takeTurns waits until it could change something, and see to the programs: whoever keeps others from that for good is stuck.
func (lb *lifecycle) takeTurns() {
	lb.change(func(changing) error { return nil })
	lb.programs.status()
}

// networkChanged follows neighbours, and unless only they have changed, devices and routes.
func (lb *lifecycle) networkChanged(onlyNeighbours bool) {
	lb.programs.look(time.Now())
	if onlyNeighbours {
		lb.follow(lb.tables.RefreshNeighbours)
		return
	}
	lb.followPaths()
}

// pathNarrowed follows what routers say about the way to a server.
func (lb *lifecycle) pathNarrowed(found netdev.TooBig) {
	if err := lb.tables.Narrow(found); err != nil {
		lb.log.Error("next hops not updated", "error", err)
	}
}

// age does what only time brings: forgetting silent removed servers, letting load estimates decay, filling the trace's budget.
func (lb *lifecycle) age(ctx context.Context, running *sync.WaitGroup) {
	periodic.Every(ctx, agePeriod, func(time.Time) {
		now := time.Now()
		if lb.controllers != nil {
			lb.controllers.ResyncIfNeeded(now, lb.tables.ForgetTerms)
		}
		lb.tracer.Refill()
		if err := lb.tables.Path().FollowClock(); err != nil {
			lb.log.Error("cannot read the offset of CLOCK_TAI", "error", err)
		}
		if err := lb.tables.Probe(lb.checks.Silent()); err != nil {
			lb.log.Warn("next hops of servers that do not answer are not confirmed", "error", err)
		}
		lb.programs.look(now)
		if lb.tables.HereHasChanged() {
			lb.followPaths()
		} else {
			lb.programs.follow(lb.tables.Now().Paths, now)
		}
		lb.change(func(c changing) error {
			c.age(now)
			c.lookAlone(ctx, running, now)
			return nil
		})
	})
}

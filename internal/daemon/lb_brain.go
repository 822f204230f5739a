package daemon

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/daemon/periodic"
	"github.com/ballast-lb/ballast/internal/daemon/readiness"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
)

// Who decides for this node: controllers, or an engine of its own when it runs by a file.

// newDecider is called before there is anything to decide.
func (lb *LB) newDecider() {
	if lb.options.Config == "" {
		lb.remote = &remote{lb.newClient(), map[string][]string{}}
	} else {
		lb.engine = engine.New(engine.Options{
			Weigh: lb.onWeights, Down: lb.judged, Off: lb.drained, Log: lb.log,
		})
		lb.engine.SetLoadBalancers([]string{self})
		lb.engine.Lead(uint64(time.Now().UnixNano()), func(string) bool { return true })
	}
	options := check.Options{
		NewVerdict: func() check.Verdict { return &health.Server{} },
		Timing:     check.Timing{First: health.First, Next: health.Next},
		Changed:    func(r check.Result) { lb.tellHealth([]check.Result{r}) },
		// Who writes the file is root here anyway. Who tells controllers what to check need not be.
		Exec: check.Exec{Dir: lb.options.ExecChecks, Any: lb.options.ExecChecks == "" && lb.remote == nil},
	}
	checks, err := checkroute.Open(instance.PinDir(lb.options.RunDir, lb.options.Instance))
	if err != nil {
		lb.log.Warn("health checks go directly to the servers, not through the tunnel", "error", err)
	} else {
		lb.checks = checks
		options.Dial = func(ctx context.Context, t check.Target, port uint16) (net.Conn, check.Remarks, error) {
			return checks.Dial(ctx, checkroute.Key{Service: t.Service, ID: t.ID}, port)
		}
	}
	lb.prober = check.New(options)
}

// self is the name of this load balancer in its own engine.
const self = "self"

// startDecider starts what decides, until ctx ends.
func (lb *LB) startDecider(ctx context.Context, running *sync.WaitGroup, agents net.Listener) error {
	if lb.remote != nil {
		running.Go(func() { lb.remote.Run(ctx) })
		running.Go(func() { readiness.Report(ctx, lb.remote.Send, lb.condition) })
		configfile.OnHangup(ctx, lb.remote.Rejoin)
	} else {
		if err := configfile.Watch(ctx, lb.options.Config, func() { lb.Reload(false) }); err != nil {
			return err
		}
		lb.Reload(false) // what was edited between the first look and the watch
		running.Go(func() { lb.engine.Run(ctx) })
		running.Go(func() { lb.carryOutJudgements(ctx) })
	}
	if agents != nil {
		lb.listenForAgents(ctx, running, agents)
	}
	running.Go(func() { lb.reportTraffic(ctx) })
	running.Go(func() { lb.reportHealth(ctx) })
	running.Go(func() {
		lb.prober.Run(ctx)
		if lb.checks != nil {
			lb.checks.Close()
		}
	})
	return nil
}

// listenForAgents takes agents' load reports for the engine of this process.
func (lb *LB) listenForAgents(ctx context.Context, running *sync.WaitGroup, listener net.Listener) {
	served := hub.New(hub.Options{
		Name: lb.credentials.Identity().Name, Version: lb.options.Version, Reports: lb.engine, Log: lb.log,
	})
	mux := http.NewServeMux()
	mux.Handle(served.Handler())
	running.Go(func() {
		if err := hub.Serve(ctx, listener, lb.credentials.Server(), mux); err != nil && ctx.Err() == nil {
			lb.log.Error("the listener for agents has ended", "error", err)
		}
	})
}

// judgements are what the engine of this process has found and the tables do not say yet.
type judgements struct {
	wake  chan struct{}
	mutex sync.Mutex
	by    map[string]node.Unhealthy // service
}

// judged takes who is unhealthy from the engine of this process. A host that fails may be a server of hundreds of services, and tables
// take their time: what is found meanwhile is carried out together.
func (lb *LB) judged(service string, down, cut []uint16) {
	j := &lb.judgements
	j.mutex.Lock()
	j.by[service] = node.Unhealthy{Down: down, Cut: cut}
	j.mutex.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// carryOutJudgements does as judged until ctx ends. What fails is judged again by the engine.
func (lb *LB) carryOutJudgements(ctx context.Context) {
	j := &lb.judgements
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.wake:
		}
		lb.mu.Lock()
		j.mutex.Lock()
		found := j.by
		j.by = map[string]node.Unhealthy{}
		j.mutex.Unlock()
		lb.setUnhealthy(found)
		lb.mu.Unlock()
	}
}

// setUnhealthy replaces who is unhealthy of some services. Callers hold mu.
func (lb *LB) setUnhealthy(found map[string]node.Unhealthy) {
	before := lb.unhealthy
	lb.unhealthy = maps.Clone(before)
	for service, sick := range found {
		if delete(lb.unhealthy, service); len(sick.Down) > 0 {
			lb.unhealthy[service] = sick
		}
	}
	if err := lb.carryOut(lb.node); err != nil {
		lb.unhealthy = before
		lb.log.Error("health of servers not applied", "services", len(found), "error", err)
		return
	}
	for _, service := range slices.Sorted(maps.Keys(found)) {
		var names []string
		for _, id := range found[service].Down {
			names = append(names, lb.serverName(service, id))
		}
		lb.log.Info("health of servers", "service", service, "unhealthy", names)
	}
}

// drained switches a server off: the deadline of its drain has passed.
func (lb *LB) drained(service string, id uint16) {
	_, _, err := lb.change(context.Background(), false, node.EndDrain(service, id, time.Now()))
	if err != nil {
		lb.log.Error("drained server not switched off", "service", service, "id", id, "error", err)
	}
}

// view is the desired state as the engine of this process sees it. Callers hold mu.
func (lb *LB) view() *engine.View {
	view := &engine.View{Revision: lb.generation, Keys: lb.node.Running.Keys, Second: lb.secondTierView()}
	for _, s := range lb.node.Running.Services {
		if lb.sendsToNodes(&s) {
			s.Health = model.Health{} // its servers are for the second tier to judge
		}
		sick := lb.unhealthy[s.Name]
		view.Services = append(view.Services, engine.ServiceView{
			Service: s, Removed: lb.node.Lingering(s.Name), Past: lb.node.Past[s.Name], Down: sick.Down, Cut: sick.Cut,
		})
	}
	return view
}

// setChecks gives the prober the servers and nodes that this node is to check. Callers hold mu.
func (lb *LB) setChecks() {
	var wanted map[string]bool
	if lb.remote != nil {
		wanted = lb.remote.wantsChecks()
	}
	var targets []check.Target
	ways := map[checkroute.Key]checkroute.Target{}
	if second := lb.secondTier(); second != nil && (lb.remote == nil || wanted[second.Name]) {
		targets = check.Targets(second)
	}
	for i := range lb.node.Running.Services {
		s := &lb.node.Running.Services[i]
		if lb.sendsToNodes(s) || lb.remote != nil && !wanted[s.Name] {
			continue
		}
		owns := lb.ownsOf(s)
		for _, target := range check.Targets(s) {
			targets = append(targets, target)
			ways[checkroute.Key{Service: s.Name, ID: target.ID}] = checkroute.Target{
				VIP: s.VIP, Server: target.Address, Forward: s.Forward, Return: s.Return, Path: lb.paths.Known[target.Address],
				Ports: checkedPorts(s), Owns: owns(target.ID), Placed: s.Dispatch.Placed(),
			}
		}
	}
	if lb.checks != nil {
		if err := lb.checks.Set(ways); err != nil {
			lb.log.Warn("health checks do not go through the tunnel", "error", err)
		}
	}
	lb.prober.Set(targets)
	refused := lb.prober.Refused()
	for _, line := range refused {
		if !slices.Contains(lb.refused, line) {
			lb.log.Warn(line)
		}
	}
	lb.refused = refused
}

// ownsOf returns, for a server's id, what recognises its cookie in its timestamps; nil: the service's servers write none. Callers hold mu.
func (lb *LB) ownsOf(s *model.Service) func(id uint16) func(client netip.AddrPort, port uint16, timestamp uint32) bool {
	if !serversMark(s) {
		return func(uint16) func(netip.AddrPort, uint16, uint32) bool { return nil }
	}
	read := cookie.Reader(&lb.node.Running.Keys, s)
	return func(id uint16) func(netip.AddrPort, uint16, uint32) bool {
		return func(client netip.AddrPort, port uint16, timestamp uint32) bool {
			found, known := read(client, port, timestamp)
			return known && found == id
		}
	}
}

// checkedPorts are those that servers' agents unpack TCP for.
func checkedPorts(s *model.Service) []uint16 {
	if s.Protocol != model.ProtocolTCP {
		return []uint16{}
	}
	return s.Ports
}

// reportHealth says everything from time to time, besides every change at once, until ctx ends.
func (lb *LB) reportHealth(ctx context.Context) {
	periodic.Every(ctx, health.RepeatInterval, func(time.Time) {
		if results := lb.prober.All(); len(results) > 0 {
			lb.tellHealth(results)
		}
	})
}

// tellHealth gives what checks found to the engine in this process, or to the controllers.
func (lb *LB) tellHealth(results []check.Result) {
	servers := make([]engine.ServerHealth, len(results))
	for i, r := range results {
		servers[i] = engine.ServerHealth{Service: r.Service, ID: r.ID, Healthy: r.Healthy, Detail: r.Detail}
		if r.Healthy && r.Cookie == check.CookieMissing {
			servers[i].Detail = checkroute.ErrNoTimestamps.Error()
		}
		if servers[i].Detail != "" && r.Straight != "" {
			servers[i].Detail += " (direct: " + r.Straight + ")"
		}
	}
	if lb.engine != nil {
		lb.engine.Health(self, servers)
		return
	}
	report := &ballastv1.HealthReport{Servers: make([]*ballastv1.ServerHealth, len(servers))}
	for i, s := range servers {
		report.Servers[i] = &ballastv1.ServerHealth{Service: s.Service, Id: uint32(s.ID), Healthy: s.Healthy, Detail: s.Detail}
	}
	lb.remote.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Health{Health: report}})
}

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/configfile"
	"github.com/ballast-lb/ballast/internal/daemon/periodic"
	"github.com/ballast-lb/ballast/internal/daemon/readiness"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/linux/load"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

// saved is the state file of an agent that runs by controllers.
type saved struct {
	Revision uint64          `json:"revision"`
	Running  statefile.Fleet `json:"running"`
	Removed  []node.Removed  `json:"removed"`
	// TunnelsFrom are the addresses of load balancers; Limited: tunnels of others are dropped.
	TunnelsFrom []netip.Addr `json:"tunnels_from,omitempty"`
	Limited     bool         `json:"limited,omitempty"`
}

// Kept returns the state file of an instance, none if there is no such file.
func Kept(stateDir, instance string) []statefile.Kept {
	var last saved
	return statefile.Examine("agent", statefile.Agent(stateDir, instance), &last, &last.Running)
}

// firstFile is what the agent starts with: its file, or what controllers last said.
func (a *agent) firstFile() (*config.File, error) {
	if a.options.Config != "" {
		a.stateKnown = true
		return configfile.Load(a.options.Config, a.log)
	}
	var last saved
	found, err := a.kept.Load(&last, statefile.StartFromControllers)
	if err != nil {
		return nil, err
	}
	a.stateKnown = found // else when a controller has spoken
	a.revision = last.Revision
	a.client.Resume(a.revision)
	a.sources.Limited = last.Limited
	a.sources.Know(last.TunnelsFrom, time.Now())
	a.remote = node.Node{Running: model.Fleet(last.Running), Removed: last.Removed}
	return a.fileOfState("the last state"), nil
}

// fileOfState makes a configuration of what controllers say. Removed servers still take part: their connections have not ended. One at the
// address of a server that is there, by another id, does not: its packets come to this host anyway, and get the id of today.
func (a *agent) fileOfState(path string) *config.File {
	fleet := a.remote.Running.Clone()
	for _, r := range a.remote.Removed {
		here := func(s model.Server) bool { return s.Address == r.Server.Address }
		if s := fleet.Service(r.Service); s != nil && !slices.ContainsFunc(s.Servers, here) {
			server := r.Server
			server.State = model.StateDraining
			s.Servers = append(s.Servers, server)
		}
	}
	return &config.File{Path: path, Fleet: fleet}
}

// newClient returns streams that begin with Run.
func (a *agent) newClient() *nodeclient.Client {
	o := nodeclient.Options{Controllers: a.options.Controllers, TLS: a.credentials.Client(), Log: a.log, Hello: a.hello}
	if a.options.Config != "" { // a load balancer may take load reports, but not say what this server is
		o.TLS = a.credentials.Client(pki.LB)
		return nodeclient.NewClient(o)
	}
	o.OnState, o.OnSources = a.onState, a.onSources
	o.OnLeft = func(controller string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.sources.Leave(controller, time.Now())
	}
	return nodeclient.NewClient(o)
}

// runRemote reports the host's load until ctx ends and, without a file, runs by what controllers say.
func (a *agent) runRemote(ctx context.Context, running *sync.WaitGroup) {
	running.Go(func() { a.client.Run(ctx) })
	running.Go(func() { readiness.Report(ctx, a.client.Send, a.condition) })
	if a.options.Config == "" {
		configfile.OnHangup(ctx, a.client.Rejoin)
		running.Go(func() { periodic.Every(ctx, agePeriod, a.resyncIfNeeded) })
	}
	running.Go(func() { a.sampler.Run(ctx, a.reportInterval, a.reportLoad) })
	running.Go(func() { a.reportKeys(ctx) })
}

func (a *agent) hello() *ballastv1.Hello {
	hello := &ballastv1.Hello{Protocol: api.ControlProtocol, Role: string(pki.Agent), Name: a.credentials.Identity().Name, Version: a.options.Version}
	if local, err := netdev.LocalAddresses(); err == nil {
		for _, address := range local {
			hello.Addresses = append(hello.Addresses, address.String())
		}
	}
	return hello
}

// onState takes what a controller says, unless another one has said newer things. One that knows no service may know none that this host is a
// server of: going on marking does no harm.
func (a *agent) onState(controller string, state *ballastv1.State) {
	a.client.Follow(controller, state, func() error { return a.adopt(controller, state) })
}

// adopt carries a state out, or goes on with the old one.
func (a *agent) adopt(controller string, state *ballastv1.State) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting && nodeclient.KnowsNothing(state) {
		return nodeclient.ErrKnowsNothing
	}
	before := a.remote
	next, err := nodeclient.State{Node: before}.After(state)
	if err == nil {
		a.remote = next.Node
		err = a.apply(a.fileOfState("controller " + controller))
	}
	if err != nil {
		a.remote = before
		a.file.Error = fmt.Sprintf("state %d of controller %s: %s", state.Revision, controller, err)
		return err
	}
	a.revision = state.Revision
	a.keepState()
	a.attachLate()
	return nil
}

// attachLate attaches what may have had to wait until it was known what this host serves. Where it fails it wants to be called again.
// Callers hold mu.
func (a *agent) attachLate() {
	a.stateKnown = true
	err := a.attach()
	if err == nil && a.waiting {
		err = a.path.Attached()
	}
	if err == nil {
		a.waiting, a.unattached = false, ""
		return
	}
	if a.unattached != err.Error() {
		a.log.Error("devices not attached", "error", err)
	}
	a.unattached = err.Error()
}

// keepState saves what controllers say. Callers hold mu.
func (a *agent) keepState() {
	a.kept.Save(saved{a.revision, statefile.Fleet(a.remote.Running), a.remote.Removed, a.tunnels.from, a.sources.Limited})
}

// resyncIfNeeded asks controllers for everything where that is needed, and saves what could not be saved.
func (a *agent) resyncIfNeeded(now time.Time) {
	a.client.ResyncIfNeeded(now, func() {})
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept.Unsaved() != "" {
		a.keepState()
	}
}

// sampled lists the services whose connections on this host are counted.
func (a *agent) sampled(fleet *model.Fleet, local []netip.Addr) (services []load.Service) {
	mine := a.mine(local)
	for i := range fleet.Services {
		s := &fleet.Services[i]
		for j := range s.Servers {
			server := &s.Servers[j]
			if !mine(server) {
				continue
			}
			at := load.Service{Name: s.Name, Protocol: s.Protocol, VIP: s.VIP, Ports: s.Ports}
			if s.Forward == model.ForwardNAT {
				at.VIP = server.Address
				if server.Port != 0 {
					at.Ports = []uint16{server.Port}
				}
			}
			services = append(services, at)
			break
		}
	}
	return services
}

// reportInterval is the shortest that a service of this host asks for.
func (a *agent) reportInterval() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	interval := time.Second
	mine := a.mine(a.local)
	for i := range a.applied.Fleet.Services {
		s := &a.applied.Fleet.Services[i]
		if slices.ContainsFunc(s.Servers, func(server model.Server) bool { return mine(&server) }) {
			interval = min(interval, time.Duration(s.Load.Interval))
		}
	}
	return interval
}

func (a *agent) reportLoad(report load.Report) {
	a.mu.Lock()
	a.unmeasured = report.Unavailable
	a.mu.Unlock()
	message := &ballastv1.LoadReport{Cpus: float32(report.CPUs), Unavailable: report.Unavailable}
	if report.HasCPU {
		permille := uint32(report.CPUPermille)
		message.CpuPermille = &permille
	}
	for _, s := range report.Services {
		message.Services = append(message.Services, &ballastv1.ServiceLoad{
			Service: s.Service, Connections: s.Connections, AcceptQueue: s.AcceptQueue, MeanQueue: float32(s.MeanQueue),
		})
	}
	a.client.Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Load{Load: message}})
}

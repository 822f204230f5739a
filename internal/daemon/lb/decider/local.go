// Package decider decides in this process what controllers would: who is unhealthy, and how servers are weighed.
package decider

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/traffic"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Options are whom a decider tells what it decides.
type Options struct {
	// JudgeOnly: who is unhealthy is all that is asked.
	JudgeOnly bool
	Weigh     func(service string, update *follow.Update)
	Count     func(service string, counts *follow.Counts)
	Loads     func(service string, loads *follow.Loads)
	Unhealthy func(found map[string]fleet.Unhealthy) // by service; may wait. What fails is found again
	Off       func(service string, id uint16)        // the deadline of the server's drain has passed
	Log       *slog.Logger
}

// Local decides for this load balancer alone. All methods are safe for concurrent use.
type Local struct {
	options Options
	engine  *engine.Engine

	wake  chan struct{}
	mutex sync.Mutex
	found map[string]fleet.Unhealthy // by service; not passed on yet
}

// self is the name of this load balancer in its own engine.
const self = "self"

// NewLocal returns a decider that knows of no service yet.
func NewLocal(o Options) *Local {
	l := &Local{options: o, wake: make(chan struct{}, 1), found: map[string]fleet.Unhealthy{}}
	l.engine = engine.New(engine.Options{Weigh: o.Weigh, Down: l.judged, Off: o.Off, Log: o.Log,
		// How much of the traffic other load balancers by the file get is not known here.
		Count: func(service string, counts *follow.Counts, _ map[string]float64) { o.Count(service, counts) },
		Loads: func(service string, loads *follow.Loads, _ map[string]float64) { o.Loads(service, loads) }})
	l.engine.SetLoadBalancers([]string{self})
	l.engine.Lead(uint64(time.Now().UnixNano()), func(string) bool { return true })
	return l
}

// Run decides until ctx ends.
func (l *Local) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { l.engine.Run(ctx) })
	for {
		select {
		case <-ctx.Done():
			running.Wait()
			return
		case <-l.wake:
		}
		l.mutex.Lock()
		found := l.found
		l.found = map[string]fleet.Unhealthy{}
		l.mutex.Unlock()
		l.options.Unhealthy(found)
	}
}

// judged takes who is unhealthy from the engine. A host that fails may be a server of hundreds of services, and tables take their time:
// what is found meanwhile is passed on together.
func (l *Local) judged(service string, found fleet.Unhealthy) {
	l.mutex.Lock()
	l.found[service] = found
	l.mutex.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Serve takes agents' load reports until ctx ends.
func (l *Local) Serve(ctx context.Context, listener net.Listener, credentials *pki.Credentials, version string) {
	served := hub.New(hub.Options{Name: credentials.Identity().Name, Version: version, Reports: l.engine, Log: l.options.Log})
	mux := http.NewServeMux()
	mux.Handle(served.Handler())
	if err := hub.Serve(ctx, listener, credentials, nil, mux, nil); err != nil && ctx.Err() == nil {
		l.options.Log.Error("the listener for agents has ended", "error", err)
	}
}

// Follow decides about the services that there are now.
func (l *Local) Follow(now *dataplane.Snapshot) {
	view := &engine.View{Revision: now.Generation, Keys: now.Running.Keys}
	if second := now.SecondTier(); second != nil {
		view.Second = &engine.ServiceView{Service: *second, Down: now.Unhealthy[model.SecondTierName].Down,
			Kept: now.Unhealthy[model.SecondTierName].Kept}
	}
	for _, s := range now.Running.Services {
		if now.SendsToNodes(&s) {
			s.Health = model.Health{} // its servers are for the second tier to judge
		}
		if l.options.JudgeOnly {
			s.Dispatch, s.Load = model.DispatchRR, model.Load{}
		}
		down := now.Unhealthy[s.Name]
		view.Services = append(view.Services, engine.ServiceView{
			Service: s, Removed: now.Lingering(s.Name), Past: now.Past[s.Name], Down: down.Down, Kept: down.Kept, Cut: down.Cut,
		})
	}
	l.engine.SetState(view)
}

// Servers tells what is known of the servers of a service; see engine.Servers.
func (l *Local) Servers(service string) []engine.ServerStatus { return l.engine.Servers(service) }

// Health takes what checks found out.
func (l *Local) Health(servers []engine.ServerHealth) { l.engine.Health(self, servers) }

// Traffic takes what this load balancer saw of servers.
func (l *Local) Traffic(seen []traffic.Server) {
	servers := make([]engine.ServerTraffic, len(seen))
	for i, s := range seen {
		servers[i] = engine.ServerTraffic{Service: s.Service, ID: s.ID,
			Seen:  balance.Seen{Connections: s.Connections, Closed: s.Closed, Packets: s.Packets, Bytes: s.Bytes, Estimate: s.Estimate},
			Start: engine.Start{Tenths: s.Start.Tenths, Whole: s.Start.Whole}}
	}
	l.engine.Traffic(self, servers)
}

// Package control measures the control plane: a real controller with its store, real streams of load balancers and agents by mutual
// TLS on loopback, and what Spotlight V-C counts: the traffic of weights, and the time until a change is everywhere.
//
// The controller runs in this process and all its peers in a child of it, so that CPU time and memory of the process are the
// controller's own. Peers do what nodes do with what they are told, but for the maps of the data path, which one of the load balancers
// has (all would need as many machines). Everybody shares the CPUs of one machine: times are longer than on many.
package control

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/controller"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Options say how large a fleet is.
type Options struct {
	Servers       int           // of one service that follows their load; an agent each
	LoadBalancers int           // streams
	Rate          float64       // reports of each agent, and updates of weights, a second
	Duration      time.Duration // of the steady part
	Events        int           // servers that are added, one after the other
	Services      int           // that there are in the end, as all but one come at once; 0: none come
	ServersEach   int           // of these
	Maps          bool          // one load balancer writes real BPF maps (root)
	Peers         []string      // command that runs RunPeers with its standard input and output
	Progress      func(format string, args ...any)
	Log           *slog.Logger // of the controller
}

// Result is what was measured. Times are in milliseconds; latencies are from the call of the fleet API to the last peer.
type Result struct {
	Servers       int     `json:"servers"`
	LoadBalancers int     `json:"load_balancers"`
	Rate          float64 `json:"rate_hz"`
	Seconds       float64 `json:"seconds"`

	JoinedMS float64 `json:"joined_ms"` // from the start of all peers at once until each is connected and has the state

	ControllerCPU   float64 `json:"controller_cpu"` // CPUs in use on average, its etcd included
	ControllerRSS   int64   `json:"controller_rss_bytes"`
	PeersCPU        float64 `json:"peers_cpu"`
	ReportsPerSec   float64 `json:"reports_per_second"` // that agents and load balancers sent
	UpdatesPerSec   float64 `json:"updates_per_second"` // of weights that load balancers got, together
	WeightsPerSec   float64 `json:"weights_per_second"` // single weights in these
	BytesToLBs      float64 `json:"bytes_to_lbs_per_second"`
	BytesFromLBs    float64 `json:"bytes_from_lbs_per_second"`
	BytesToAgents   float64 `json:"bytes_to_agents_per_second"`
	BytesFromAgents float64 `json:"bytes_from_agents_per_second"`
	// PacketsToLBs adds headers of Ethernet, IPv4 and TCP to BytesToLBs, as if every update were sent in packets of its own: it is
	// to be compared with SpotlightBytes, a packet of 64 bytes for every server and load balancer at the rate (V-C: 256nl at 4 Hz).
	PacketsToLBs   float64 `json:"packet_bytes_to_lbs_per_second"`
	SpotlightBytes float64 `json:"spotlight_bytes_per_second"`

	Events   int      `json:"scale_events"`
	EventCPU float64  `json:"controller_cpu_ms_per_event"` // what an event costs the controller, beside the steady part
	Applied  *Latency `json:"applied_ms"`                  // a server added -> the last load balancer has said Applied
	Written  *Latency `json:"maps_ms"`                     // -> the maps of the one that has them are written; null: none has
	Weighed  *Latency `json:"weighed_ms"`                  // -> the last load balancer has got an update with its weight
	Reweigh  *Latency `json:"reweigh_us"`                  // microseconds to write one update of weights into maps; null: none are written

	StreamsLost int64 `json:"streams_lost"` // on a machine with too few CPUs peers may be silent for too long; they join again

	Mass *Mass `json:"mass,omitempty"`
}

// Mass is what happens when many services come at once.
type Mass struct {
	Services    int     `json:"services"`
	ServersEach int     `json:"servers_each"`
	PlanMS      float64 `json:"plan_ms"`      // one load balancer by itself: what to write is worked out (plan.Tables.Update)
	WriteMS     float64 `json:"write_ms"`     // and written into maps; 0 without maps
	CommittedMS float64 `json:"committed_ms"` // in the fleet: until the API has answered
	StreamsMS   float64 `json:"streams_ms"`   // until all load balancers know them
	LoadedMS    float64 `json:"loaded_ms"`    // until the one that has maps has written them; 0 without maps
}

// Run measures. It takes about Duration + Events * (1 / Rate + 50 ms) + 20 s.
func Run(ctx context.Context, o Options) (result *Result, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "ballast-bench-control-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	o.Progress("making %d certificates", o.Servers+o.LoadBalancers+2)
	if err := certify(ctx, dir, &o); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	ready := make(chan string, 1)
	go func() {
		ended <- controller.Run(ctx, controller.Options{
			Name: controllerName, Listen: "127.0.0.1:0", TLSDir: dir, DataDir: filepath.Join(dir, "data"), Timing: fleet.DefaultTiming,
			Version: "bench", Log: o.Log, Ready: func(address string) { ready <- address },
		})
	}()
	defer func() {
		cancel()
		if failed := <-ended; err == nil && failed != nil {
			err = failed
		}
	}()
	b := &bench{options: &o, result: &Result{Servers: o.Servers, LoadBalancers: o.LoadBalancers, Rate: o.Rate}}
	select {
	case address := <-ready:
		if b.fleet, err = operator(dir, address); err != nil {
			return nil, err
		}
		if b.peers, err = startPeers(ctx, &o, dir, address); err != nil {
			return nil, err
		}
	case err := <-ended:
		ended <- nil
		return nil, err
	}
	defer b.peers.stop()
	return b.result, script.Try(func() {
		b.alone(ctx)
		b.start(ctx)
		b.steady(ctx)
		b.scale(ctx)
		b.mass(ctx)
	})
}

func (o *Options) check() error {
	if o.Servers < 1 || o.LoadBalancers < 1 || o.Rate <= 0 || o.Duration <= 0 || o.Events < 1 || o.Services < 0 || o.Services == 1 || o.Services > 0 && o.ServersEach < 1 {
		return fmt.Errorf("measure %d servers, %d load balancers, %v reports a second for %v, %d events, %d services of %d: nothing to measure: give positive numbers",
			o.Servers, o.LoadBalancers, o.Rate, o.Duration, o.Events, o.Services, o.ServersEach)
	}
	return nil
}

// operator is the client that changes the fleet.
func operator(dir, address string) (ballastv1connect.FleetClient, error) {
	credentials, err := pki.Load(dir, operatorName, pki.Ctl)
	if err != nil {
		return nil, err
	}
	return api.NewFleetClient([]string{address}, credentials.Client()), nil
}

// bench is one measurement under way.
type bench struct {
	options *Options
	fleet   ballastv1connect.FleetClient
	peers   *peers
	result  *Result
}

func (b *bench) ask(ctx context.Context, r request) answer { return script.Must(b.peers.ask(ctx, r)) }

// alone has one load balancer plan and write many services while nothing else runs.
func (b *bench) alone(ctx context.Context) {
	o := b.options
	if o.Services == 0 {
		return
	}
	o.Progress("planning %d services of %d servers", o.Services, o.ServersEach)
	planned := b.ask(ctx, request{Do: askPlan})
	b.result.Mass = &Mass{Services: o.Services, ServersEach: o.ServersEach, PlanMS: milliseconds(planned.Plan), WriteMS: milliseconds(planned.Write)}
}

// start brings the fleet up.
func (b *bench) start(ctx context.Context) {
	o := b.options
	b.apply(ctx, followed(o.Servers, o.Rate))
	o.Progress("starting %d agents and %d load balancers", o.Servers, o.LoadBalancers)
	began := time.Now()
	joined := b.ask(ctx, request{Do: askJoin})
	b.result.JoinedMS = milliseconds(joined.At.Sub(began))
}

// apply makes the fleet what is said, once the controller knows its store.
func (b *bench) apply(ctx context.Context, services ...*ballastv1.Service) {
	for deadline := time.Now().Add(patience); ; {
		_, err := b.fleet.Apply(ctx, &ballastv1.ApplyRequest{Services: services, Force: true})
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			script.Check(err)
			return
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
		}
	}
}

// steady measures what the fleet costs while nothing but its load changes.
func (b *bench) steady(ctx context.Context) {
	o, r := b.options, b.result
	b.ask(ctx, request{Do: askReport})
	script.Check(wait(ctx, warmUp))
	o.Progress("measuring for %v", o.Duration)
	before := b.ask(ctx, request{Do: askCount})
	cpu, _ := used()
	began := time.Now()
	script.Check(wait(ctx, o.Duration))
	after := b.ask(ctx, request{Do: askCount})
	took := time.Since(began).Seconds()
	now, rss := used()
	r.Seconds, r.ControllerCPU, r.ControllerRSS = took, (now-cpu).Seconds()/took, rss
	r.PeersCPU = (after.CPU - before.CPU).Seconds() / took
	c := after.Counts.less(&before.Counts)
	r.ReportsPerSec, r.UpdatesPerSec, r.WeightsPerSec = float64(c.Reports)/took, float64(c.Updates)/took, float64(c.Weights)/took
	r.BytesToLBs, r.BytesFromLBs = float64(c.LBs.Read)/took, float64(c.LBs.Written)/took
	r.BytesToAgents, r.BytesFromAgents = float64(c.Agents.Read)/took, float64(c.Agents.Written)/took
	r.PacketsToLBs = r.BytesToLBs + headerBytes*(r.UpdatesPerSec+r.BytesToLBs/segmentBytes)
	r.SpotlightBytes = spotlightPacket * o.Rate * float64(o.Servers) * float64(o.LoadBalancers)
}

// scale adds one server after the other.
func (b *bench) scale(ctx context.Context) {
	o, r := b.options, b.result
	var applied, written, weighed []float64
	first := time.Now()
	cpu, _ := used()
	for i := range o.Events {
		o.Progress("adding server %d of %d", i+1, o.Events)
		server := serverOf(followedServers, o.Servers+i)
		b.ask(ctx, request{Do: askExpect, ID: server.Id})
		began := time.Now()
		script.Must(b.fleet.AddServer(ctx, &ballastv1.AddServerRequest{Service: followedName, Server: server}))
		seen := b.ask(ctx, request{Do: askSeen})
		applied = append(applied, milliseconds(seen.Applied.Sub(began)))
		weighed = append(weighed, milliseconds(seen.Weighed.Sub(began)))
		if o.Maps {
			written = append(written, milliseconds(seen.Written.Sub(began)))
		}
	}
	now, _ := used()
	r.EventCPU = milliseconds(now-cpu-time.Duration(r.ControllerCPU*float64(time.Since(first)))) / float64(o.Events)
	counted := b.ask(ctx, request{Do: askCount})
	r.StreamsLost = counted.Counts.Lost
	r.Events, r.Applied, r.Written, r.Weighed, r.Reweigh = o.Events, latencyOf(applied), latencyOf(written), latencyOf(weighed), latencyOf(counted.Reweigh)
}

// mass has many services come at once.
func (b *bench) mass(ctx context.Context) {
	o := b.options
	if o.Services == 0 {
		return
	}
	o.Progress("adding %d services of %d servers", o.Services-1, o.ServersEach)
	b.ask(ctx, request{Do: askExpect, Services: o.Services})
	services := slices.Concat([]*ballastv1.Service{followed(o.Servers+o.Events, o.Rate)}, massServices(o.Services-1, o.ServersEach))
	began := time.Now()
	script.Must(b.fleet.Apply(ctx, &ballastv1.ApplyRequest{Services: services, Force: true}))
	m := b.result.Mass
	m.CommittedMS = milliseconds(time.Since(began))
	seen := b.ask(ctx, request{Do: askSeen})
	if m.StreamsMS = milliseconds(seen.Applied.Sub(began)); o.Maps {
		m.LoadedMS = milliseconds(seen.Written.Sub(began))
	}
}

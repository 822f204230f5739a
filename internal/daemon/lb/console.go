// What the load balancer's console shows.
package lb

import (
	"context"
	"sync"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/console"
	"github.com/ballast-lb/ballast/internal/daemon/lb/report"
	"github.com/ballast-lb/ballast/internal/daemon/listen"
	"github.com/ballast-lb/ballast/internal/pki"
)

// newConsole returns nil without one.
func (lb *lifecycle) newConsole() (*console.Console, error) {
	o := &lb.options
	if o.Console == "" {
		return nil, nil
	}
	load := func() (*pki.Credentials, error) {
		if lb.credentials != nil {
			return lb.credentials, nil
		}
		return pki.Load(o.TLSDir, o.Name, pki.LB)
	}
	served, err := console.New(console.Options{Address: o.Console, TokenFile: o.ConsoleToken, Load: load, Log: lb.log})
	if err != nil {
		return nil, err
	}
	return served, listen.Try("serve the console", o.Console)
}

// startConsole serves it until ctx ends.
func (lb *lifecycle) startConsole(ctx context.Context, running *sync.WaitGroup) error {
	if lb.console == nil {
		return nil
	}
	listener, err := console.Listen(lb.options.Console)
	if err != nil {
		return err
	}
	running.Go(func() {
		if err := lb.console.Serve(ctx, listener, console.Source{View: fleetAPI{observer{lb.changes}}.view, Sample: lb.sample}); err != nil && ctx.Err() == nil {
			lb.log.Error("the console has ended", "error", err)
		}
	})
	return nil
}

// view is what is known here. What load balancers count they count by themselves: by controllers, connections elsewhere are not among these.
func (f fleetAPI) view(ctx context.Context) console.View {
	v := console.View{Role: string(pki.LB), Name: f.name, Version: f.options.Version, NoChanges: "A load balancer keeps no history: who changed what is in its log."}
	now := f.tables.Now()
	v.Revision = now.Generation
	counters, err := report.Counters(now)
	v.Verdicts = counters.Counters
	problem := func(err error) {
		if err != nil {
			v.Problems = append(v.Problems, err.Error())
		}
	}
	problem(err)
	v.Nodes, err = f.Nodes(ctx)
	problem(err)
	services, err := report.Services(now, f.clocks.NoCookie)
	problem(err)
	var judged []*ballastv1.ServerStatus
	for i := range services {
		s := &services[i]
		dispatched, total := map[uint32]uint64{}, uint64(0)
		for j := range s.Servers {
			dispatched[uint32(s.Servers[j].ID)] = s.Servers[j].Connections
			total += s.Servers[j].Connections
		}
		for j := range s.Nodes {
			total += s.Nodes[j].Connections
		}
		v.Services = append(v.Services, console.Service{Service: s.Service, Dispatched: total})
		of := f.judge(now, s)
		judged = append(judged, of...)
		for _, server := range of {
			v.Servers = append(v.Servers, console.Server{ServerStatus: server, Dispatched: dispatched[server.Server.Id]})
		}
	}
	f.complete(judged)
	return v
}

// sample is of this load balancer alone.
func (lb *lifecycle) sample(ctx context.Context) ([]console.Sampled, error) {
	found := console.Sampled{Node: lb.name}
	var err error
	if found.Sample, err = lb.tracer.Shares(ctx); err != nil {
		found.Missing = err.Error()
	}
	return []console.Sampled{found}, ctx.Err()
}

// What the controller's console shows.
package controller

import (
	"context"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/daemon/console"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// consolePage is the console and where it is served; the zero value: there is none.
type consolePage struct {
	console  *console.Console
	listener net.Listener
}

func listenForConsole(o *Options, credentials *pki.Credentials) (consolePage, error) {
	if o.Console == "" {
		return consolePage{}, nil
	}
	served, err := console.New(console.Options{Address: o.Console, TokenFile: o.ConsoleToken, Log: o.Log,
		Load: func() (*pki.Credentials, error) { return credentials, nil }})
	if err != nil {
		return consolePage{}, err
	}
	listener, err := console.Listen(o.Console)
	return consolePage{served, listener}, err
}

func (p consolePage) close() {
	if p.listener != nil {
		p.listener.Close() // also what has ended by itself
	}
}

// source is what the console shows.
func (c *controller) source() console.Source {
	return console.Source{View: c.view, Diff: c.diff, Sample: c.sample}
}

// view is what is known here, whether or not the store confirms it: the nodes' problems say if it cannot be reached.
func (c *controller) view(ctx context.Context) console.View {
	v := console.View{Role: string(pki.Controller), Name: c.name, Version: c.version}
	running, revision, err := c.mirror.Fleet()
	if err == nil {
		v.Nodes, err = c.fleet.Nodes(ctx)
	}
	if err == nil {
		v.Changes, err = c.fleet.History(ctx)
	}
	if err != nil {
		v.Problems = append(c.report.Obstacles(), err.Error())
	}
	v.Problems = append(v.Problems, c.report.FleetProblems()...)
	v.Revision = revision
	dispatched := map[string]uint64{}
	servers := c.engine.Servers("")
	c.engine.MarkAgents(servers, c.hub.Nodes.Agents())
	for i, s := range hub.ServersToProto(servers) {
		v.Servers = append(v.Servers, console.Server{ServerStatus: s, Dispatched: servers[i].Dispatched})
		dispatched[s.Service] += servers[i].Dispatched
	}
	for _, s := range running.Services {
		v.Services = append(v.Services, console.Service{Service: s, Dispatched: dispatched[s.Name]})
	}
	return v
}

// diff is what changed from one revision to another, as this controller knows both; 0: now.
func (c *controller) diff(_ context.Context, from, to uint64) ([]string, error) {
	now := c.mirror.Now()
	if now == nil {
		return nil, desired.ErrUnknown
	}
	var fleets [2]model.Fleet
	for i, revision := range []uint64{from, to} {
		if revision == 0 {
			fleets[i] = fleet.OfPeople(now.Fleet())
			continue
		}
		var err error
		if fleets[i], err = now.FleetAt(revision, time.Now()); err != nil {
			return nil, err
		}
	}
	return fleet.Diff(fleets[0], fleets[1]), nil
}

// sample asks all load balancers; those that are not connected are missing.
func (c *controller) sample(ctx context.Context) (found []console.Sampled, err error) {
	answers, err := c.hub.Nodes.Sample(ctx)
	for _, a := range answers {
		found = append(found, console.Sampled{Node: a.Explanation.Node, Missing: a.Explanation.Error, Sample: a.Sample})
	}
	for _, name := range c.fleet.LostLoadBalancers() {
		found = append(found, console.Sampled{Node: name, Missing: "is not connected to this controller"})
	}
	slices.SortStableFunc(found, func(a, b console.Sampled) int { return strings.Compare(a.Node, b.Node) })
	return found, err
}

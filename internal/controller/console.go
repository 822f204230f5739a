// What the controller's console shows.
package controller

import (
	"context"
	"net"

	"github.com/ballast-lb/ballast/internal/daemon/console"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
)

// listenForConsole returns what the console is served by; nil without one.
func listenForConsole(o *Options, credentials *pki.Credentials) (*console.Console, net.Listener, error) {
	if o.Console == "" {
		return nil, nil, nil
	}
	served, err := console.New(console.Options{Address: o.Console, TokenFile: o.ConsoleToken, Log: o.Log,
		Load: func() (*pki.Credentials, error) { return credentials, nil }})
	if err != nil {
		return nil, nil, err
	}
	listener, err := console.Listen(o.Console)
	return served, listener, err
}

// view is what is known here, whether or not the store confirms it: the nodes' problems say if it cannot be reached.
func (c *controller) view(ctx context.Context) console.View {
	v := console.View{Role: string(pki.Controller), Name: c.name, Version: c.options.Version}
	f := fleetOf{c}
	fleet, revision, err := c.mirror.Fleet()
	if err == nil {
		v.Nodes, err = f.Nodes(ctx)
	}
	if err == nil {
		v.Changes, err = f.History(ctx)
	}
	if err != nil {
		v.Problems = append(c.obstacles(), err.Error())
	}
	v.Problems = append(v.Problems, c.fleetProblems()...)
	v.Revision = revision
	dispatched := map[string]uint64{}
	servers := c.engine.Servers("")
	c.engine.MarkAgents(servers, c.hub.Nodes.Agents())
	for i, s := range hub.ServersToProto(servers) {
		v.Servers = append(v.Servers, console.Server{ServerStatus: s, Dispatched: servers[i].Dispatched})
		dispatched[s.Service] += servers[i].Dispatched
	}
	for _, s := range fleet.Services {
		v.Services = append(v.Services, console.Service{Service: s, Dispatched: dispatched[s.Name]})
	}
	return v
}

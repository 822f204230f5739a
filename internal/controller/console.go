// What the controller's console shows.
package controller

import (
	"context"
	"net"

	"github.com/ballast-lb/ballast/internal/daemon/console"
	"github.com/ballast-lb/ballast/internal/hub"
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

// view is what is known here, whether or not the store confirms it: the nodes' problems say if it cannot be reached.
func (c *controller) view(ctx context.Context) console.View {
	v := console.View{Role: string(pki.Controller), Name: c.name, Version: c.version}
	fleet, revision, err := c.mirror.Fleet()
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
	for _, s := range fleet.Services {
		v.Services = append(v.Services, console.Service{Service: s, Dispatched: dispatched[s.Name]})
	}
	return v
}

// Package filtered finds tunnels that something on the way drops: servers that answer no check through a tunnel although they run.
package filtered

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// A View is what one load balancer's checks through tunnels see of one server of a service.
type View struct {
	Balancer string
	Server   string
	Address  netip.Addr
	Protocol string     // of the tunnel, as firewalls name it: model.Service.TunnelProtocol
	Source   netip.Addr // of the tunnel; zero: it is not known
	Hop      string     // that packets go by; empty: it is not known
	Answers  bool       // something came back, if only a refusal
}

// A Cause is one reason why several servers answer nothing.
type Cause struct {
	Protocol  string       `json:"protocol"`
	Balancers []string     `json:"load_balancers"`
	Sources   []netip.Addr `json:"sources"`
	Servers   []string     `json:"servers"`
	Addresses []netip.Addr `json:"addresses"` // of the servers
	Running   bool         `json:"running"`   // the servers' agents are connected: the hosts run and are reached otherwise
}

// Problem tells operators of it.
func (c *Cause) Problem() string {
	doubt, sources := "unless all of them are down", "load balancers"
	if c.Running {
		doubt = "their agents are connected"
	}
	if len(c.Sources) > 0 {
		texts := make([]string, len(c.Sources))
		for i, source := range c.Sources {
			texts[i] = source.String()
		}
		sources = model.Some(texts)
	}
	return fmt.Sprintf("%s (%s) answer%s no packet that load balancer%s %s send%s in tunnels: %s, most likely a firewall or the network drops %s: let it pass from %s to servers",
		model.Counted(len(c.Servers), "server", "servers"), model.Some(c.Servers), plural(len(c.Servers) == 1), plural(len(c.Balancers) > 1), model.Some(c.Balancers), plural(len(c.Balancers) == 1),
		doubt, c.Protocol, sources)
}

// plural is the letter that ends a word in one of the two numbers.
func plural(with bool) string {
	if with {
		return "s"
	}
	return ""
}

// tunnel is what may be filtered: from one load balancer to one server.
type tunnel struct {
	balancer string
	address  netip.Addr
	protocol string
}

// silent returns the tunnels by which nothing has come back, with a view of each. Several services may share one: a single answer proves it.
func silent(views []View) map[tunnel]View {
	found, answers := map[tunnel]View{}, map[tunnel]bool{}
	for _, v := range views {
		key := tunnel{v.Balancer, v.Address, v.Protocol}
		found[key], answers[key] = v, answers[key] || v.Answers
	}
	maps.DeleteFunc(found, func(key tunnel, _ View) bool { return answers[key] })
	return found
}

// Seen are the causes by what load balancers see of servers whose agents are connected: the hosts run. The servers that the same load
// balancers get no answer from have one cause.
func Seen(views []View) []Cause {
	type server struct {
		address  netip.Addr
		protocol string
	}
	by := map[server][]View{}
	for key, v := range silent(views) {
		at := server{key.address, key.protocol}
		by[at] = append(by[at], v)
	}
	causes := map[string]*Cause{}
	for at, views := range by {
		slices.SortFunc(views, func(a, b View) int { return cmp.Compare(a.Balancer, b.Balancer) })
		key := at.protocol
		for _, v := range views {
			key += "\n" + v.Balancer
		}
		for _, v := range views {
			add(causes, key, v, true)
		}
	}
	return inOrder(causes)
}

// Alone are the causes by what one load balancer sees, which does not know what runs: where none of several servers answers at all, or none
// of those behind one next hop.
func Alone(views []View) []Cause {
	type group struct{ protocol, hop string }
	all, mute := map[group]map[netip.Addr]bool{}, map[group]map[netip.Addr]bool{}
	note := func(in map[group]map[netip.Addr]bool, v *View) {
		for _, g := range []group{{v.Protocol, ""}, {v.Protocol, v.Hop}} {
			if in[g] == nil {
				in[g] = map[netip.Addr]bool{}
			}
			in[g][v.Address] = true
		}
	}
	for i := range views {
		note(all, &views[i])
	}
	quiet := silent(views)
	for _, v := range quiet {
		note(mute, &v)
	}
	dead := func(g group) bool { return len(mute[g]) > 1 && len(mute[g]) == len(all[g]) }
	causes := map[string]*Cause{}
	for _, v := range quiet {
		switch {
		case dead(group{v.Protocol, ""}):
			add(causes, v.Protocol, v, false)
		case dead(group{v.Protocol, v.Hop}):
			add(causes, v.Protocol+"\n"+v.Hop, v, false)
		}
	}
	return inOrder(causes)
}

func add(causes map[string]*Cause, key string, v View, running bool) {
	c := causes[key]
	if c == nil {
		c = &Cause{Protocol: v.Protocol, Running: running}
		causes[key] = c
	}
	c.Balancers, c.Servers, c.Addresses = append(c.Balancers, v.Balancer), append(c.Servers, v.Server), append(c.Addresses, v.Address)
	if v.Source.IsValid() {
		c.Sources = append(c.Sources, v.Source)
	}
}

func inOrder(causes map[string]*Cause) (list []Cause) {
	for _, key := range slices.Sorted(maps.Keys(causes)) {
		c := causes[key]
		for _, names := range []*[]string{&c.Balancers, &c.Servers} {
			slices.Sort(*names)
			*names = slices.Compact(*names)
		}
		for _, addresses := range []*[]netip.Addr{&c.Sources, &c.Addresses} {
			slices.SortFunc(*addresses, netip.Addr.Compare)
			*addresses = slices.Compact(*addresses)
		}
		list = append(list, *c)
	}
	return list
}

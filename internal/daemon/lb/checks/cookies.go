// What health checks have seen of servers' cookies.
package checks

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/machine/filtered"
	"github.com/ballast-lb/ballast/internal/model"
)

// Problems are what checks do not see, exec checks that are not made here, and servers whose new connections cannot be followed by a cookie.
func (c *Checks) Problems(now *dataplane.Snapshot) (problems []string) {
	c.mutex.Lock()
	problems = slices.Clone(c.refused)
	c.mutex.Unlock()
	if c.routes != nil {
		if err := c.routes.Refused(); err != nil {
			problems = append(problems, fmt.Sprintf("the kernel sends all packets of health checks, so that servers may be healthy that XDP does not reach: %s", err))
		}
	}
	for _, r := range c.prober.All() {
		var what error
		switch {
		case isForeign(&r):
			what = checkroute.ErrForeignCookie
		case r.Cookie == check.CookieMissing:
			what = checkroute.ErrNoTimestamps
		default:
			continue
		}
		problems = append(problems, fmt.Sprintf("service %s: server %s: %s", r.Service, now.ServerName(r.Service, r.ID), what))
	}
	return problems
}

// Filtered are the tunnels that something on the way seems to drop.
func (c *Checks) Filtered(now *dataplane.Snapshot, name string) []filtered.Cause {
	results := c.prober.All()
	if !slices.ContainsFunc(results, func(r check.Result) bool { return r.Direct == "" && r.Unanswered && !r.Healthy }) {
		return nil // describing the paths to all servers takes a system call for each
	}
	servers := map[checkroute.Key]filtered.View{}
	for i := range now.Running.Services {
		s := &now.Running.Services[i]
		protocol := s.TunnelProtocol()
		if protocol == "" || now.SendsToNodes(s) {
			continue
		}
		for j := range s.Servers {
			server := &s.Servers[j]
			path := now.Paths[server.Address]
			servers[checkroute.Key{Service: s.Name, ID: server.ID}] = filtered.View{Balancer: name, Server: server.Name, Address: server.Address, Protocol: protocol,
				Source: path.Source, Hop: now.DescribePath(server.Address)}
		}
	}
	var views []filtered.View
	for _, r := range results {
		v, tunnelled := servers[checkroute.Key{Service: r.Service, ID: r.ID}]
		if !tunnelled || r.Direct != "" {
			continue
		}
		v.Answers = r.Healthy || !r.Unanswered
		views = append(views, v)
	}
	return filtered.Alone(views)
}

// isForeign waits for the verdict, like the server's place in the tables: keys change everywhere, but not at one moment.
func isForeign(r *check.Result) bool { return r.Cookie == check.CookieForeign && !r.Healthy }

// Misreads tells that it is this node whose keys or ids are wrong, empty: it is not.
func (c *Checks) Misreads(now *dataplane.Snapshot) string {
	foreign := readsNobody(c.prober.All(), func(service string, id uint16) (address netip.Addr) {
		if s := now.Running.Service(service); s != nil && serversMark(s) {
			for i := range s.Servers {
				if s.Servers[i].ID == id {
					address = s.Servers[i].Address
				}
			}
		}
		return address
	})
	switch {
	case foreign == 0:
		return ""
	case c.options.OnRequest:
		return fmt.Sprintf("no server's cookie can be read, those of %d are foreign: see `ballast ctl node list`: who is behind the fleet, or no agent of it?", foreign)
	}
	return fmt.Sprintf("no server's cookie can be read, those of %d are foreign: give this load balancer the keys.cookie and the ids that the agents' file has (`%s config reload --force` takes them), or start the agents", foreign, api.Ctl(c.options.Instance))
}

// serversMark tells whether the service's servers write cookies themselves.
func serversMark(s *model.Service) bool {
	return s.Affinity.Cookies() && s.Return == model.ReturnDirect
}

// readsNobody returns how many servers have a cookie that is foreign here, if it is this node that has it wrong: nobody's is read as its own,
// and those of most of the servers that are checked are foreign. 0: no. One server alone may as well be the one that is wrong, and no packet
// can go to another. address is that of a server that writes cookies; invalid: it does not.
func readsNobody(results []check.Result, address func(service string, id uint16) netip.Addr) (foreign int) {
	servers := map[netip.Addr]bool{}
	for i := range results {
		r := &results[i]
		if r.Cookie == check.CookieOwn {
			return 0
		}
		if at := address(r.Service, r.ID); at.IsValid() {
			servers[at] = servers[at] || isForeign(r)
		}
	}
	for _, wrong := range servers {
		if wrong {
			foreign++
		}
	}
	if foreign < 2 || 2*foreign <= len(servers) {
		return 0
	}
	return foreign
}

// The topic of where load balancers' tunnels come from, which agents are sent.
package hub

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// sourcesOfOne is how many addresses a load balancer may report within a day, LostLife: a stolen key does not fill agents' tables, which keep
// each for as long.
const sourcesOfOne = 1024

// lbSources are the addresses of one load balancer. Those of one that is gone are sent for a day: it may forward without controllers.
type lbSources struct {
	addresses []netip.Addr             // as it reported them last, but for those that are too many
	known     map[netip.Addr]time.Time // all within a day, and when they were reported last
	tooMany   bool                     // some were left out
	own       []netip.Addr             // that tunnels did come from when it reported last
	left      time.Time                // when its stream has ended; zero: it is connected
}

// take takes what the load balancer reports in place of what it reported before.
func (s *lbSources) take(reported []netip.Addr, now time.Time) {
	maps.DeleteFunc(s.known, func(_ netip.Addr, last time.Time) bool { return now.Sub(last) > LostLife })
	if s.known == nil {
		s.known = map[netip.Addr]time.Time{}
	}
	s.addresses, s.tooMany, s.left = nil, false, time.Time{}
	for _, address := range reported {
		if _, known := s.known[address]; !known && len(s.known) >= sourcesOfOne {
			s.tooMany = true
			continue
		}
		s.known[address] = now
		s.addresses = append(s.addresses, address)
	}
}

// tunnelSources is the topic of the addresses that tunnels of all load balancers come from. A load balancer's addresses are on the list of
// every agent before it is sent any state. Agents subscribe.
type tunnelSources struct {
	subscribers
	log        *slog.Logger
	controller string

	alive []string             // controllers, by name
	of    map[string]lbSources // by load balancer
	list  *ballastv1.TunnelSources
}

func newTunnelSources(controller string, log *slog.Logger) tunnelSources {
	return tunnelSources{subscribers: subscribers{}, log: log, controller: controller, of: map[string]lbSources{},
		list: &ballastv1.TunnelSources{Controller: controller}}
}

func (t *tunnelSources) join(s *subscriber) {
	if s.isAgent() {
		t.subscribers[s] = true
	}
}

func (t *tunnelSources) leave(s *subscriber) {
	t.subscribers.leave(s)
	if s.isLB() {
		gone := t.of[s.identity.Name]
		gone.left = time.Now()
		t.of[s.identity.Name] = gone
		t.renew()
	}
}

func (t *tunnelSources) next(s *subscriber) *frame {
	if !t.takeDue(s) {
		return nil
	}
	return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Sources{Sources: t.list}})
}

// take takes the addresses that a load balancer reports. Other nodes have none.
func (t *tunnelSources) take(s *subscriber, reported, own []string) {
	if !s.isLB() {
		return
	}
	name := s.identity.Name
	sources := t.of[name]
	before := sources.tooMany
	sources.take(hostAddresses(reported), time.Now())
	if len(own) > 0 {
		sources.own = hostAddresses(own)
	}
	t.of[name] = sources
	if sources.tooMany && !before {
		t.log.Warn("a load balancer reports more addresses than agents are sent of one within a day: the others are left out", "name", name, "most", sourcesOfOne)
	}
	t.renew()
}

// forget drops the addresses of a load balancer that has left.
func (t *tunnelSources) forget(lb string) {
	delete(t.of, lb)
	t.renew()
}

func (t *tunnelSources) setControllers(names []string) {
	t.alive = slices.Clone(names)
	t.renew()
}

// silent reports whether a load balancer reports no address.
func (t *tunnelSources) silent(name string) bool { return len(t.of[name].addresses) == 0 }

// problem is that a load balancer reports no address; empty: it does.
func (t *tunnelSources) problem(s *subscriber) string {
	if !s.isLB() || !t.silent(s.identity.Name) {
		return ""
	}
	return "it reports no address that its tunnels come from, so agents accept tunnels from every address: upgrade it or, if nobody knows it, see \"Lost key\" in docs/run/operate.md"
}

// addOwners adds the load balancers' own addresses.
func (t *tunnelSources) addOwners(owners map[netip.Addr]string) {
	for name, s := range t.of {
		for _, address := range s.own {
			owners[address] = "load balancer " + name
		}
	}
}

// renew rebuilds the list and publishes it if it has changed. Load balancers that left more than LostLife ago are dropped.
func (t *tunnelSources) renew() {
	maps.DeleteFunc(t.of, func(_ string, s lbSources) bool { return !s.left.IsZero() && time.Since(s.left) > LostLife })
	list := &ballastv1.TunnelSources{Controller: t.controller, Alive: t.alive}
	for _, name := range slices.Sorted(maps.Keys(t.of)) {
		if t.silent(name) {
			list.Silent = append(list.Silent, name)
		}
		for _, address := range t.of[name].addresses {
			list.Addresses = append(list.Addresses, address.String())
		}
	}
	slices.Sort(list.Addresses)
	list.Addresses = slices.Compact(list.Addresses)
	if proto.Equal(list, t.list) {
		return
	}
	t.list = list
	for s := range t.subscribers {
		t.publish(s)
	}
}

// hostAddresses reads addresses that a host can have, and leaves out what else there is.
func hostAddresses(texts []string) (addresses []netip.Addr) {
	for _, text := range texts[:min(len(texts), sourcesOfOne)] {
		if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" && address.Unmap().IsGlobalUnicast() {
			addresses = append(addresses, address.Unmap())
		}
	}
	return addresses
}

// Where load balancers' tunnels come from, which agents are told.
package hub

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

// sourcesOfOne is how many addresses a load balancer may tell within a day, LostLife: a stolen key does not fill agents' tables, which keep
// each for as long.
const sourcesOfOne = 1024

// lbSources are the addresses of one load balancer. Those of one that is gone are told for a day: it may forward without controllers.
type lbSources struct {
	addresses []netip.Addr             // as it told them last, but for those that are too many
	known     map[netip.Addr]time.Time // all within a day, and when they were told last
	tooMany   bool                     // some were left out
	own       []netip.Addr             // that tunnels did come from when it told last
	left      time.Time                // when its stream has ended; zero: it is connected
}

// take takes what the load balancer tells in place of what it told before.
func (s *lbSources) take(told []netip.Addr, now time.Time) {
	maps.DeleteFunc(s.known, func(_ netip.Addr, last time.Time) bool { return now.Sub(last) > LostLife })
	if s.known == nil {
		s.known = map[netip.Addr]time.Time{}
	}
	s.addresses, s.tooMany, s.left = nil, false, time.Time{}
	for _, address := range told {
		if _, known := s.known[address]; !known && len(s.known) >= sourcesOfOne {
			s.tooMany = true
			continue
		}
		s.known[address] = now
		s.addresses = append(s.addresses, address)
	}
}

// tunnelSources are the addresses that tunnels of all load balancers come from. The hub's lock guards them: a load balancer's addresses are
// on the list of every agent before it is sent any state.
type tunnelSources struct {
	controller string
	alive      []string             // controllers, by name
	of         map[string]lbSources // by load balancer
	list       *ballastv1.TunnelSources
}

func newTunnelSources(controller string) *tunnelSources {
	return &tunnelSources{controller: controller, of: map[string]lbSources{}, list: &ballastv1.TunnelSources{Controller: controller}}
}

// take takes the addresses of a load balancer, and reports whether it has begun to have more than are kept.
func (t *tunnelSources) take(name string, told, own []string) (exceeds bool) {
	s := t.of[name]
	before := s.tooMany
	s.take(hostAddresses(told), time.Now())
	if len(own) > 0 {
		s.own = hostAddresses(own)
	}
	t.of[name] = s
	return s.tooMany && !before
}

// left notes that the stream of a load balancer has ended.
func (t *tunnelSources) left(name string) {
	gone := t.of[name]
	gone.left = time.Now()
	t.of[name] = gone
}

// silent reports whether a load balancer tells no address.
func (t *tunnelSources) silent(name string) bool { return len(t.of[name].addresses) == 0 }

// owners adds the load balancers' own addresses.
func (t *tunnelSources) owners(owners map[netip.Addr]string) {
	for name, s := range t.of {
		for _, address := range s.own {
			owners[address] = "load balancer " + name
		}
	}
}

// renew rebuilds the list for agents and reports whether it has changed. Load balancers that left more than LostLife ago are dropped.
func (t *tunnelSources) renew() (changed bool) {
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
		return false
	}
	t.list = list
	return true
}

// SetControllers takes the names of the controllers that live, this one included. None: it does not know.
func (h *Hub) SetControllers(names []string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.sources.alive = slices.Clone(names)
	h.spreadSources()
}

// OwnAddresses are those of load balancers, connected or lost within a day, that tunnels come from, and those of connected agents' certificates.
func (h *Hub) OwnAddresses() map[netip.Addr]string {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	owners := map[netip.Addr]string{}
	h.sources.owners(owners)
	for _, p := range h.peers {
		if p.identity.Role == pki.Agent {
			for _, address := range p.identity.Addresses {
				owners[address] = "agent " + p.identity.Name
			}
		}
	}
	return owners
}

// takeSources takes a peer's word for its addresses, if its certificate is a load balancer's and its stream the newest of it. The caller
// holds the lock.
func (h *Hub) takeSources(p *peer, told, own []string) {
	if p.identity.Role != pki.LB || h.peers[p.key()] != p {
		return
	}
	if h.sources.take(p.identity.Name, told, own) {
		h.options.Log.Warn("a load balancer reports more addresses than agents are sent of one within a day: the others are left out", "name", p.identity.Name, "most", sourcesOfOne)
	}
	h.spreadSources()
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

// spreadSources has agents told if there is anything new. The caller holds the lock.
func (h *Hub) spreadSources() {
	if !h.sources.renew() {
		return
	}
	for _, p := range h.peers {
		if p.identity.Role == pki.Agent {
			p.tunnels = true
			p.wakeUp()
		}
	}
}

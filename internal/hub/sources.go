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

// SetControllers takes the names of the controllers that live, this one included. None: it does not know.
func (h *Hub) SetControllers(names []string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.alive = slices.Clone(names)
	h.spreadSources()
}

// OwnAddresses are those of load balancers, connected or lost within a day, that tunnels come from, and those of connected agents' certificates.
func (h *Hub) OwnAddresses() map[netip.Addr]string {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	owners := map[netip.Addr]string{}
	for name, s := range h.sources {
		for _, address := range s.own {
			owners[address] = "load balancer " + name
		}
	}
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
	s := h.sources[p.identity.Name]
	before := s.tooMany
	if s.take(hostAddresses(told), time.Now()); s.tooMany && !before {
		h.options.Log.Warn("a load balancer reports more addresses than agents are sent of one within a day: the others are left out", "name", p.identity.Name, "most", sourcesOfOne)
	}
	if len(own) > 0 {
		s.own = hostAddresses(own)
	}
	h.sources[p.identity.Name] = s
	h.spreadSources()
}

// loseSources takes note of the end of a load balancer's stream. The caller holds the lock.
func (h *Hub) loseSources(name string) {
	gone := h.sources[name]
	gone.left = time.Now()
	h.sources[name] = gone
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
	maps.DeleteFunc(h.sources, func(_ string, s lbSources) bool { return !s.left.IsZero() && time.Since(s.left) > LostLife })
	list := &ballastv1.TunnelSources{Controller: h.options.Name, Alive: h.alive}
	for _, name := range slices.Sorted(maps.Keys(h.sources)) {
		if len(h.sources[name].addresses) == 0 {
			list.Silent = append(list.Silent, name)
		}
		for _, address := range h.sources[name].addresses {
			list.Addresses = append(list.Addresses, address.String())
		}
	}
	slices.Sort(list.Addresses)
	list.Addresses = slices.Compact(list.Addresses)
	if proto.Equal(list, h.tunnels) {
		return
	}
	h.tunnels = list
	for _, p := range h.peers {
		if p.identity.Role == pki.Agent {
			p.tunnels = true
			p.wakeUp()
		}
	}
}

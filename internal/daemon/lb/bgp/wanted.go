// Which VIPs this load balancer can carry.
package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/machine/announce"
	"github.com/ballast-lb/ballast/internal/model"
)

// wanted is what is to be announced.
func (a *Announcer) wanted(state *dataplane.Snapshot, conf *model.BGP, nodeState model.ServerState) *announce.Wanted {
	w := &announce.Wanted{VIPs: map[netip.Prefix]string{}, Delay: time.Duration(conf.Delay)}
	for i := range state.Running.Services {
		s := &state.Running.Services[i]
		if s.Functions() {
			continue // prefixes of the world, not of this load balancer
		}
		prefix := netip.PrefixFrom(s.VIP, s.VIP.BitLen())
		why := ""
		if conf.Announce != model.AnnounceAlways {
			if why = cannotCarry(state, s); why == "" && s.Replicated() && a.o.Ring != nil {
				why = a.o.Ring()
			}
		}
		if before, known := w.VIPs[prefix]; !known || before != "" { // one service of a VIP is enough
			w.VIPs[prefix] = why
		}
	}
	if conf.Announce != model.AnnounceAlways && a.o.Refuses != nil {
		withdrawLost(state, w, a.o.Refuses)
	}
	if nodeState != model.StateActive {
		w.Stop = "this node is " + nodeState.String()
	} else {
		w.Stop = a.o.Stop()
	}
	return w
}

// withdrawLost withdraws VIPs of services whose new connections leave by a device that drops them: others get all of their packets to a server.
func withdrawLost(state *dataplane.Snapshot, w *announce.Wanted, refuses func(ifindex uint32) string) {
	for i := range state.Running.Services {
		s := &state.Running.Services[i]
		prefix, receiver := netip.PrefixFrom(s.VIP, s.VIP.BitLen()), s
		if state.SendsToNodes(s) {
			receiver = state.SecondTier()
		}
		if why, known := w.VIPs[prefix]; !known || why != "" || receiver == nil {
			continue
		}
		w.VIPs[prefix] = state.Lost(receiver, refuses)
	}
}

// cannotCarry is why packets of a service have nowhere to go, empty: they have.
func cannotCarry(state *dataplane.Snapshot, s *model.Service) string {
	name, servers, health := s.Name, s.Servers, &s.Health
	if state.SendsToNodes(s) {
		name, servers, health = model.SecondTierName, nil, &state.Running.NodeHealth
		if second := state.SecondTier(); second != nil {
			servers = second.Servers
		}
	}
	down, able, unhealthy := state.DownOf(name), 0, 0
	if health.AllDown == model.AllDownWithdraw {
		down = state.FailingOf(name) // those that get new connections all the same are no reason to announce
	}
	for i := range servers {
		server := &servers[i]
		if server.State == model.StateOff || !state.Reaches(s, server.Address) {
			continue
		}
		if able++; down[server.ID] {
			unhealthy++
		}
	}
	switch {
	case !slices.ContainsFunc(servers, func(server model.Server) bool { return server.State != model.StateOff }):
		return fmt.Sprintf("service %s has no server", s.Name)
	case able == 0:
		return fmt.Sprintf("no way is known to any server of service %s", s.Name)
	case able == unhealthy:
		return fmt.Sprintf("every server of service %s that can be reached is unhealthy", s.Name)
	}
	return ""
}

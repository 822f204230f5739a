// Package carried says which VIPs this load balancer can carry, whoever announces them.
package carried

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/machine/announce"
	"github.com/ballast-lb/ballast/internal/model"
)

// Judge says so. Functions that are nil have nothing to say.
type Judge struct {
	Stop    func() string               // why packets for VIPs would not be forwarded, whatever they are; empty: they are
	Ring    func() string               // why packets for replicated services would not be; nil: there are none
	Refuses func(ifindex uint32) string // why a device drops packets that leave by it, empty: it does not; nil: none does
}

// Wanted is what is to be announced by a node in a state; always: whether or not it has a server to go to.
func (j *Judge) Wanted(state *dataplane.Snapshot, always bool, delay time.Duration, nodeState model.ServerState) *announce.Wanted {
	w := &announce.Wanted{VIPs: map[netip.Prefix]string{}, Delay: delay}
	for i := range state.Running.Services {
		s := &state.Running.Services[i]
		if s.Functions() {
			continue // prefixes of the world, not of this load balancer
		}
		why := ""
		if !always {
			if why = cannotCarry(state, s); why == "" && s.Replicated() && j.Ring != nil {
				why = j.Ring()
			}
		}
		for _, vip := range s.VIPs() {
			prefix := netip.PrefixFrom(vip, vip.BitLen())
			if before, known := w.VIPs[prefix]; !known || before != "" { // one service of a VIP is enough
				w.VIPs[prefix] = why
			}
		}
	}
	if !always && j.Refuses != nil {
		withdrawLost(state, w, j.Refuses)
	}
	for vip, how := range state.Running.Announcements() {
		if how.How == model.VIPOff {
			w.VIPs[netip.PrefixFrom(vip, vip.BitLen())] = "announce is off (service " + how.Service + ")"
		}
	}
	if nodeState != model.StateActive {
		w.Stop = "this node is " + nodeState.String()
	} else {
		w.Stop = j.Stop()
	}
	return w
}

// withdrawLost withdraws VIPs of services whose new connections leave by a device that drops them: others get all of their packets to a server.
func withdrawLost(state *dataplane.Snapshot, w *announce.Wanted, refuses func(ifindex uint32) string) {
	for i := range state.Running.Services {
		s := &state.Running.Services[i]
		receiver := s
		if state.SendsToNodes(s) {
			receiver = state.SecondTier()
		}
		for _, vip := range s.VIPs() {
			prefix := netip.PrefixFrom(vip, vip.BitLen())
			if why, known := w.VIPs[prefix]; !known || why != "" || receiver == nil {
				continue
			}
			w.VIPs[prefix] = state.Lost(receiver, refuses)
		}
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
	if !state.SendsToNodes(s) && state.Succeeds(s) {
		return ""
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

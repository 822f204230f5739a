// Hosts outside of the fleet that answer for its VIPs, in words.
package l2

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/machine/segment"
	"github.com/ballast-lb/ballast/internal/model"
)

// foreignOf is the host that answers for a VIP: its address, and what it is to services. nil: none does.
func (a *Announcer) foreignOf(v *segment.VIPStatus, state *dataplane.Snapshot) *api.L2Foreign {
	if v.Foreign == (segment.MAC{}) {
		return nil
	}
	host := &api.L2Foreign{MAC: v.Foreign.String(), Answered: v.ForeignAt}
	at := func(address netip.Addr) bool {
		path := state.Paths[address]
		return path.OnLink && path.DestinationMAC == v.Foreign
	}
	for i := range state.Running.Services {
		s := &state.Running.Services[i]
		if which := slices.IndexFunc(s.Predecessor.Addresses, at); which >= 0 && (s.HasVIP(v.VIP) || host.Is == "") {
			host.Address, host.Is = s.Predecessor.Addresses[which], "predecessor of service "+s.Name
		}
		if which := slices.IndexFunc(s.Servers, func(server model.Server) bool { return at(server.Address) }); which >= 0 && host.Is == "" {
			host.Address, host.Is = s.Servers[which].Address, "server "+s.Servers[which].Name+" of service "+s.Name
		}
	}
	if host.Is == "" && a.link != nil {
		host.Address = a.link.AddressOf(v.Foreign, v.VIP)
	}
	return host
}

// foreignProblem is what is wrong with who answers for a VIP outside of the fleet, or with nobody doing so; empty: nothing is.
func foreignProblem(v *segment.VIPStatus, host *api.L2Foreign, state *dataplane.Snapshot) string {
	service := serviceOf(state, v.VIP)
	if host == nil {
		if v.Off && v.Looked {
			return fmt.Sprintf("%s is given up (announce: off, service %s), and nobody answers for it: give it to its new host's interface, or set announce: auto", v.VIP, service)
		}
		return ""
	}
	remedy := "remove it from that host's interface"
	switch {
	case strings.HasPrefix(host.Is, "server "):
		remedy = "it needs arp_ignore=1 (`ballast doctor` there)"
	case host.Is != "":
		remedy = "put it on lo there, with arp_ignore=1, and remove it from the interface (docs/run/moving.md, \"With L2\")"
	}
	switch {
	case v.Off:
		return ""
	case v.Owned:
		return fmt.Sprintf("%s also answers for %s, and is no load balancer of this fleet: %s", host, v.VIP, remedy)
	case v.Barred:
		return fmt.Sprintf("%s is not taken: %s answers for it: %s; `announce: force` of service %s takes it all the same", v.VIP, host, remedy, service)
	}
	return ""
}

// serviceOf is one that has a VIP: that which says how it is announced, if one does.
func serviceOf(state *dataplane.Snapshot, vip netip.Addr) string {
	if how, said := state.Running.Announcements()[vip]; said {
		return how.Service
	}
	for i := range state.Running.Services {
		if state.Running.Services[i].HasVIP(vip) {
			return state.Running.Services[i].Name
		}
	}
	return ""
}

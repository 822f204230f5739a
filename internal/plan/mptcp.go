package plan

import (
	"encoding/binary"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/joinport"
	"github.com/ballast-lb/ballast/internal/model"
)

// joinShift is VIP_JOIN_SHIFT: above the number of its service, a destination has the id of the server that subflows join there.
const joinShift = 16

// JoinPorts returns the ports of a service's mptcp, by ids of servers. They are the same for as long as the fleet's placement key is.
func JoinPorts(keys *model.Keys, s *model.Service) func(id uint16) uint16 {
	key := cookie.Load([16]byte(cookie.Derive(keys.Placement, cookie.ForJoins, s.VIP, 0, 16)))
	return func(id uint16) uint16 {
		return s.MPTCP.FirstPort + uint16(joinport.Permute(key, uint32(s.MPTCP.Ports), uint32(id-1)))
	}
}

// joins are where subflows join: at each server that gets packets, removed ones too.
func joins(want *Want, s *Service, servers map[uint16]ServerRow) map[VIPKey]uint16 {
	if s.MPTCP.FirstPort == 0 || len(servers) == 0 {
		return nil
	}
	port, joins := JoinPorts(&want.Keys, &s.Service), make(map[VIPKey]uint16, len(servers))
	for id := range servers {
		if id <= s.MPTCP.Ports {
			joins[vipKey(s.VIP, port(id), uint8(s.Protocol))] = id
		}
	}
	return joins
}

// addJoin adds where subflows of a service join a server of this host.
func (a *Agent) addJoin(fleet *model.Fleet, service *model.Service, server *model.Server) {
	if service.MPTCP.FirstPort == 0 {
		return
	}
	port := JoinPorts(&fleet.Keys, service)(server.ID)
	a.Joins = append(a.Joins, netip.AddrPortFrom(service.VIP, port))
	a.Served[vipKey(service.VIP, port, uint8(service.Protocol))] = AgentRow{ID: server.ID} // nothing is marked: the port names the server
}

// keepJoins adds where subflows have joined this host while it was a server of a service that lives on elsewhere.
func (a *Agent) keepJoins(service *model.Service, have map[VIPKey]AgentRow) {
	for key, row := range have {
		if port := binary.BigEndian.Uint16(key.Port[:]); service.MPTCP.Joins(port) && key == vipKey(service.VIP, port, uint8(service.Protocol)) {
			if _, served := a.Served[key]; !served {
				a.Served[key] = row
			}
		}
	}
}

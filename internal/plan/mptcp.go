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

// JoinPorts returns the ports of a service's mptcp in an epoch, by ids of servers. Even and odd epochs have a half of the ports each, so two that are
// known at once never have the same port.
//
// Departs from Cheetah VI, where each subflow has a permutation of its own: the kernel announces one port to all clients, so that within an epoch a client
// sees which of its connections share a server.
func JoinPorts(keys *model.Keys, s *model.Service, epoch uint32) func(id uint16) uint16 {
	key := cookie.Load([16]byte(cookie.Derive(keys.Cookie[epoch], cookie.ForJoins, s.JoinVIP(), 0, 16)))
	half := s.MPTCP.PerEpoch()
	first := s.MPTCP.FirstPort + uint16(epoch&1)*half
	return func(id uint16) uint16 { return first + uint16(joinport.Permute(key, uint32(half), uint32(id-1))) }
}

// joins are where subflows join in each epoch: at each server that gets packets, removed ones too. nil: nowhere.
func joins(want *Want, s *Service, servers map[uint16]ServerRow) (joins map[VIPKey]uint16) {
	if s.MPTCP.FirstPort == 0 {
		return nil
	}
	for epoch := range want.Keys.Cookie {
		port := JoinPorts(&want.Keys, &s.Service, epoch)
		for id := range servers {
			if id <= s.MPTCP.PerEpoch() {
				if joins == nil {
					joins = make(map[VIPKey]uint16, 2*len(servers))
				}
				joins[vipKey(s.JoinVIP(), port(id), uint8(s.Protocol))] = id
			}
		}
	}
	return joins
}

// Join is an address and port where further subflows of MPTCP connections reach this host.
type Join struct {
	At    netip.AddrPort
	Epoch uint32
	Role  JoinRole
}

// JoinRole is what the kernel does at a Join.
type JoinRole uint8

// Roles of a Join.
const (
	JoinAnnounced JoinRole = iota // it listens, and new connections are told
	JoinKept                      // of another epoch than the current one: it goes on listening for connections that know the port
	JoinLeft                      // of a service that lives on elsewhere: it listens until the last subflow there has ended
)

// addJoins adds where subflows of a service join a server of this host.
func (a *Agent) addJoins(fleet *model.Fleet, service *model.Service, server *model.Server) {
	if service.MPTCP.FirstPort == 0 {
		return
	}
	for _, epoch := range fleet.Keys.Epochs() {
		role := JoinKept
		if epoch == fleet.Keys.Current {
			role = JoinAnnounced
		}
		a.addJoin(service, server.ID, Join{netip.AddrPortFrom(service.JoinVIP(), JoinPorts(&fleet.Keys, service, epoch)(server.ID)), epoch, role})
	}
}

// addJoin has its packets taken. None is marked, as the port names the server.
func (a *Agent) addJoin(service *model.Service, id uint16, join Join) {
	row := AgentRow{ID: id}
	if join.Role != JoinAnnounced {
		row.Withheld = 1
	}
	a.Joins = append(a.Joins, join)
	a.Served[vipKey(service.JoinVIP(), join.At.Port(), uint8(service.Protocol))] = row
}

// keepJoins adds where subflows have joined this host while it was a server of a service that lives on elsewhere.
func (a *Agent) keepJoins(fleet *model.Fleet, service *model.Service, have map[VIPKey]AgentRow) {
	for key, row := range have {
		port := binary.BigEndian.Uint16(key.Port[:])
		if _, served := a.Served[key]; served || !service.MPTCP.Joins(port) || key != vipKey(service.JoinVIP(), port, uint8(service.Protocol)) ||
			row.ID == 0 || row.ID > service.MPTCP.PerEpoch() {
			continue
		}
		for _, epoch := range fleet.Keys.Epochs() {
			if JoinPorts(&fleet.Keys, service, epoch)(row.ID) == port {
				a.addJoin(service, row.ID, Join{netip.AddrPortFrom(service.JoinVIP(), port), epoch, JoinLeft})
			}
		}
	}
}

package model

import (
	"net/netip"
	"slices"
)

// CheckedPorts are those that the agent at a server's address decapsulates for, of the protocol that checks of the service speak: the
// service's own or, where it has another protocol, those of other services with its VIP on the same server.
func (s *Service) CheckedPorts(server netip.Addr, all []Service) []PortRange {
	spoken := ProtocolTCP
	if s.Health.Check.ByUDP() {
		spoken = ProtocolUDP
	}
	if s.Protocol == spoken {
		return s.AllOfPorts()
	}
	ports := []PortRange{}
	for i := range all {
		other := &all[i]
		serves := func(m Server) bool { return m.Address == server && m.State != StateOff }
		if other.HasVIP(s.VIPFor(server)) && other.Protocol == spoken && other.Forward == s.Forward && slices.ContainsFunc(other.Servers, serves) {
			ports = append(ports, other.AllOfPorts()...)
		}
	}
	return ports
}

// CheckedBlindly returns the servers whose packets come through a tunnel that their checks cannot go through, because these speak TCP and the service does not.
func (f *Fleet) CheckedBlindly(s *Service) (servers []string) {
	if s.Protocol == ProtocolTCP || s.Health.Check == CheckNone || s.Health.Check == CheckExec || s.Health.Check.ByUDP() || s.Return == ReturnThrough || !s.Forward.Tunnels() {
		return nil
	}
	for i := range s.Servers {
		server := &s.Servers[i]
		port := s.Health.Port
		if port == 0 {
			port = s.Endpoint(server).Port()
		}
		if server.State != StateOff && !InPorts(s.CheckedPorts(server.Address, f.Services), port) {
			servers = append(servers, server.Name)
		}
	}
	return servers
}

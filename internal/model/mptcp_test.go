package model

import (
	"net/netip"
	"testing"
)

func TestPortsWhereNoSubflowCouldJoinAreRefused(t *testing.T) {
	with := func(change func(f *Fleet, s *Service)) func(*Fleet) {
		return func(f *Fleet) {
			s := &f.Services[0]
			s.Affinity, s.Table = AffinityCookie, Table{}
			s.MPTCP = MPTCP{FirstPort: 40000, Ports: 100}
			change(f, s)
		}
	}
	expectRefused(t, []contradiction{
		{"no first port", with(func(_ *Fleet, s *Service) { s.MPTCP.FirstPort = 0 }), "services[0].mptcp.first_port", "40000"},
		{"past the last port", with(func(_ *Fleet, s *Service) { s.MPTCP.FirstPort = 65500 }), "services[0].mptcp.ports", "at most 36"},
		{"a port for one epoch", with(func(_ *Fleet, s *Service) { s.MPTCP.Ports = 1 }), "services[0].mptcp.ports", "at least 2"},
		{"over ports of its own", with(func(_ *Fleet, s *Service) { s.MPTCP.FirstPort = s.Ports[0] }), "services[0].ports[0]", "other ports"},
		{"udp", with(func(_ *Fleet, s *Service) {
			s.Protocol, s.Affinity, s.Fallback = ProtocolUDP, AffinityHash, FallbackHash
		}), "services[0].mptcp", "remove"},
		{"IPv6", with(func(_ *Fleet, s *Service) { s.VIP = netip.MustParseAddr("2001:db8::10") }), "services[0].mptcp", "IPv4 service"},
		{"through", with(func(_ *Fleet, s *Service) {
			s.Return, s.Forward, s.Fallback, s.CookieBits = ReturnThrough, ForwardNAT, FallbackHash, ThroughBits
		}), "services[0].mptcp", "direct"},
		{"a connection table", with(func(_ *Fleet, s *Service) { s.Affinity = AffinityLocal }), "services[0].mptcp", "affinity: cookie"},
		{"ids that nobody remembers", with(func(_ *Fleet, s *Service) { s.Affinity, s.Fallback = AffinityHash, FallbackHash }), "services[0].mptcp", "affinity: cookie"},
		{"ids of candidates", with(func(_ *Fleet, s *Service) { s.Dispatch, s.Affinity = DispatchChoices, AffinityHistory }), "services[0].mptcp", "affinity: cookie"},
		{"more servers than ports", with(func(_ *Fleet, s *Service) { s.MPTCP.Ports, s.Servers[0].ID = 10, 6 }), "services[0].servers[0].id", "next free id"},
		{"sessions", with(func(_ *Fleet, s *Service) { s.Session, s.SessionClients = SessionTLS, 16 }), "services[0].session", "remove it, or mptcp"},
		{"another service's port", with(func(f *Fleet, s *Service) {
			other := s.Clone()
			other.Name, other.Ports, other.MPTCP = "other", []uint16{40099}, MPTCP{}
			f.Services = append(f.Services, other)
		}), "services[0].mptcp.first_port", "other ports"},
		{"another service's joins", with(func(f *Fleet, s *Service) {
			other := s.Clone()
			other.Name, other.Ports, other.MPTCP.FirstPort = "other", []uint16{81}, 39950
			f.Services = append(f.Services, other)
		}), "services[1].mptcp.first_port", "other ports"},
	})
}

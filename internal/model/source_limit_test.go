package model

import "testing"

func TestLimitsOfSourcesThatCannotWorkAreRefused(t *testing.T) {
	limited := func(change func(*Service)) func(*Fleet) {
		return func(f *Fleet) {
			f.Services[0].SourceLimit = SourceLimit{100, 100, 32, 64}
			change(&f.Services[0])
		}
	}
	expectRefused(t, []contradiction{
		{"none", limited(func(s *Service) { s.SourceLimit.Rate = 0 }), "services[0].source_limit.rate", "remove source_limit"},
		{"faster", limited(func(s *Service) { s.SourceLimit.Rate = 100_001 }), "services[0].source_limit.rate", "use less"},
		{"burst", limited(func(s *Service) { s.SourceLimit.Burst = 100_001 }), "services[0].source_limit.burst", "in 1000 s"},
		{"slow", limited(func(s *Service) { s.SourceLimit.Burst, s.SourceLimit.Rate = 3000, 2 }), "services[0].source_limit.burst", "use 1 to"},
		{"IPv4", limited(func(s *Service) { s.SourceLimit.IPv4Prefix = 33 }), "services[0].source_limit.ipv4_prefix", "1 to 32"},
		{"IPv6", limited(func(s *Service) { s.SourceLimit.IPv6Prefix = 65 }), "services[0].source_limit.ipv6_prefix", "1 to 64"},
		{"replicated", limited(func(s *Service) { s.Affinity, s.Fallback = AffinityReplicated, FallbackHash }), "services[0].source_limit.rate", "use affinity: cookie"},
		{"datagrams", limited(func(s *Service) {
			s.Protocol, s.Affinity, s.Fallback, s.Dispatch = ProtocolUDP, AffinityHash, FallbackHash, DispatchMaglev
		}), "services[0].source_limit.rate", "local-table"},
		{"QUIC", limited(func(s *Service) { s.Protocol, s.Affinity, s.Fallback = ProtocolUDP, AffinityQUIC, FallbackHash }), "services[0].source_limit.rate", "Retry"},
		{"subflows", limited(func(s *Service) { s.MPTCP = MPTCP{FirstPort: 40000, Ports: 64} }), "services[0].source_limit.rate", "subflows"},
	})
}

func TestTheBurstOfALimitIsItsRate(t *testing.T) {
	s := NewService()
	s.SourceLimit.Rate = 70
	s.ApplyDefaults()
	if s.SourceLimit != (SourceLimit{70, 70, 32, 64}) {
		t.Errorf("have %+v", s.SourceLimit)
	}
	s = NewService()
	if s.ApplyDefaults(); s.SourceLimit != (SourceLimit{}) {
		t.Errorf("have %+v without a rate", s.SourceLimit)
	}
}

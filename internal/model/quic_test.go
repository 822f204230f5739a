package model

import "testing"

func TestConnectionIDsThatCannotWorkAreRefused(t *testing.T) {
	expectRefused(t, []contradiction{
		{"quic check on tcp", func(f *Fleet) { f.Services[0].Health.Check = CheckQUIC }, "services[0].health.check", "tcp, tls"},
		{"quic check of nodes", func(f *Fleet) { f.NodeHealth = Health{Check: CheckQUIC, Port: 9} }, "node_health.check", "http"},
		{"quic on tcp", func(f *Fleet) { f.Services[0].Affinity = AffinityQUIC }, "services[0].affinity", "protocol: udp"},
		{"quic by open connections", func(f *Fleet) { quicService(f).Dispatch = DispatchP2C }, "services[0].load.source", "endpoint"},
		{"quic by estimated load", func(f *Fleet) {
			s := quicService(f)
			s.Dispatch, s.Load.Source = DispatchAWFD, LoadEstimate
		}, "services[0].load.source", "endpoint"},
		{"quic of no such algorithm", func(f *Fleet) { quicService(f).QUIC.Algorithm = 3 }, "services[0].quic.algorithm", "four-pass"},
		{"ids of servers too long", func(f *Fleet) { quicService(f).QUIC.ServerIDLength = 9 }, "services[0].quic.server_id_length", "1 to 8"},
		{"nonce too short", func(f *Fleet) { quicService(f).QUIC = QUIC{QUICPlain, 2, 3} }, "services[0].quic.nonce_length", "4 to 18"},
		{"no block of a single pass", func(f *Fleet) { quicService(f).QUIC.NonceLength = 13 }, "services[0].quic.nonce_length", "use 14"},
		{"a block in four passes", func(f *Fleet) { quicService(f).QUIC.Algorithm = QUICFourPass }, "services[0].quic.algorithm", "single-pass"},
		{"server id over the middle", func(f *Fleet) { quicService(f).QUIC = QUIC{QUICFourPass, 6, 5} }, "services[0].quic.nonce_length", "at least 6"},
		{"connection id too long", func(f *Fleet) { quicService(f).QUIC = QUIC{QUICPlain, 3, 17} }, "services[0].quic.nonce_length", "at most 16"},
		{"quic of a service without", func(f *Fleet) { f.Services[0].QUIC.NonceLength = 5 }, "services[0].quic", "affinity: quic"},
		{"server id wider than its bytes", func(f *Fleet) {
			s := quicService(f)
			s.QUIC, s.Servers[0].ID = QUIC{QUICPlain, 1, 8}, 256
		}, "services[0].servers[0].id", "next free id"},
	})
}

func TestQUICIsDispatchedByReportedLoad(t *testing.T) {
	for _, dispatch := range []Dispatch{DispatchP2C, DispatchLeast, DispatchAWRR} {
		for _, source := range []LoadSource{LoadCPU, LoadPackets, LoadBytes} {
			f := fleet(1)
			s := quicService(&f)
			s.Dispatch, s.Load.Source = dispatch, source
			for _, found := range problems(t, f) {
				t.Errorf("%s by %s is refused: %v", dispatch, source, found)
			}
		}
	}
}

func TestAFleetHasRoomForSoManyServicesOfQUIC(t *testing.T) {
	f := fleet(0)
	f.Services = make([]Service, MaxQUICServices+1)
	for i := range f.Services {
		f.Services[i].Affinity = AffinityQUIC
	}
	for _, found := range problems(t, f) {
		if found.Path == "services" {
			return
		}
	}
	t.Error("one more was not refused")
}

// quicService makes the first service one with affinity quic.
func quicService(f *Fleet) *Service {
	s := &f.Services[0]
	s.Protocol, s.Affinity, s.Fallback, s.Table = ProtocolUDP, AffinityQUIC, FallbackHash, Table{}
	s.ApplyDefaults()
	return s
}

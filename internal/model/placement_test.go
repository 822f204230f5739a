package model

import "testing"

func TestPlacementBySourceThatCannotWorkIsRefused(t *testing.T) {
	bySource := func(change func(s *Service)) func(f *Fleet) {
		return func(f *Fleet) {
			f.Services[0].Dispatch, f.Services[0].Placement.Over = DispatchMaglev, PlaceSource
			change(&f.Services[0])
		}
	}
	expectRefused(t, []contradiction{
		{"turns", bySource(func(s *Service) { s.Dispatch = DispatchRR }), "services[0].placement.over", "rr looks at no table"},
		{"load", bySource(func(s *Service) { s.Dispatch = DispatchP2C }), "services[0].placement.over", "use dispatch: maglev"},
		{"choices", bySource(func(s *Service) { s.Dispatch = DispatchChoices }), "services[0].placement.over", "several servers"},
		{"sessions", bySource(func(s *Service) { s.Session = SessionTLS }), "services[0].placement.over", "server of their session"},
		{"functions", bySource(func(s *Service) { s.Protocol = ProtocolAny }), "services[0].placement.over", "both directions"},
		{"of nothing known", bySource(func(s *Service) { s.Placement.Over = 7 }), "services[0].placement.over", "unknown value 7"},
		{"IPv4", bySource(func(s *Service) { s.Placement.IPv4Prefix = 33 }), "services[0].placement.ipv4_prefix", "1 to 32"},
		{"IPv6", bySource(func(s *Service) { s.Placement.IPv6Prefix = 129 }), "services[0].placement.ipv6_prefix", "1 to 128"},
	})
	for _, dispatch := range []Dispatch{DispatchMaglev, DispatchHash, DispatchWCMP} {
		f := fleet(3)
		bySource(func(s *Service) { s.Dispatch = dispatch })(&f)
		f.ApplyDefaults()
		if err := f.Validate(); err != nil {
			t.Errorf("%s: %v", dispatch, err)
		}
		if p := f.Services[0].Placement; p != (Placement{PlaceSource, 32, 64}) {
			t.Errorf("the defaults are %+v", p)
		}
	}
}

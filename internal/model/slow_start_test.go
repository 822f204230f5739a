package model

import (
	"testing"
	"time"
)

func TestSlowStartsThatCannotWorkAreRefused(t *testing.T) {
	starts := func(change func(s *Service)) func(f *Fleet) {
		return func(f *Fleet) {
			f.Services[0].SlowStart = Duration(30 * time.Second)
			change(&f.Services[0])
		}
	}
	expectRefused(t, []contradiction{
		{"too short", starts(func(s *Service) { s.SlowStart = Duration(999 * time.Millisecond) }), "services[0].slow_start", "use 1s to 1h0m0s"},
		{"too long", starts(func(s *Service) { s.SlowStart = MaxSlowStart + 1 }), "services[0].slow_start", "out of range"},
		{"negative", starts(func(s *Service) { s.SlowStart = -1 }), "services[0].slow_start", "out of range"},
		{"maglev", starts(func(s *Service) { s.Dispatch = DispatchMaglev }), "services[0].slow_start", "the same on all load balancers"},
		{"hash", starts(func(s *Service) { s.Dispatch = DispatchHash }), "services[0].slow_start", "use dispatch: rr"},
		{"wcmp", starts(func(s *Service) { s.Dispatch = DispatchWCMP }), "services[0].slow_start", "--slow-start 0s"},
		{"choices", starts(func(s *Service) { s.Dispatch = DispatchChoices }), "services[0].slow_start", "the same on all load balancers"},
		{"by default maglev", starts(func(s *Service) { s.Protocol = ProtocolUDP }), "services[0].slow_start", "maglev places"},
		{"no classes", starts(func(s *Service) { s.Dispatch, s.Load.Classes = DispatchAWFD, 0 }), "services[0].slow_start", "load.classes"},
	})
	for _, dispatch := range []Dispatch{DispatchRR, DispatchWRR, DispatchP2C, DispatchLeast, DispatchAWRR, DispatchAWFD, DispatchLCF} {
		f := fleet(3)
		starts(func(s *Service) { s.Dispatch = dispatch })(&f)
		f.ApplyDefaults()
		if err := f.Validate(); err != nil {
			t.Errorf("%s: %v", dispatch, err)
		}
	}
}

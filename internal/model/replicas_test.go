package model

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// replicatedFleet has one service, which change makes what it is to be.
func replicatedFleet(change func(f *Fleet, s *Service)) Fleet {
	s := NewService()
	s.Name, s.VIP, s.Ports, s.Protocol = "dns", netip.MustParseAddr("198.51.100.10"), []uint16{53}, ProtocolUDP
	s.Affinity = AffinityReplicated
	for id := uint16(1); id <= 2; id++ {
		server := NewServer()
		server.Name, server.ID, server.Address = fmt.Sprint("s", id), id, netip.AddrFrom4([4]byte{10, 0, 0, byte(id)})
		s.Servers = append(s.Servers, server)
	}
	f := Fleet{Keys: Keys{Placement: [16]byte{1}, Current: 1, Cookie: map[uint32][16]byte{1: {1}}}, Services: []Service{s}}
	change(&f, &f.Services[0])
	f.ApplyDefaults()
	return f
}

// refused lists changes, and what their refusal says; empty: they are taken.
func refused(t *testing.T, changes map[string]func(f *Fleet, s *Service), wants map[string]string) {
	t.Helper()
	for what, change := range changes {
		f := replicatedFleet(change)
		err := f.Validate()
		if want := wants[what]; want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
}

func TestReplicatedServices(t *testing.T) {
	f := replicatedFleet(func(*Fleet, *Service) {})
	if s := &f.Services[0]; s.Fallback != FallbackHash || s.Dispatch != DispatchRR || f.Replicas != (Replicas{DefaultChain, DefaultReplicaIdleTimeout}) || !f.Replicated() {
		t.Errorf("defaults: %+v, %+v", f.Replicas, s)
	}
	if err := f.CheckWithoutControllers(); err == nil || !strings.Contains(err.Error(), "services[0].affinity: replicated needs controllers") {
		t.Errorf("by a file: %v", err)
	}
	refused(t, map[string]func(f *Fleet, s *Service){
		"as it is": func(*Fleet, *Service) {},
		"p2c":      func(_ *Fleet, s *Service) { s.Dispatch = DispatchP2C },
		"tcp with fallback": func(_ *Fleet, s *Service) {
			s.Protocol, s.Affinity, s.Fallback = ProtocolTCP, AffinityCookie, FallbackReplicated
		},
		"quic": func(_ *Fleet, s *Service) { s.Affinity, s.Fallback = AffinityQUIC, FallbackReplicated },
		"both": func(_ *Fleet, s *Service) { s.Fallback = FallbackReplicated },
		"hash": func(_ *Fleet, s *Service) {
			s.Affinity, s.Fallback, s.Dispatch = AffinityHash, FallbackReplicated, DispatchMaglev
		},
		"history": func(_ *Fleet, s *Service) {
			s.Protocol, s.Dispatch, s.Affinity, s.Fallback = ProtocolTCP, DispatchChoices, AffinityHistory, FallbackReplicated
		},
		"choices": func(_ *Fleet, s *Service) { s.Dispatch = DispatchChoices },
		"tiers": func(f *Fleet, _ *Service) {
			f.Nodes = []Node{{Name: "lb1", Tier: TierFirst}, {Name: "lb2", Tier: TierSecond, ID: 1, Address: netip.MustParseAddr("10.0.1.2")}}
		},
		"chains of 5":   func(f *Fleet, _ *Service) { f.Replicas.Chain = 5 },
		"idle for 1 s":  func(f *Fleet, _ *Service) { f.Replicas.IdleTimeout = Duration(time.Second) },
		"idle for days": func(f *Fleet, _ *Service) { f.Replicas.IdleTimeout = Duration(48 * time.Hour) },
	}, map[string]string{
		"both": "use fallback: hash", "hash": "use affinity: replicated", "history": "use fallback: second-chance", "choices": "use rr, p2c or another policy",
		"tiers": "keep no replicated table", "chains of 5": "use 1 to 4", "idle for 1 s": "use 6s", "idle for days": "use 6s",
	})
}

func TestServicesOfNetworkFunctions(t *testing.T) {
	functions := func(change func(f *Fleet, s *Service)) func(f *Fleet, s *Service) {
		return func(f *Fleet, s *Service) {
			*s = Service{Name: "nat", Servers: s.Servers, Protocol: ProtocolAny, Dispatch: DispatchUnset, Affinity: AffinityUnset, Fallback: FallbackUnset,
				Forward: ForwardUnset, Return: ReturnUnset, Load: s.Load, Health: s.Health, Destinations: Prefix{netip.MustParsePrefix("0.0.0.0/0")}}
			change(f, s)
		}
	}
	f := replicatedFleet(functions(func(*Fleet, *Service) {}))
	if s := &f.Services[0]; s.Affinity != AffinityReplicated || s.Return != ReturnThrough || s.Forward != ForwardL2 || s.VIP != netip.IPv4Unspecified() || s.Where() != "0.0.0.0/0" {
		t.Errorf("defaults: %+v", s)
	}
	refused(t, map[string]func(f *Fleet, s *Service){
		"as it is":    functions(func(*Fleet, *Service) {}),
		"one address": functions(func(_ *Fleet, s *Service) { s.Destinations = Prefix{netip.MustParsePrefix("203.0.113.1/32")} }),
		"IPv6":        functions(func(_ *Fleet, s *Service) { s.Destinations = Prefix{netip.MustParsePrefix("::/0")} }),
		"hash":        functions(func(_ *Fleet, s *Service) { s.Affinity = AffinityHash }),
		"checked":     functions(func(_ *Fleet, s *Service) { s.Health.Check, s.Health.Port = CheckTCP, 9000 }),
		"no prefix":   functions(func(_ *Fleet, s *Service) { s.Destinations = Prefix{} }),
		"host bits":   functions(func(_ *Fleet, s *Service) { s.Destinations = Prefix{netip.MustParsePrefix("10.0.0.1/8")} }),
		"a VIP":       functions(func(_ *Fleet, s *Service) { s.VIP = netip.MustParseAddr("10.0.0.1") }),
		"ports":       functions(func(_ *Fleet, s *Service) { s.Ports = []uint16{80} }),
		"given up":    functions(func(_ *Fleet, s *Service) { s.Announce = VIPOff }),
		"cookies":     functions(func(_ *Fleet, s *Service) { s.Affinity = AffinityCookie }),
		"direct":      functions(func(_ *Fleet, s *Service) { s.Return = ReturnDirect }),
		"tunnels":     functions(func(_ *Fleet, s *Service) { s.Forward = ForwardIPIP }),
		"no port":     functions(func(_ *Fleet, s *Service) { s.Health.Check = CheckTCP }),
		"twice":       functions(func(f *Fleet, s *Service) { other := *s; other.Name = "again"; f.Services = append(f.Services, other) }),
		"server port": functions(func(_ *Fleet, s *Service) { s.Servers[0].Port = 80 }),
		"of tcp":      func(_ *Fleet, s *Service) { s.Destinations = Prefix{netip.MustParsePrefix("10.0.0.0/8")} },
	}, map[string]string{
		"no prefix": "write it like 0.0.0.0/0", "host bits": "use 10.0.0.0/8", "a VIP": "remove it: destinations says it", "ports": "remove them", "given up": "remove it", "cookies": "use affinity: replicated",
		"direct": "use return: through", "tunnels": "use forward: l2", "no port": "give the port", "twice": "give one of them other addresses", "server port": "remove it",
		"of tcp": "use protocol: any",
	})
}

func TestAServiceForWhatComesBackToNetworkFunctionsIsToldFromOneThatNobodyServes(t *testing.T) {
	functions := func(name string, weight uint16) Service {
		return Service{Name: name, Protocol: ProtocolAny, Servers: []Server{{Name: "nat1", Address: netip.MustParseAddr("10.30.1.1"), Weight: weight}}}
	}
	of := func(change func(f *Fleet)) bool {
		f := &Fleet{Services: []Service{functions("gateway", 1), functions("public", 0)}}
		change(f)
		return f.OnlyReturns(&f.Services[1])
	}
	if !of(func(*Fleet) {}) {
		t.Error("as documented")
	}
	for what, change := range map[string]func(f *Fleet){
		"nobody opens connections": func(f *Fleet) { f.Services[0].Servers[0].Weight = 0 },
		"others do":                func(f *Fleet) { f.Services[0].Servers[0].Address = netip.MustParseAddr("10.30.1.9") },
		"it does":                  func(f *Fleet) { f.Services[1].Servers[0].Weight = 1 },
		"it has no servers":        func(f *Fleet) { f.Services[1].Servers = nil },
		"it is one of TCP":         func(f *Fleet) { f.Services[1].Protocol = ProtocolTCP },
	} {
		if of(change) {
			t.Error(what)
		}
	}
}

package model

import (
	"net/netip"
	"strings"
	"testing"
)

// Where load balancers could not answer SYNs, or no agent takes connections over, the reason is named.
func TestSYNProxyIsRefusedWhereItCannotBe(t *testing.T) {
	base := func() Fleet {
		s := NewService()
		s.Name, s.VIP, s.Ports, s.SYNProxy = "web", netip.MustParseAddr("198.51.100.10"), []uint16{80}, SYNProxyAuto
		server := NewServer()
		server.Name, server.Address, server.ID = "s1", netip.MustParseAddr("10.0.0.1"), 1
		s.Servers = []Server{server}
		return Fleet{Keys: Keys{Placement: [16]byte{1}, Current: 1, Cookie: map[uint32][16]byte{1: {2}}}, Services: []Service{s}}
	}
	for name, c := range map[string]struct {
		change func(*Service)
		want   string
	}{
		"sound":        {func(*Service) {}, ""},
		"always":       {func(s *Service) { s.SYNProxy = SYNProxyAlways }, ""},
		"gue":          {func(s *Service) { s.Forward = ForwardGUE }, ""},
		"l2":           {func(s *Service) { s.Forward = ForwardL2 }, ""},
		"udp":          {func(s *Service) { s.Protocol = ProtocolUDP }, "services[0].syn_proxy: it needs tcp, and the service is udp"},
		"through":      {func(s *Service) { s.Return = ReturnThrough }, "services[0].syn_proxy: an agent takes connections over at the server, and with return: through there is none"},
		"hash":         {func(s *Service) { s.Affinity, s.Fallback = AffinityHash, FallbackHash }, "services[0].syn_proxy: affinity hash finds connections by what their SYN has left behind"},
		"table":        {func(s *Service) { s.Affinity = AffinityTable }, "services[0].syn_proxy: affinity table"},
		"choices":      {func(s *Service) { s.Dispatch = DispatchChoices }, "services[0].syn_proxy: servers accept or pass on SYNs"},
		"replicated":   {func(s *Service) { s.Fallback = FallbackReplicated }, "services[0].syn_proxy: clients without timestamps"},
		"mptcp":        {func(s *Service) { s.MPTCP.FirstPort = 40000 }, "services[0].syn_proxy: load balancers that answer SYNs themselves speak plain TCP"},
		"sessions":     {func(s *Service) { s.Session = SessionTLS }, "services[0].syn_proxy: with session: tls load balancers answer all SYNs anyway"},
		"unknown":      {func(s *Service) { s.SYNProxy = 9 }, "services[0].syn_proxy: unknown value 9"},
		"no auto":      {func(s *Service) { s.SYNProxy, s.SYNLimit = SYNProxyAlways, 10 }, "services[0].syn_limit: with syn_proxy: always nothing goes by it"},
		"off":          {func(s *Service) { s.SYNProxy, s.SYNLimit = SYNProxyOff, 10 }, "services[0].syn_limit: with syn_proxy: off nothing goes by it"},
		"a high limit": {func(s *Service) { s.SYNLimit = MaxSYNLimit + 1 }, "services[0].syn_limit: 10000001 is out of range"},
	} {
		f := base()
		c.change(&f.Services[0])
		f.ApplyDefaults()
		switch err := f.Validate(); {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: have %v, want %s", name, err, c.want)
		}
	}
	f := base()
	f.ApplyDefaults()
	if f.Services[0].SYNLimit != DefaultSYNLimit {
		t.Errorf("the limit is %d", f.Services[0].SYNLimit)
	}
}

// The room of load balancers is that of services with sessions and with syn_proxy together.
func TestServicesWithSYNProxyCountAsThoseWithSessions(t *testing.T) {
	f := Fleet{}
	for i := range MaxSessionServices + 1 {
		s := Service{SYNProxy: SYNProxyAlways}
		if i%2 == 0 {
			s = Service{Session: SessionTLS}
		}
		f.Services = append(f.Services, s)
	}
	if err := f.Validate(); err == nil || !strings.Contains(err.Error(), "257 services with session tls or syn_proxy, at most 256 fit") {
		t.Error(err)
	}
}

package model

import (
	"net/netip"
	"strings"
	"testing"
)

// Promise: A predecessor that would send packets back, or whose connections nobody could tell from those that begin here, is refused.
func TestPredecessorsThatCannotWorkAreRefused(t *testing.T) {
	address := func(text string) netip.Addr { return netip.MustParseAddr(text) }
	to := func(addresses ...string) func(*Service) {
		return func(s *Service) {
			s.Predecessor.Addresses = nil
			for _, one := range addresses {
				s.Predecessor.Addresses = append(s.Predecessor.Addresses, address(one))
			}
		}
	}
	for name, test := range map[string]struct {
		edit func(*Service)
		want string // in the refusal; empty: it is taken
	}{
		"fine":                        {func(*Service) {}, ""},
		"a table":                     {func(s *Service) { s.Affinity = AffinityTable }, ""},
		"a local table":               {func(s *Service) { s.Affinity, s.Forward = AffinityLocal, ForwardL2 }, ""},
		"UDP by a local table":        {func(s *Service) { s.Affinity, s.Protocol = AffinityLocal, ProtocolUDP }, ""},
		"another family, by layer 2":  {to("2001:db8::9"), ""},
		"another family, by a tunnel": {func(s *Service) { to("2001:db8::9")(s); s.Predecessor.Forward = ForwardGUE }, "an address of the servers' family"},
		"its own vip":                 {to("198.51.100.10"), "is the vip, which leads here"},
		"a further vip":               {func(s *Service) { s.MoreVIPs = []netip.Addr{address("198.51.100.12")}; to("198.51.100.12")(s) }, "is the vip, which leads here"},
		"the vip of another":          {to("198.51.100.11"), "is the vip of service other, which leads here"},
		"a server":                    {to("10.0.0.1"), "is one of the servers"},
		"a node of this fleet":        {to("10.0.0.21"), "is node lb1 of this fleet"},
		"twice":                       {to("10.0.0.9", "10.0.0.9"), "is listed twice"},
		"too many":                    {to("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.1.0.7", "10.1.0.8", "10.1.0.9"), "at most 8 fit"},
		"loopback":                    {to("127.0.0.1"), "127.0.0.1"},
		"a group":                     {to("224.0.0.1"), "224.0.0.1"},
		"by SRv6":                     {func(s *Service) { s.Predecessor.Forward = ForwardSRv6 }, "use l2, ipip or gue"},
		"a share of nobody's":         {func(s *Service) { to()(s); s.Predecessor.Share = ShareOf(10) }, "there is none"},
		"UDP by cookies":              {func(s *Service) { s.Protocol = ProtocolUDP }, "predecessor"},
		"a hash":                      {func(s *Service) { s.Affinity, s.Dispatch = AffinityHash, DispatchMaglev }, "nothing in a packet says"},
		"replicated":                  {func(s *Service) { s.Fallback = FallbackReplicated }, "the replicated table"},
		"sessions":                    {func(s *Service) { s.Session = SessionTLS }, "would answer for the predecessor"},
		"a SYN proxy":                 {func(s *Service) { s.SYNProxy = SYNProxyAuto }, "would answer for the predecessor"},
		"cookies without agents":      {func(s *Service) { s.Forward = ForwardL2 }, "only agents see that"},
	} {
		service := func(name, vip string) Service {
			s := NewService()
			s.Name, s.VIP, s.Ports, s.Protocol = name, address(vip), []uint16{80}, ProtocolTCP
			s.Dispatch, s.Affinity, s.Forward, s.Return = DispatchRR, AffinityCookie, ForwardIPIP, ReturnDirect
			s.Servers = []Server{{Name: "s1", Address: address("10.0.0.1"), ID: 1, Weight: 1}}
			return s
		}
		fleet := Fleet{Services: []Service{service("web", "198.51.100.10"), service("other", "198.51.100.11")}, Nodes: []Node{{Name: "lb1", Address: address("10.0.0.21")}}}
		to("10.0.0.9")(&fleet.Services[0])
		test.edit(&fleet.Services[0])
		fleet.ApplyDefaults()
		refusal := ""
		if err := fleet.Validate(); err != nil {
			refusal = err.Error()
		}
		about := strings.Contains(refusal, "predecessor")
		if test.want == "" && about || test.want != "" && !(about && strings.Contains(refusal, test.want)) {
			t.Errorf("%s: %q, want %q", name, refusal, test.want)
		}
	}
}

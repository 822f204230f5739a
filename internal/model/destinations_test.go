package model

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

var anyRange = rapid.Custom(func(t *rapid.T) PortRange {
	return PortRange{rapid.Uint16().Draw(t, "first"), rapid.Uint16().Draw(t, "last")}
})

func TestDestinationsThatCannotBeAreRefused(t *testing.T) {
	add := func(change func(s *Service)) func(*Fleet) {
		return func(f *Fleet) {
			other := f.Services[0].Clone()
			other.Name, other.VIP = "other", netip.MustParseAddr("198.51.100.99")
			other.Ports = []uint16{8080}
			change(&other)
			f.Services = append(f.Services, other)
		}
	}
	vip := func(text string) netip.Addr { return netip.MustParseAddr(text) }
	first := func(change func(s *Service)) func(*Fleet) { return func(f *Fleet) { change(&f.Services[0]) } }
	expectRefused(t, []contradiction{
		{"vip twice", first(func(s *Service) { s.MoreVIPs = []netip.Addr{s.VIP} }), "services[0].vips[1]", "twice"},
		{"vip that cannot be", first(func(s *Service) { s.MoreVIPs = []netip.Addr{vip("224.0.0.1")} }), "services[0].vips[1]", "unicast"},
		{"too many vips", first(func(s *Service) {
			for i := range MaxVIPs {
				s.MoreVIPs = append(s.MoreVIPs, netip.AddrFrom4([4]byte{198, 51, 102, byte(i + 1)}))
			}
		}), "services[0].vips", "at most 16"},
		{"several vips with through", first(func(s *Service) { s.Return, s.MoreVIPs = ReturnThrough, []netip.Addr{vip("198.51.100.98")} }), "services[0].vips", "one address"},
		{"table of both families", first(func(s *Service) { s.Affinity, s.MoreVIPs = AffinityTable, []netip.Addr{vip("2001:db8::1")} }), "services[0].vips", "one family"},
		{"vip of another service", add(func(s *Service) {
			s.MoreVIPs, s.Ports = []netip.Addr{vip("198.51.100.10")}, []uint16{443}
		}), "services[1].ports[0]", "port 443 of 198.51.100.10"},
		{"server that is a further vip", first(func(s *Service) { s.MoreVIPs = []netip.Addr{s.Servers[0].Address} }), "services[0].servers[0].address", "loop"},
		{"port in a range", first(func(s *Service) { s.PortRanges = []PortRange{{440, 450}} }), "services[0].ports[2]", "port 443 is listed twice"},
		{"ranges that overlap", first(func(s *Service) { s.PortRanges = []PortRange{{1000, 2000}, {1500, 1600}} }), "services[0].ports[3]", "port 1500"},
		{"all and others", first(func(s *Service) { s.PortRanges = []PortRange{AllPorts} }), "services[0].ports[2]", "all ports"},
		{"range from 0", first(func(s *Service) { s.PortRanges = []PortRange{{0, 10}} }), "services[0].ports[2]", "not a port"},
		{"range with through", first(func(s *Service) { s.Return, s.PortRanges = ReturnThrough, []PortRange{{1000, 2000}} }), "services[0].ports", "return: direct"},
		{"range with sessions", first(func(s *Service) { s.Session, s.PortRanges = SessionTLS, []PortRange{{1000, 2000}} }), "services[0].ports", "connection tracking"},
		{"range with syn_proxy", first(func(s *Service) { s.SYNProxy, s.PortRanges = SYNProxyAlways, []PortRange{{1000, 2000}} }), "services[0].ports", "connection tracking"},
		{"ranges alone, checked", first(func(s *Service) { s.Ports, s.PortRanges, s.Health.Check = nil, []PortRange{{1000, 2000}}, CheckTCP }), "services[0].health.port", "missing"},
		{"range of another service", add(func(s *Service) { s.VIP, s.PortRanges = vip("198.51.100.10"), []PortRange{{100, 500}} }), "services[1].ports[1]", "port 443"},
		{"port of another one's range", func(f *Fleet) {
			f.Services[0].PortRanges = []PortRange{{1000, 9000}}
			add(func(s *Service) { s.VIP = vip("198.51.100.10") })(f)
		}, "services[1].ports[0]", "port 8080"},
		{"all ports twice", func(f *Fleet) {
			f.Services[0].Ports, f.Services[0].PortRanges = nil, []PortRange{AllPorts}
			add(func(s *Service) { s.VIP, s.Ports, s.PortRanges = vip("198.51.100.10"), nil, []PortRange{AllPorts} })(f)
		}, "services[1].ports[0]", "also has"},
		{"more ranges than fit", func(f *Fleet) {
			for i := range uint16(MaxPortRanges) {
				f.Services[0].PortRanges = append(f.Services[0].PortRanges, PortRange{1000 + 10*i, 1005 + 10*i})
			}
			add(func(s *Service) { s.VIP, s.PortRanges = vip("198.51.100.10"), []PortRange{{5000, 6000}} })(f)
		}, "services[1].ports", "more than 16 ranges"},
		{"mptcp in a range", first(func(s *Service) {
			s.MPTCP, s.PortRanges = MPTCP{FirstPort: 40000, Ports: 100}, []PortRange{{39000, 41000}}
		}), "services[0].ports[2]", "mptcp"},
	})
}

func TestAllPortsLeaveThoseThatOthersName(t *testing.T) {
	f := fleet(3)
	rest := f.Services[0].Clone()
	rest.Name, rest.Ports, rest.PortRanges, rest.Health = "rest", nil, []PortRange{AllPorts}, Health{}
	f.Services = append(f.Services, rest)
	f.ApplyDefaults()
	if err := f.Validate(); err != nil {
		t.Error(err)
	}
}

func TestClientsOfBothFamiliesMayBeAllowedAtVIPsOfBoth(t *testing.T) {
	f := fleet(3)
	f.Services[0].Allow = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	f.ApplyDefaults()
	if err := f.Validate(); err == nil {
		t.Error("a prefix of IPv6 is accepted at a VIP of IPv4")
	}
	f.Services[0].MoreVIPs = []netip.Addr{netip.MustParseAddr("2001:db8::10")}
	if err := f.Validate(); err != nil {
		t.Error(err)
	}
}

func TestPortsAreReadAndWrittenAlike(t *testing.T) {
	for text, want := range map[string]string{"80": "80", "30000-32767": "30000-32767", "all": "all", "1-65535": "all", "80 - 90": "80-90"} {
		s := Service{}
		if err := s.AddPorts(text); err != nil || s.PortsText() != want {
			t.Errorf("%s is %s, %v", text, s.PortsText(), err)
		}
	}
	for _, text := range []string{"", "0", "70000", "80-", "-80", "90-80", "80-80", "80-90-100", "http", "ALL", "0-10"} {
		if err := new(Service).AddPorts(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

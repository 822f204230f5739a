package model

import (
	"net/netip"
	"strings"
	"testing"
)

func TestPrefixesThatMakeNoSenseAreRefused(t *testing.T) {
	many := func(s *Service) {
		for i := range MaxAllowed + 1 {
			s.Allow = append(s.Allow, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16))
		}
	}
	list := func(texts ...string) func(*Service) {
		return func(s *Service) {
			for _, text := range texts {
				prefix, err := ParseSources(text)
				if err != nil {
					t.Fatal(err)
				}
				s.Allow = append(s.Allow, prefix)
			}
		}
	}
	for name, c := range map[string]struct {
		change       func(*Service)
		path, remedy string
	}{
		"fits":              {list("10.0.0.0/8", "0.0.0.0/0", "192.0.2.7"), "", ""},
		"too many":          {many, "services[0].allow", "join"},
		"bits behind":       {list("10.0.0.1/8"), "services[0].allow[0]", "use 10.0.0.0/8"},
		"twice":             {list("10.0.0.0/8", "10.0.0.0/8"), "services[0].allow[1]", "remove it"},
		"another family":    {list("2001:db8::/32"), "services[0].allow[0]", "remove it"},
		"replicated":        {func(s *Service) { list("10.0.0.0/8")(s); s.Fallback = FallbackReplicated }, "services[0].allow", "second-chance"},
		"further subflows":  {func(s *Service) { list("10.0.0.0/8")(s); s.MPTCP = MPTCP{FirstPort: 40000, Ports: 1024} }, "services[0].allow", "mptcp"},
		"network functions": {func(s *Service) { list("10.0.0.0/8")(s); s.Protocol = ProtocolAny }, "services[0].allow", "functions"},
	} {
		f := fleet(2)
		c.change(&f.Services[0])
		f.ApplyDefaults()
		err := f.Validate()
		if c.path == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.path+": ") || !strings.Contains(err.Error(), c.remedy) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"", "10.0.0.0/33", "10.0.0.0/", "host"} {
		if _, err := ParseSources(text); err == nil {
			t.Errorf("%q is a prefix", text)
		}
	}
}

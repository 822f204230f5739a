package doctor

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// Promise: `doctor` names the open sockets in ranges of ports, and warns where there is none and no rule takes a port elsewhere.
func TestRangesOfPortsAreLookedAt(t *testing.T) {
	const dport = `{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": %s}}, {"redirect": {"port": 8080}}`
	sockets := func(texts ...string) (list []netip.AddrPort) {
		for _, text := range texts {
			list = append(list, netip.MustParseAddrPort(text))
		}
		return list
	}
	high := model.PortRange{First: 30000, Last: 32767}
	for name, test := range map[string]struct {
		r                     model.PortRange
		listening             []netip.AddrPort
		rule                  string
		severity              Severity
		want, translationWant string
	}{
		"nothing":          {high, nil, "", Warning, "nothing listens on any of tcp ports 30000-32767 of 198.51.100.10", ""},
		"below and above":  {high, sockets("0.0.0.0:29999", "0.0.0.0:32768"), "", Warning, "nothing listens", ""},
		"another address":  {high, sockets("127.0.0.1:30001"), "", Warning, "nothing listens", ""},
		"the VIP":          {high, sockets("198.51.100.10:30000"), "", OK, "on 30000 of tcp ports 30000-32767 of", ""},
		"runs, twice":      {high, sockets("[::]:30002", "0.0.0.0:30001", "0.0.0.0:30001", "0.0.0.0:32767"), "", OK, "on 30001-30002, 32767 of", ""},
		"many":             {high, sockets("0.0.0.0:30001", "0.0.0.0:30003", "0.0.0.0:30005", "0.0.0.0:30007", "0.0.0.0:30009", "0.0.0.0:30011", "0.0.0.0:30013"), "", OK, "30007, 30009, 2 more of", ""},
		"all":              {model.AllPorts, sockets("0.0.0.0:22", "198.51.100.10:8443"), "", OK, "on 22, 8443 of the tcp ports of", ""},
		"all, another's":   {model.AllPorts, sockets("0.0.0.0:2222"), "", Warning, "nothing listens on any of the tcp ports of", ""},
		"a rule":           {high, nil, fmt.Sprintf(dport, `{"range": [31000, 31002]}`), OK, "a rule of nftables takes 31000-31002 of tcp ports", "takes tcp ports 31000-31002 elsewhere"},
		"a rule of others": {high, nil, fmt.Sprintf(dport, "443"), Warning, "nothing listens", ""},
		"a rule of all":    {model.AllPorts, nil, fmt.Sprintf(dport, `{"range": [2220, 2223]}`), OK, "takes 2220-2221, 2223 of", "takes tcp ports 2220-2221, 2223 elsewhere"},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthyFacts(RoleAgent)
			other := f.File.Fleet.Services[0]
			other.Name, other.Ports, other.Servers = "ssh", []uint16{2222}, nil
			f.File.Fleet.Services = append(f.File.Fleet.Services, other)
			s := &f.File.Fleet.Services[0]
			s.Ports, s.PortRanges = nil, []model.PortRange{test.r}
			f.Host.Listening[model.ProtocolTCP] = test.listening
			if test.rule != "" {
				rules, err := parseTranslation([]byte(rulesOf(test.rule, "")))
				if err != nil {
					t.Fatal(err)
				}
				f.Host.Translation = translationFacts{Known: true, Rules: rules}
			}
			if found := judgeListeners(f); len(found) != 1 || found[0].Severity != test.severity || !strings.Contains(found[0].Found, test.want) {
				t.Errorf("%+v", found)
			}
			if found := judgeTranslation(f); test.translationWant != "" && (len(found) != 1 || found[0].Severity != Warning || !strings.Contains(found[0].Found, test.translationWant)) {
				t.Errorf("translation: %+v", found)
			}
		})
	}
	f := healthyFacts(RoleAgent)
	s := &f.File.Fleet.Services[0]
	s.PortRanges = []model.PortRange{high}
	if found := judgeListeners(f); len(found) != 2 || found[0].Found != "on every single port of 198.51.100.10" || found[1].Severity != Warning {
		t.Errorf("with single ports: %+v", found)
	}
	f.Host.Translation = translationFacts{Known: true, Rules: make([]translationRule, rulesMost)}
	for i := range f.Host.Translation.Rules {
		f.Host.Translation.Rules[i].Family = "ip6"
	}
	if found := f.judgeRange(s, s.VIP, high); found.Severity != OK || !strings.Contains(found.Found, "too many") {
		t.Errorf("with a million rules: %+v", found)
	}
}

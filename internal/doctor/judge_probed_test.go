package doctor

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
)

// What the agent's SYNs have met counts for a VIP that is on no interface, whatever rules say and nft shows.
func TestWhatTheAgentHasProbedCounts(t *testing.T) {
	age := api.Seconds(3)
	const dnat = `{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 80}}, {"dnat": {"family": "ip", "addr": "10.244.1.7", "port": 8080}}`
	for name, test := range map[string]struct {
		state api.ProbeState
		rule  string
		want  map[string]string // by check
	}{
		"taken by a rule": {api.ProbeTaken, dnat, map[string]string{"vip": "ok on no interface; SYNs of the agent to tcp port 80 (3 s ago) are taken", "listener": "ok on every port",
			"translation": "ok a rule of nftables takes tcp port 80 elsewhere (dnat to 10.244.1.7:8080): connections keep their cookies by entries per flow, 7 of 65536 are taken"}},
		"taken, and nft shows nothing": {api.ProbeTaken, `{"accept": null}`, map[string]string{"vip": "ok on no interface", "listener": "ok on every port",
			"translation": "ok something that nft does not show (iptables-legacy, IPVS, eBPF, a route) takes tcp port 80 elsewhere"}},
		"no listener": {api.ProbeRefused, dnat, map[string]string{"vip": "ok on no interface", "listener": "problem nothing listens where tcp port 80 of 198.51.100.10 is taken", "translation": "ok"}},
		"lost in spite of a rule": {api.ProbeLost, dnat, map[string]string{"vip": "problem not an address of this host, and SYNs of the agent to tcp port 80 (3 s ago) are lost",
			"listener": "ok", "translation": "ok a rule of nftables"}},
		"lost": {api.ProbeLost, `{"accept": null}`, map[string]string{"vip": "problem not an address of this host, and SYNs", "listener": "ok", "translation": "ok no rule"}},
		"not known": {api.ProbeUnknown, dnat, map[string]string{"vip": "problem not an address of this host, and whether packets to tcp port 80 (3 s ago) are taken is not known",
			"listener": "ok", "translation": "ok a rule of nftables"}},
		"not probed":              {"", dnat, map[string]string{"vip": "warning not an address of this host: rules of nftables take its packets", "listener": "ok", "translation": "ok a rule"}},
		"not probed, and no rule": {"", `{"accept": null}`, map[string]string{"vip": "problem not an address of this host: it does not", "listener": "ok", "translation": "ok no rule"}},
	} {
		rules, err := parseTranslation([]byte(rulesOf(test.rule, "")))
		if err != nil {
			t.Fatal(err)
		}
		f := healthyFacts(RoleAgent)
		s := &f.File.Fleet.Services[0]
		s.Ports = []uint16{80}
		delete(f.Host.Addresses, s.VIP)
		f.Host.Translation = translationFacts{Known: true, Rules: rules}
		f.Daemon.Translated = &api.TranslatedUse{Entries: 7, Room: 65536}
		if test.state != "" {
			f.Daemon.Probes = []api.ProbedPort{{At: netip.AddrPortFrom(s.VIP, 80), Protocol: "tcp", State: test.state, Age: &age}}
		}
		for _, found := range append(append(judgeVIPs(f), judgeListeners(f)...), judgeTranslation(f)...) {
			want, there := test.want[found.Check]
			if have := found.Severity.String() + " " + found.Found; !there || !strings.HasPrefix(have, want) {
				t.Errorf("%s: %s: %q, not %q", name, found.Check, have, want)
			}
			if (found.Severity == OK) != (found.Remedy == "") {
				t.Errorf("%s: %+v", name, found)
			}
		}
	}
}

// Agents before those that probe UDP name no protocol.
func TestWhatAnOlderAgentHasProbedIsOfTCP(t *testing.T) {
	for state, want := range map[api.ProbeState]string{api.ProbeTaken: "SYNs of the agent to tcp port 80 are taken", api.ProbeRefused: "nothing listens where tcp port 80 of 198.51.100.10 is taken: an RST answered"} {
		f := healthyFacts(RoleAgent)
		s := &f.File.Fleet.Services[0]
		s.Ports = []uint16{80}
		delete(f.Host.Addresses, s.VIP)
		if err := json.Unmarshal(fmt.Appendf(nil, `[{"at": "%s:80", "state": "%s"}]`, s.VIP, state), &f.Daemon.Probes); err != nil {
			t.Fatal(err)
		}
		if found := append(judgeVIPs(f), judgeListeners(f)...); !slices.ContainsFunc(found, func(f Finding) bool { return strings.Contains(f.Found, want) }) {
			t.Errorf("%s: %+v", state, found)
		}
	}
}

// Promise: `doctor` looks for no listener where kube-proxy's IPVS has a VIP, says what has become of the agent's SYNs, and how kube-proxy keeps it from
// answering ARP.
func TestIPVSTakesPacketsBeforeSockets(t *testing.T) {
	const by = " on kube-ipvs0, by kube-proxy's IPVS"
	for state, want := range map[api.ProbeState]string{
		api.ProbeTaken: "ok" + by + "; SYNs of the agent to tcp port 80 are taken", api.ProbeLost: "problem" + by + ", and SYNs of the agent to tcp port 80 are lost",
		api.ProbeUnknown: "problem" + by + ", and whether", "": "warning" + by + ": that takes its packets, but whether they arrive is not known",
	} {
		f := healthyFacts(RoleAgent)
		s := &f.File.Fleet.Services[0]
		s.Ports, f.Host.Listening = []uint16{80}, nil
		f.Host.Addresses[s.VIP] = "kube-ipvs0"
		f.Devices[0].Prefixes, f.Devices[0].ARPIgnore = []netip.Prefix{netip.PrefixFrom(s.VIP, 24)}, 0
		if state != "" {
			f.Daemon.Probes = []api.ProbedPort{{At: netip.AddrPortFrom(s.VIP, 80), Protocol: "tcp", State: state}}
		}
		vips, listeners, arp := judgeVIPs(f), judgeListeners(f), judgeARP(f)
		if have := vips[0].Severity.String() + " " + vips[0].Found; len(vips) != 1 || !strings.HasPrefix(have, want) {
			t.Errorf("%s: %q, not %q", state, have, want)
		}
		if len(listeners) != 1 || listeners[0].Severity != OK {
			t.Errorf("%s: %+v", state, listeners)
		}
		if len(arp) != 1 || arp[0].Severity != Problem || !strings.HasSuffix(arp[0].Remedy, "; kube-proxy does it by ipvs.strictARP: true") {
			t.Errorf("%s: %+v", state, arp)
		}
	}
}

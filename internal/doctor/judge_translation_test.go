package doctor

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// rulesOf are those of a chain at prerouting that jumps to another one, as nft prints them.
func rulesOf(hooked, other string) string {
	rule := func(chain, expr string) string {
		return fmt.Sprintf(`,{"rule": {"family": "inet", "table": "t", "chain": %q, "handle": 9, "expr": [%s]}}`, chain, expr)
	}
	text := `{"nftables": [{"metainfo": {"version": "1.0.6", "json_schema_version": 1}}, {"table": {"family": "inet", "name": "t"}},
		{"set": {"family": "inet", "name": "s", "table": "t", "type": "inet_service", "elem": [80, {"range": [90, 99]}]}},
		{"map": {"family": "inet", "name": "m", "table": "t", "type": "inet_service", "map": "verdict", "elem": [[80, {"goto": {"target": "other"}}]]}},
		{"chain": {"family": "inet", "table": "t", "name": "hooked", "type": "nat", "hook": "prerouting", "prio": -100, "policy": "accept"}},
		{"chain": {"family": "inet", "table": "t", "name": "other"}}`
	return text + rule("hooked", hooked) + rule("other", other) + "]}"
}

// What a rule does to TCP port 80 of a service is known, or it is known that it is not.
func TestRulesThatTakeAServicesPortElsewhereAreRead(t *testing.T) {
	match := func(op, left, right string) string {
		return fmt.Sprintf(`{"match": {"op": %q, "left": %s, "right": %s}}, `, op, left, right)
	}
	payload := func(protocol, name string) string {
		return fmt.Sprintf(`{"payload": {"protocol": %q, "field": %q}}`, protocol, name)
	}
	const redirect, jump = `{"redirect": {"port": 8080}}`, `{"jump": {"target": "other"}}`
	port, address := payload("tcp", "dport"), payload("ip", "daddr")
	device := match("!=", `{"meta": {"key": "iifname"}}`, `"docker0"`)
	for _, test := range []struct {
		name, hooked, other string
		want                likely
	}{
		{"no condition", redirect, "", surely},
		{"port", match("==", port, "80") + redirect, "", surely},
		{"another port", match("==", port, "81") + redirect, "", never},
		{"all but the port", match("!=", port, "80") + redirect, "", never},
		{"all but another", match("!=", port, "22") + redirect, "", surely},
		{"range", match("==", port, `{"range": [1, 100]}`) + redirect, "", surely},
		{"set", match("==", port, `{"set": [443, {"range": [1000, 1005]}]}`) + redirect, "", never},
		{"named set", match("==", port, `"@s"`) + redirect, "", surely},
		{"counted element", match("==", port, `{"set": [{"elem": {"val": 80, "counter": {}}}]}`) + redirect, "", surely},
		{"UDP", match("==", payload("udp", "dport"), "80") + redirect, "", never},
		{"UDP but one", match("!=", payload("udp", "dport"), "53") + redirect, "", never},
		{"TCP in general", match("==", `{"meta": {"key": "l4proto"}}`, `"tcp"`) + redirect, "", surely},
		{"any transport", match("==", `{"meta": {"key": "l4proto"}}`, `"tcp"`) + match("==", payload("th", "dport"), "80") + redirect, "", surely},
		{"address", match("==", address, `"198.51.100.10"`) + `{"dnat": {"family": "ip", "addr": "10.0.0.9", "port": 80}}`, "", surely},
		{"another address", match("==", address, `"198.51.100.11"`) + redirect, "", never},
		{"prefix", match("==", address, `{"prefix": {"addr": "198.51.100.0", "len": 24}}`) + `{"redirect": null}`, "", surely},
		{"range of addresses", match("==", address, `{"range": ["198.51.100.0", "198.51.100.9"]}`) + redirect, "", never},
		{"IPv6", match("!=", payload("ip6", "daddr"), `"2001:db8::1"`) + redirect, "", never},
		{"DNAT to IPv6", `{"dnat": {"family": "ip6", "addr": "2001:db8::1"}}`, "", never},
		{"both", match("==", `{"concat": [`+address+`, `+port+`]}`, `{"set": [{"concat": ["198.51.100.10", 80]}]}`) + redirect, "", surely},
		{"jump", match("==", `{"fib": {"result": "type", "flags": ["daddr"]}}`, `"local"`) + jump, device + match("==", port, "80") + redirect, surely},
		{"jump on another port", match("==", port, "81") + jump, redirect, never},
		{"verdict map", `{"vmap": {"key": ` + port + `, "data": {"set": [[80, ` + jump + `]]}}}`, match("==", port, "80") + redirect, surely},
		{"named verdict map", `{"vmap": {"key": ` + port + `, "data": "@m"}}`, match("==", port, "80") + redirect, surely},
		{"verdict map of another port", `{"vmap": {"key": ` + port + `, "data": {"set": [[81, ` + jump + `]]}}}`, redirect, never},
		{"verdict map of both", `{"vmap": {"key": {"concat": [` + address + `, ` + port + `]}, "data": {"set": [[{"concat": ["198.51.100.10", 80]}, ` + jump + `]]}}}`, redirect, surely},
		{"verdict map of another address", `{"vmap": {"key": {"concat": [` + address + `, ` + port + `]}, "data": {"set": [[{"concat": ["198.51.100.11", 80]}, ` + jump + `]]}}}`, redirect, never},
		{"verdict map at random", `{"vmap": {"key": {"numgen": {"mode": "random", "mod": 2, "offset": 0}}, "data": {"set": [[0, ` + jump + `], [1, {"accept": null}]]}}}`, redirect, surely},
		{"nonsense of a verdict map", `{"vmap": 5}, {"vmap": {"key": 7, "data": {"set": [1, [2], [3, 4]]}}}`, redirect, never},
		{"from the host itself", match("==", `{"fib": {"result": "type", "flags": ["saddr"]}}`, `"local"`) + redirect, "", never},
		{"no jump", `{"accept": null}`, redirect, never},
		{"a circle", jump, jump, never},
		{"device alone", device + redirect, "", perhaps},
		{"of iptables", match("==", port, "80") + `{"counter": {}}, {"xt": {"type": "target", "name": "REDIRECT"}}`, "", surely},
		{"multiport", `{"xt": {"type": "match", "name": "multiport"}}, {"xt": {"type": "target", "name": "DNAT"}}`, "", perhaps},
		{"another target", `{"xt": {"type": "target", "name": "TCPMSS"}}`, "", never},
		{"nonsense", `{"match": 5}, {"match": {"op": "==", "left": [], "right": {"set": {}}}}, {"redirect": 7}`, "", perhaps},
	} {
		t.Run(test.name, func(t *testing.T) {
			rules, err := parseTranslation([]byte(rulesOf(test.hooked, test.other)))
			if err != nil {
				t.Fatal(err)
			}
			f := healthyFacts(RoleAgent)
			f.Host.Translation = translationFacts{Known: true, Rules: rules}
			if rule, have, _ := f.translated(&f.File.Fleet.Services[0], f.File.Fleet.Services[0].VIP, 80); have != test.want {
				t.Errorf("%d by %+v, want %d; rules %+v", have, rule, test.want, rules)
			}
		})
	}
}

func TestRulesThatCannotBeReadAreAnError(t *testing.T) {
	for _, text := range []string{"", "Error: syntax", `{"nftables": 1}`, `{"nftables": [{"rule": 1}]}`} {
		if _, err := parseTranslation([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// What counts is whether something listens where a rule takes a port, not at the port itself.
func TestListenersBehindARedirectCount(t *testing.T) {
	const redirect, dnat = `{"redirect": {"port": 8080}}`, `{"dnat": {"family": "ip", "addr": "%s", "port": 8081}}`
	const port, device = `{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 80}}, `,
		`{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "eth0"}}, `
	for _, test := range []struct {
		rule, listening, want string
		severity              Severity
	}{
		{redirect, "0.0.0.0:8080", "on every port", OK},
		{redirect, "0.0.0.0:80", "port 80 of 198.51.100.10 (redirect to port 8080): connections are refused", Problem},
		{redirect, "0.0.0.0:22", "(redirect to port 8080): connections are refused", Problem},
		{`{"redirect": null}`, "0.0.0.0:80", "on every port", OK},
		{`{"redirect": {"port": {"range": [8080, 8089]}}}`, "0.0.0.0:22", "on every port", OK},
		{fmt.Sprintf(dnat, "10.0.0.1"), "10.0.0.1:8081", "on every port", OK},
		{fmt.Sprintf(dnat, "10.0.0.1"), "0.0.0.0:80", "(dnat to 10.0.0.1:8081): connections are refused", Problem},
		{fmt.Sprintf(dnat, "172.17.0.2"), "0.0.0.0:22", "on every port", OK},
		{port + device + redirect, "0.0.0.0:80", "on further conditions): connections are refused", Warning},
		{device + redirect, "0.0.0.0:80", "on every port", OK},
		{device + redirect, "0.0.0.0:22", "unless address translation", Warning},
		{strings.Replace(port, "80", "81", 1) + redirect, "0.0.0.0:22", "nothing listens on tcp port 80 of", Problem},
	} {
		rules, err := parseTranslation([]byte(rulesOf(test.rule, "")))
		if err != nil {
			t.Fatal(err)
		}
		f := healthyFacts(RoleAgent)
		f.File.Fleet.Services[0].Ports = []uint16{80}
		f.Host.Listening[model.ProtocolTCP] = []netip.AddrPort{netip.MustParseAddrPort(test.listening)}
		f.Host.Translation = translationFacts{Known: true, Rules: rules}
		if found := judgeListeners(f); len(found) != 1 || found[0].Severity != test.severity || !strings.Contains(found[0].Found, test.want) {
			t.Errorf("%s, %s: %+v", test.rule, test.listening, found)
		}
		for _, found := range judgeTranslation(f) {
			if strings.Contains(found.Found, "connections work") {
				t.Errorf("%+v", found)
			}
		}
	}
}

// The kernel takes connections over only where a socket listens at the address and port itself.
func TestSessionsOfTranslatedPortsAreAProblem(t *testing.T) {
	for rule, want := range map[string]Severity{`{"redirect": {"port": 443}}`: Problem, `{"accept": null}`: OK} {
		rules, err := parseTranslation([]byte(rulesOf(rule, "")))
		if err != nil {
			t.Fatal(err)
		}
		f := healthyFacts(RoleAgent)
		f.File.Fleet.Services[0].Session, f.Host.Translation = model.SessionTLS, translationFacts{Known: true, Rules: rules}
		worst := OK
		for _, found := range findings(f) {
			if worst = max(worst, found.Severity); found.Severity != OK && found.Check != "sessions" {
				t.Errorf("%s: %+v", rule, found)
			}
		}
		if worst != want {
			t.Errorf("%s: %v, not %v", rule, worst, want)
		}
	}
}

// Its answers are rewritten, whoever they are for.
func TestTheOwnAddressOfAServerBehindNATIsNamed(t *testing.T) {
	f := healthyFacts(RoleLB)
	s := &f.File.Fleet.Services[0]
	named := func() (count int) {
		for _, finding := range judgeForwarding(f) {
			if finding.Check == "own address" && finding.Subject == s.Name && finding.Severity == OK {
				count++
			}
		}
		return count
	}
	s.Return, s.Forward = model.ReturnDirect, model.ForwardIPIP
	if count := named(); count != 0 {
		t.Errorf("of a direct service: %d", count)
	}
	s.Return, s.Forward = model.ReturnThrough, model.ForwardNAT
	if count := named(); count != 1 {
		t.Errorf("of one whose answers return through the load balancer: %d", count)
	}
}

package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// likely is how sure it is that a rule, or a condition of it, takes a packet.
type likely uint8

const (
	never likely = iota
	perhaps
	surely
)

// judgeTranslation: connections whose destination this host rewrites have no socket at the service's address and port.
func judgeTranslation(f *facts) (out []Finding) {
	if f.Role != RoleAgent || !f.Host.Translation.Known && f.Host.Translation.Err == nil {
		return nil
	}
	if err := f.Host.Translation.Err; err != nil {
		return []Finding{{"translation", "", Warning, "not known: " + err.Error(), "look for redirects and DNAT of the services' ports: nft list ruleset"}}
	}
	cookies := false
	f.onVIPs(func(s *model.Service, vip netip.Addr) {
		if !s.Affinity.Cookies() || s.Protocol != model.ProtocolTCP || s.BegunForServers() { // judgeSessions
			return
		}
		cookies = true
		for _, r := range s.AllOfPorts() {
			rule, ports, known := f.translatedIn(s, vip, r)
			what, by := "a rule of nftables", " ("+rule.Text+")"
			if len(ports) == 0 {
				what, by, ports = "something that nft does not show (iptables-legacy, IPVS, eBPF, a route)", "", f.takenIn(s, vip, r)
			}
			switch {
			case len(ports) > 0:
				out = append(out, f.translationOf(s, vip, fmt.Sprintf("%s takes tcp %s elsewhere%s", what, portsWithNoun(ports), by)))
			case !known:
				out = append(out, ok("translation", s.Name, "rules of nftables for its ports %s are too many, and not looked at", r))
			}
		}
	})
	if cookies && len(out) == 0 {
		out = append(out, ok("translation", "", "no rule of nftables names a service's port"))
	}
	return out
}

// translationOf is what it costs that a service's ports are taken elsewhere.
func (f *facts) translationOf(s *model.Service, vip netip.Addr, taken string) Finding {
	found := Finding{"translation", s.Name, Warning, fmt.Sprintf("%s: connections keep their cookies by entries per flow%s; "+
		"keepalives of the server do not renew their cookies: silent ones hold `key rotate` up", taken, f.room()), "let the application listen at the service's port itself"}
	if f.elsewhere(vip) { // as on nodes of Kubernetes: it has to be so
		found.Severity, found.Remedy = OK, ""
	}
	return found
}

func portsWithNoun(ports []uint16) string {
	if len(ports) == 1 {
		return "port " + portsText(ports)
	}
	return "ports " + portsText(ports)
}

// room is how many of the entries are taken.
func (f *facts) room() string {
	if use := f.Daemon.Translated; use != nil {
		return fmt.Sprintf(", %d of %d are taken", use.Entries, use.Room)
	}
	return ""
}

// translated returns the rule that takes a service's port elsewhere, the surest of them, and whether it asks for more than is known here.
func (f *facts) translated(s *model.Service, vip netip.Addr, port uint16) (best translationRule, sure likely, more bool) {
	p := packet{protocol: s.Protocol.String(), to: netip.AddrPortFrom(vip, port)}
	for _, rule := range f.Host.Translation.Rules {
		if l, asks := p.taken(rule); l > sure || l == sure && more && !asks { // what asks for more is not for all clients
			if asks {
				rule.Text += ", on further conditions"
			}
			best, sure, more = rule, l, asks
		}
	}
	return best, sure, more
}

// packet is what conditions are put to.
type packet struct {
	protocol string
	to       netip.AddrPort
}

// taken: a rule that names the port or address is sure, though there may be more that it asks for and that is not known here
// (interfaces, marks).
func (p packet) taken(rule translationRule) (sure likely, more bool) {
	if rule.Family == "ip" && p.to.Addr().Is6() || rule.Family == "ip6" && p.to.Addr().Is4() {
		return never, false
	}
	named := false
	for _, c := range rule.Conditions {
		switch p.meets(c) {
		case never:
			return never, false
		case perhaps:
			more = true
		case surely:
			named = named || c.Op != anyOf && !isProtocol(c.Left)
		}
	}
	if more && !named {
		return perhaps, more
	}
	return surely, more
}

func (p packet) meets(c condition) likely {
	if c.Op == anyOf {
		return surely
	}
	if fromHere(c) {
		return never
	}
	if !p.has(c.Left) {
		return never
	}
	met := p.contains(c.Left, c.Right)
	switch {
	case c.Op == "==":
		return met
	case c.Op == "!=" && met != perhaps:
		return surely - met
	}
	return perhaps
}

// fromHere: it is for packets of this host itself.
func fromHere(c condition) bool {
	fib := field(c.Left, "fib")
	flags, several := field(fib, "flags").([]any)
	return c.Op == "==" && field(fib, "result") == "type" && c.Right == "local" && (field(fib, "flags") == "saddr" || several && slices.Contains(flags, any("saddr")))
}

// has is false for fields of headers that the packet lacks: no comparison with them holds.
func (p packet) has(left any) bool {
	if parts, ok := field(left, "concat").([]any); ok {
		return !slices.ContainsFunc(parts, func(part any) bool { return !p.has(part) })
	}
	protocol, _ := field(field(left, "payload"), "protocol").(string)
	switch protocol {
	case "ip", "ip6":
		return (protocol == "ip6") == p.to.Addr().Is6()
	case "tcp", "udp", "udplite", "sctp", "dccp", "icmp", "icmpv6":
		return protocol == p.protocol
	}
	return true
}

// contains tells whether what the left side takes from the packet is the right side or in it.
func (p packet) contains(left, right any) likely {
	if set, ok := right.(map[string]any); ok {
		if elements, ok := set["set"]; ok {
			right = elements
		}
	}
	if elements, ok := right.([]any); ok {
		sure := never
		for _, element := range elements {
			sure = max(sure, p.equals(left, element))
		}
		return sure
	}
	return p.equals(left, right)
}

func (p packet) equals(left, right any) likely {
	if element, ok := field(right, "elem").(map[string]any); ok {
		right = element["val"]
	}
	if lefts, ok := field(left, "concat").([]any); ok {
		rights, _ := field(right, "concat").([]any)
		if len(rights) != len(lefts) {
			return perhaps
		}
		sure := surely
		for i := range lefts {
			sure = min(sure, p.equals(lefts[i], rights[i]))
		}
		return sure
	}
	switch name := field(field(left, "payload"), "field"); {
	case isProtocol(left):
		return same(right, p.protocol)
	case name == "daddr" && field(field(left, "payload"), "protocol") != "ether":
		return hasAddress(right, p.to.Addr())
	case name == "dport":
		return hasPort(right, p.to.Port())
	}
	return perhaps
}

func isProtocol(left any) bool {
	name := field(field(left, "payload"), "field")
	return field(field(left, "meta"), "key") == "l4proto" || name == "protocol" || name == "nexthdr"
}

// field returns a member of a JSON object, nil if there is none.
func field(value any, name string) any {
	object, _ := value.(map[string]any)
	return object[name]
}

func same(value any, want string) likely {
	switch text, ok := value.(string); {
	case !ok:
		return perhaps
	case text == want:
		return surely
	}
	return never
}

func certain(is bool) likely {
	if is {
		return surely
	}
	return never
}

func hasPort(value any, port uint16) likely {
	if bounds, ok := field(value, "range").([]any); ok && len(bounds) == 2 {
		low, isLow := bounds[0].(float64)
		high, isHigh := bounds[1].(float64)
		if isLow && isHigh {
			return certain(float64(port) >= low && float64(port) <= high)
		}
	}
	if one, ok := value.(float64); ok {
		return certain(one == float64(port))
	}
	return perhaps
}

func hasAddress(value any, address netip.Addr) likely {
	if prefix := field(value, "prefix"); prefix != nil {
		first, known := asAddress(field(prefix, "addr"))
		bits, isNumber := field(prefix, "len").(float64)
		if known && isNumber {
			return certain(netip.PrefixFrom(first, int(bits)).Contains(address))
		}
		return perhaps
	}
	if bounds, ok := field(value, "range").([]any); ok && len(bounds) == 2 {
		low, isLow := asAddress(bounds[0])
		high, isHigh := asAddress(bounds[1])
		if isLow && isHigh {
			return certain(!address.Less(low) && !high.Less(address))
		}
		return perhaps
	}
	if one, known := asAddress(value); known {
		return certain(one == address)
	}
	return perhaps
}

func asAddress(value any) (netip.Addr, bool) {
	text, _ := value.(string)
	address, err := netip.ParseAddr(text)
	return address, err == nil
}

// unheard reports whether nothing listens on a port of a service, and no rule takes it elsewhere.
func (f *facts) unheard(s *model.Service, vip netip.Addr, port uint16) bool {
	_, sure, _ := f.translated(s, vip, port)
	return sure == never && !listens(f.Host.Listening[s.Protocol], netip.AddrPortFrom(vip, port))
}

// judgeListener is about one port of a service that is not unheard: a rule may take it to another socket, also where one is open at the port itself.
func (f *facts) judgeListener(s *model.Service, vip netip.Addr, port uint16) []Finding {
	rule, sure, more := f.translated(s, vip, port)
	here := listens(f.Host.Listening[s.Protocol], netip.AddrPortFrom(vip, port))
	switch {
	case here && sure != surely, sure == surely && f.reaches(rule, s.Protocol, port):
		return nil
	case sure == perhaps:
		return []Finding{{"listener", s.Name, Warning,
			fmt.Sprintf("nothing listens on %s port %d of %s, unless address translation takes it elsewhere (%s, on conditions that are not known)",
				s.Protocol, port, vip, rule.Text), "if it does not: start the application, bound to the VIP or to all addresses"}}
	}
	severity := Problem
	if here && more { // connections that the rule leaves alone are taken
		severity = Warning
	}
	return []Finding{{"listener", s.Name, severity,
		fmt.Sprintf("nothing listens where a rule of nftables takes %s port %d of %s (%s): connections are refused", s.Protocol, port, vip, rule.Text),
		"start the application there, or remove the rule"}}
}

// reaches is false if it is sure that no socket is where a rule takes a port: other hosts and containers are not looked at.
func (f *facts) reaches(rule translationRule, protocol model.Protocol, port uint16) bool {
	port = cmp.Or(rule.To.Port(), port)
	if to := rule.To.Addr(); to.IsValid() {
		_, local := f.Host.Addresses[to]
		return !rule.Known || !local || listens(f.Host.Listening[protocol], netip.AddrPortFrom(to, port))
	}
	return !rule.Known || slices.ContainsFunc(f.Host.Listening[protocol], func(have netip.AddrPort) bool { return have.Port() == port })
}

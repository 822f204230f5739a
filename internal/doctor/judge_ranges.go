// Ranges of ports: applications may open those only when they need them.
package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	portsNamed = 5         // of those that listen
	rulesMost  = 1_000_000 // comparisons of a port with a rule
)

// judgeRange is about a range of ports, or all, of a service on one of its addresses.
func (f *facts) judgeRange(s *model.Service, vip netip.Addr, r model.PortRange) Finding {
	what := fmt.Sprintf("%s ports %s of %s", s.Protocol, r, vip)
	if r == model.AllPorts {
		what = fmt.Sprintf("the %s ports of %s", s.Protocol, vip)
	}
	ports := f.listening(s, vip, r)
	if len(ports) > 0 {
		return ok("listener", s.Name, "on %s of %s", portsText(ports), what)
	}
	if taken := f.takenIn(s, vip, r); len(taken) > 0 {
		return ok("listener", s.Name, "what the agent sends to %s of %s is taken", portsText(taken), what)
	}
	if rule, ports, known := f.translatedIn(s, vip, r); len(ports) > 0 {
		return ok("listener", s.Name, "a rule of nftables takes %s of %s elsewhere (%s)", portsText(ports), what, rule.Text)
	} else if !known {
		return ok("listener", s.Name, "no open socket on %s; rules of nftables, of which there are too many, are not looked at", what)
	}
	return Finding{"listener", s.Name, Warning, fmt.Sprintf("nothing listens on any of %s", what),
		"start the application, bound to the VIP or to all addresses; this is right if it opens ports only when it needs them"}
}

// listening are the ports of a range with an open socket, ascending. Where a service has all ports, those that others name are not its.
func (f *facts) listening(s *model.Service, vip netip.Addr, r model.PortRange) (ports []uint16) {
	for _, socket := range f.Host.Listening[s.Protocol] {
		port := socket.Port()
		if r.Contains(port) && listens([]netip.AddrPort{socket}, netip.AddrPortFrom(vip, port)) && !f.namedElsewhere(s, vip, port) {
			ports = append(ports, port)
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// namedElsewhere reports whether another service has a port of the address by a smaller range.
func (f *facts) namedElsewhere(s *model.Service, vip netip.Addr, port uint16) bool {
	return slices.ContainsFunc(f.File.Fleet.Services, func(o model.Service) bool {
		return o.Name != s.Name && o.Protocol == s.Protocol && o.HasVIP(vip) && !slices.Contains(o.PortRanges, model.AllPorts) && o.HasPort(port)
	})
}

// translatedIn are the ports of a range that a rule surely takes elsewhere, and one of these rules; known is false if there are too many to look at.
func (f *facts) translatedIn(s *model.Service, vip netip.Addr, r model.PortRange) (rule translationRule, ports []uint16, known bool) {
	if (int(r.Last)-int(r.First)+1)*len(f.Host.Translation.Rules) > rulesMost {
		return rule, nil, false
	}
	if len(f.Host.Translation.Rules) == 0 {
		return rule, nil, true
	}
	for port := max(int(r.First), 1); port <= int(r.Last); port++ {
		if found, sure, _ := f.translated(s, vip, uint16(port)); sure == surely && !f.namedElsewhere(s, vip, uint16(port)) {
			rule, ports = found, append(ports, uint16(port))
		}
	}
	return rule, ports, true
}

// portsText names a few ports, runs of them as ranges.
func portsText(ports []uint16) string {
	var texts []string
	for i := 0; i < len(ports); {
		end := i
		for end+1 < len(ports) && ports[end+1] == ports[end]+1 {
			end++
		}
		text := strconv.Itoa(int(ports[i]))
		if end > i {
			text += "-" + strconv.Itoa(int(ports[end]))
		}
		texts = append(texts, text)
		i = end + 1
	}
	if more := len(texts) - portsNamed; more > 0 {
		texts = append(texts[:portsNamed], fmt.Sprintf("%d more", more))
	}
	return strings.Join(texts, ", ")
}

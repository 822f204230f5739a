package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// MaxVIPs is how many addresses one service has at most.
const MaxVIPs = 16

// MaxPortRanges is how many ranges of ports all services of one address and protocol have at most: a packet walks them in order.
const MaxPortRanges = 16

// PortRange are consecutive ports, both ends included.
type PortRange struct {
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
}

// AllPorts is the range of those services that have all ports of their addresses, but for those that other services name.
var AllPorts = PortRange{0, 65535}

// Contains reports whether a port is one of them.
func (r PortRange) Contains(port uint16) bool { return port >= r.First && port <= r.Last }

// Overlaps reports whether two ranges have a port in common.
func (r PortRange) Overlaps(o PortRange) bool { return r.First <= o.Last && o.First <= r.Last }

// String writes a range as a configuration file does.
func (r PortRange) String() string {
	if r == AllPorts {
		return "all"
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// ParsePorts reads a port, a range of ports or all; only a range has a Last. The error is *Invalid.
func ParsePorts(text string) (r PortRange, err error) {
	first, last, isRange := strings.Cut(text, "-")
	if text == "all" {
		return AllPorts, nil
	}
	if r.First, err = ParseNumber[uint16](strings.TrimSpace(first), 1, 65535); err != nil || !isRange {
		return r, err
	}
	r.Last, err = ParseNumber[uint16](strings.TrimSpace(last), 1, 65535)
	if err != nil || r.Last <= r.First {
		return r, &Invalid{Problem: fmt.Sprintf("%q is no range of ports", text), Remedy: "write it as 30000-32767, the smaller port first"}
	}
	if r == (PortRange{1, 65535}) {
		return AllPorts, nil
	}
	return r, nil
}

// InPorts reports whether one of the ranges has a port.
func InPorts(ranges []PortRange, port uint16) bool {
	return slices.ContainsFunc(ranges, func(r PortRange) bool { return r.Contains(port) })
}

// AddPorts adds a port, a range or all to those of a service. The error is *Invalid.
func (s *Service) AddPorts(text string) error {
	r, err := ParsePorts(text)
	if err != nil {
		return err
	}
	if r.Last == 0 {
		s.Ports = append(s.Ports, r.First)
	} else {
		s.PortRanges = append(s.PortRanges, r)
	}
	return nil
}

// AddVIP adds an address to those of a service. The error is *Invalid.
func (s *Service) AddVIP(vip netip.Addr) error {
	switch {
	case slices.Contains(s.VIPs(), vip):
		return &Invalid{Problem: fmt.Sprintf("%s is listed twice", vip), Remedy: "remove one of them"}
	case !s.VIP.IsValid():
		s.VIP = vip
	default:
		s.MoreVIPs = append(s.MoreVIPs, vip)
	}
	return nil
}

// VIPs are the addresses that clients connect to, the first one first; none before there is one.
func (s *Service) VIPs() []netip.Addr {
	if !s.VIP.IsValid() {
		return nil
	}
	return append([]netip.Addr{s.VIP}, s.MoreVIPs...)
}

// HasVIP reports whether an address is one of them.
func (s *Service) HasVIP(vip netip.Addr) bool {
	return vip.IsValid() && (s.VIP == vip || slices.Contains(s.MoreVIPs, vip))
}

// VIPFor is the address that a server is asked for by checks: the first of its own family, or the first.
func (s *Service) VIPFor(server netip.Addr) netip.Addr {
	for _, vip := range s.VIPs() {
		if vip.Is4() == server.Is4() {
			return vip
		}
	}
	return s.VIP
}

// JoinVIP is the address that further subflows of MPTCP join at: the first of IPv4, whose announcements have room beside timestamps.
func (s *Service) JoinVIP() netip.Addr { return s.VIPFor(netip.IPv4Unspecified()) }

// HasIPv6 reports whether one of its addresses is of IPv6.
func (s *Service) HasIPv6() bool { return slices.ContainsFunc(s.VIPs(), netip.Addr.Is6) }

// HasIPv4 reports whether one of its addresses is of IPv4.
func (s *Service) HasIPv4() bool { return slices.ContainsFunc(s.VIPs(), netip.Addr.Is4) }

// SharesVIP reports whether two services have an address in common.
func (s *Service) SharesVIP(o *Service) bool { return slices.ContainsFunc(s.VIPs(), o.HasVIP) }

// HasPort reports whether a port of its addresses is the service's. Where a service has all ports, those that others name are not.
func (s *Service) HasPort(port uint16) bool {
	return slices.Contains(s.Ports, port) || InPorts(s.PortRanges, port)
}

// HasAnyPort reports whether one of the ports is the service's.
func (s *Service) HasAnyPort(ports PortRange) bool {
	return slices.ContainsFunc(s.AllOfPorts(), ports.Overlaps)
}

// AllOfPorts are its ports as ranges, single ones in the order of the file before the ranges.
func (s *Service) AllOfPorts() []PortRange {
	ranges := make([]PortRange, 0, len(s.Ports)+len(s.PortRanges))
	for _, port := range s.Ports {
		ranges = append(ranges, PortRange{port, port})
	}
	return append(ranges, s.PortRanges...)
}

// SharesPort reports whether two services have a port in common, of whatever address.
func (s *Service) SharesPort(o *Service) bool {
	for _, r := range s.AllOfPorts() {
		if o.HasAnyPort(r) {
			return true
		}
	}
	return false
}

// PortsText writes the ports as people read them: 80,443,30000-32767.
func (s *Service) PortsText() string {
	texts := make([]string, 0, len(s.Ports)+len(s.PortRanges))
	for _, port := range s.Ports {
		texts = append(texts, strconv.Itoa(int(port)))
	}
	for _, r := range s.PortRanges {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, ",")
}

func (s *Service) validatePorts(path string, found *findings) {
	if s.Functions() {
		return
	}
	if n := len(s.Ports) + len(s.PortRanges); n == 0 || n > MaxPorts {
		found.add(path+".ports", fmt.Sprintf("give 1 to %d ports, or ranges of them", MaxPorts), "%d ports", n)
	}
	all := s.AllOfPorts()
	for i, r := range all {
		at := fmt.Sprintf("%s.ports[%d]", path, i)
		switch {
		case r != AllPorts && (r.First == 0 || r.Last < r.First):
			found.add(at, "use 1 to 65535", "%d is not a port", r.First)
		case r == AllPorts && len(all) > 1:
			found.add(at, "remove the others", "all ports are more than others beside them")
		default:
			if first := slices.IndexFunc(all[:i], r.Overlaps); first >= 0 {
				found.add(at, "remove it", "port %d is listed twice", max(r.First, all[first].First))
			}
		}
	}
	if len(s.PortRanges) > 0 && s.Return == ReturnThrough {
		found.add(path+".ports", fmt.Sprintf("list up to %d ports, or use return: direct", MaxPorts), "answers of return: through are recognised by their port, and a range has too many")
	}
	if len(s.PortRanges) > 0 && s.BegunForServers() {
		found.add(path+".ports", fmt.Sprintf("list up to %d ports", MaxPorts), "agents keep single ports of session: tls and syn_proxy out of connection tracking, and no ranges")
	}
	if len(s.Ports) == 0 && s.Health.Port == 0 && s.Health.Check != CheckNone && s.Health.Check != CheckExec {
		found.add(path+".health.port", "give the port that servers answer checks at", "missing: a service with ranges of ports alone has none that every server listens at")
	}
}

func (s *Service) validateVIPs(path string, found *findings) {
	if s.Functions() {
		if len(s.MoreVIPs) > 0 {
			found.add(path+".vips", "use destinations", "a service of network functions has a prefix of addresses")
		}
		return
	}
	for i, vip := range s.VIPs() {
		at := path + ".vip"
		if len(s.MoreVIPs) > 0 {
			at = fmt.Sprintf("%s.vips[%d]", path, i)
		}
		checkAddress(at, vip, found)
		if vip.IsLinkLocalUnicast() && vip.Zone() == "" {
			found.add(at, "use an address that routers forward to", "%s is a link-local address: clients beyond one link cannot reach it, and every host may have it", vip)
		}
		if slices.Contains(s.VIPs()[:i], vip) {
			found.add(at, "remove it", "%s is listed twice", vip)
		}
	}
	if !s.VIP.IsValid() {
		checkAddress(path+".vip", s.VIP, found)
	}
	if len(s.MoreVIPs) >= MaxVIPs {
		found.add(path+".vips", fmt.Sprintf("give at most %d, or make two services", MaxVIPs), "%d addresses", len(s.MoreVIPs)+1)
	}
	if s.Affinity == AffinityTable && s.HasIPv4() && s.HasIPv6() {
		found.add(path+".vips", "make one service per family, or use affinity: cookie", "the entries of a table (affinity: table) have clients of one family")
	}
	if len(s.MoreVIPs) > 0 && s.Return == ReturnThrough {
		found.add(path+".vips", "make one service per address, or use return: direct", "the load balancer gives answers of return: through one address, vip")
	}
}

// listener is where packets come in for services.
type listener struct {
	vip      netip.Addr
	protocol Protocol
}

// claim is a range of ports at a listener, and whose it is.
type claim struct {
	ports       PortRange
	service, at int // at: in its list
}

// validateListeners refuses ports of one address and protocol that two services have. Who has all ports leaves those to others that they name.
func (f *Fleet) validateListeners(found *findings) {
	claims, ranges := map[listener][]claim{}, map[listener]int{}
	for i := range f.Services {
		s := &f.Services[i]
		if s.Functions() {
			continue
		}
		for _, vip := range s.VIPs() {
			at := listener{vip, s.Protocol}
			for j, r := range s.AllOfPorts() {
				claims[at] = append(claims[at], claim{r, i, j})
			}
			if ranges[at] += len(s.PortRanges); ranges[at] > MaxPortRanges && len(s.PortRanges) > 0 {
				found.add(fmt.Sprintf("services[%d].ports", i), "join ranges, or use another vip", "more than %d ranges of %s ports of %s", MaxPortRanges, s.Protocol, vip)
			}
		}
	}
	var clashes []clash
	for at, list := range claims {
		clashes = append(clashes, clashesOf(at, list)...)
	}
	slices.SortFunc(clashes, func(a, b clash) int {
		return cmp.Or(a.claim.service-b.claim.service, a.claim.at-b.claim.at, a.where.vip.Compare(b.where.vip))
	})
	clashes = slices.CompactFunc(clashes, func(a, b clash) bool { return a.claim.service == b.claim.service && a.claim.at == b.claim.at })
	for _, c := range clashes {
		found.add(fmt.Sprintf("services[%d].ports[%d]", c.claim.service, c.claim.at), "give one of them another vip or port",
			"service %s also has %s port %d of %s", f.Services[c.other.service].Name, c.where.protocol, max(c.claim.ports.First, c.other.ports.First, 1), c.where.vip)
	}
}

// clash is a claim of what a service before it in the list claims, too.
type clash struct {
	where        listener
	claim, other claim
}

func clashesOf(where listener, claims []claim) (clashes []clash) {
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(int(a.ports.First)-int(b.ports.First), a.service-b.service, a.at-b.at)
	})
	var reach, all *claim // what reaches farthest so far
	for i := range claims {
		c, before := &claims[i], &reach
		if c.ports == AllPorts {
			before = &all
		}
		if other := *before; other != nil && other.service != c.service && other.ports.Overlaps(c.ports) {
			if other.service < c.service {
				clashes = append(clashes, clash{where, *c, *other})
			} else {
				clashes = append(clashes, clash{where, *other, *c})
			}
		}
		if *before == nil || c.ports.Last > (*before).ports.Last {
			*before = c
		}
	}
	return clashes
}

// What of a change harms clients, or cannot be taken back.

package fleet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/model"
)

// unhealthyOf tells the addresses of a service's servers that are known to be unhealthy.
type unhealthyOf func(service string) map[netip.Addr]bool

// Dangers returns what of a change from a to b harms clients or cannot be taken back, one line each: a service whose last server, or last
// healthy one, stops taking new connections, a service or port that goes, choices that connections do not outlive, the last node that
// announces VIPs, keys. nil: nothing does.
// Both have their defaults. unhealthy is asked only about services that lose a server, living only about those that change. What is no
// change of something that was there is no danger: a new service without servers harms nobody.
func Dangers(a, b *model.Fleet, unhealthy unhealthyOf, living livingOf) (lines []string) {
	lines = keyDangers(&a.Keys, &b.Keys)
	after, ports := index(b.Services, serviceName), portsOf(b)
	for i := range a.Services {
		from := &a.Services[i]
		to := after[from.Name]
		gone := goneOf(from, to, ports)
		switch {
		case to == nil && len(gone) > 0 && len(from.Servers) > 0:
			lines = append(lines, fmt.Sprintf("service %s: it goes: its packets go to the host, and its %s end", from.Name, connectionsOf(from, living)))
		case to != nil:
			lines = append(lines, serviceDangers(from, to, gone, unhealthy, living)...)
		}
		lines = append(lines, heirDangers(from, b, living)...)
	}
	if a.HasSecondTier() && b.HasSecondTier() {
		switch before, after := nodesTaking(a.Nodes), nodesTaking(b.Nodes); {
		case len(before) > 0 && len(after) == 0:
			lines = append(lines, "nodes: none of the second tier takes new connections any more: those of services with affinity table fail")
		case losesHealth(before, after, model.SecondTierName, unhealthy):
			lines = append(lines, "nodes: no healthy one of the second tier takes new connections any more: all_down decides who gets them")
		}
	}
	hasVIP := func(s model.Service) bool { return !s.Functions() }
	if slices.ContainsFunc(a.Services, hasVIP) && slices.ContainsFunc(a.Nodes, announces) && !slices.ContainsFunc(b.Nodes, announces) {
		lines = append(lines, "nodes: no active node announces VIPs any more: they are withdrawn, and clients that were led here do not reach them")
	}
	return lines
}

// goneOf returns the ports of a service that nobody serves any more, of VIPs that stay with it, or of all if to is nil.
func goneOf(from, to *model.Service, ports map[served][]model.PortRange) (gone []string) {
	for _, port := range portsOfService(from) {
		lost := func(vip netip.Addr) bool {
			return !slices.ContainsFunc(ports[served{vip, from.Protocol}], func(r model.PortRange) bool { return r.First <= port.First && port.Last <= r.Last })
		}
		if kept := slices.DeleteFunc(from.VIPs(), func(vip netip.Addr) bool { return to != nil && !to.HasVIP(vip) }); slices.ContainsFunc(kept, lost) {
			gone = append(gone, portText(port))
		}
	}
	return gone
}

func announces(n model.Node) bool { return n.Announces() && n.State == model.StateActive }

// losesHealth reports whether the last healthy ones of those that take new connections go, and others stay.
func losesHealth(before, after []netip.Addr, service string, unhealthy unhealthyOf) bool {
	stays := func(one netip.Addr) bool { return slices.Contains(after, one) }
	if !slices.ContainsFunc(before, func(one netip.Addr) bool { return !stays(one) }) {
		return false
	}
	down := unhealthy(service)
	healthy := func(one netip.Addr) bool { return !down[one] }
	return slices.ContainsFunc(before, healthy) && len(after) > 0 && !slices.ContainsFunc(after, healthy)
}

// served is where packets come in for a service.
type served struct {
	vip      netip.Addr
	protocol model.Protocol
}

func portsOfService(s *model.Service) []model.PortRange {
	if s.Functions() {
		return []model.PortRange{model.AllPorts}
	}
	return s.AllOfPorts()
}

func portText(r model.PortRange) string {
	if r.First == r.Last {
		return fmt.Sprint(r.First)
	}
	return r.String()
}

func portsOf(f *model.Fleet) map[served][]model.PortRange {
	ports := map[served][]model.PortRange{}
	for i := range f.Services {
		s := &f.Services[i]
		for _, vip := range s.VIPs() {
			ports[served{vip, s.Protocol}] = append(ports[served{vip, s.Protocol}], portsOfService(s)...)
		}
	}
	return ports
}

// nodesTaking and serversTaking are the addresses of those that take new connections while they are healthy.
func nodesTaking(nodes []model.Node) (addresses []netip.Addr) {
	for i := range nodes {
		if nodes[i].Tier == model.TierSecond && nodes[i].State == model.StateActive {
			addresses = append(addresses, nodes[i].Address)
		}
	}
	return addresses
}

func serversTaking(s *model.Service) (addresses []netip.Addr) {
	for i := range s.Servers {
		if s.Servers[i].TakesNew() {
			addresses = append(addresses, s.Servers[i].Address)
		}
	}
	return addresses
}

// notIn are the VIPs of a service that another one has not.
func notIn(a, b *model.Service) (vips []string) {
	for _, vip := range a.VIPs() {
		if !b.HasVIP(vip) {
			vips = append(vips, vip.String())
		}
	}
	return vips
}

func serviceDangers(from, to *model.Service, gone []string, unhealthy unhealthyOf, living livingOf) (lines []string) {
	add := func(format string, values ...any) {
		lines = append(lines, fmt.Sprintf("service "+to.Name+": "+format, values...))
	}
	if from.Announce != model.VIPOff && to.Announce == model.VIPOff {
		if had := connectionsOf(from, living); had.Live > 0 || !had.Known {
			add("announce is off: %s break when another host takes the VIP", had)
		}
	}
	switch before, after := serversTaking(from), serversTaking(to); {
	case len(before) > 0 && len(after) == 0:
		add("no server is left that takes new connections: they fail")
	case to.Health.Check != model.CheckNone && losesHealth(before, after, from.Name, unhealthy):
		add("no healthy server is left that takes new connections: all_down (%s) decides who gets them", to.Health.AllDown)
	}
	if len(from.Servers) == 0 {
		return lines // nobody is connected
	}
	if further := notIn(to, from); len(further) > 0 && from.SharesVIP(to) && to.Return == model.ReturnDirect {
		add("%s comes: a server that has not got it on lo yet gets no new connections, of other VIPs either", strings.Join(further, ", "))
	}
	if line := moveDanger(from, to, living); line != "" {
		lines = append(lines, line)
	}
	nat := func(s *model.Service) bool { return s.Forward == model.ForwardNAT }
	had := func() Connections { return connectionsOf(from, living) }
	switch {
	case !from.SharesVIP(to) || from.Protocol != to.Protocol || from.Destinations != to.Destinations:
		add("vip or protocol changes: its %s break: %s", had(), otherVIP)
	case slices.ContainsFunc(from.VIPs(), func(vip netip.Addr) bool { return !to.HasVIP(vip) }):
		add("%s goes: of %s those there end: keep it beside the others until its clients have moved", strings.Join(notIn(from, to), ", "), had())
	case from.VIP != to.VIP && (from.Affinity == model.AffinityQUIC || from.Session == model.SessionTLS):
		add("the first vip changes: connection ids and sessions of clients name no server any more")
	case from.Return != to.Return || nat(from) != nat(to):
		changed := "nat changes"
		if from.Return != to.Return {
			changed = fmt.Sprintf("return %s -> %s", from.Return, to.Return)
		}
		add("%s: its %s break: %s", changed, had(), otherVIP)
	case affinityDanger(from, to, living) != "":
		lines = append(lines, affinityDanger(from, to, living))
	case from.Affinity == model.AffinityQUIC && from.QUIC != to.QUIC && to.Affinity == model.AffinityQUIC:
		add("the form of connection ids (quic) changes: its %s break: %s", had(), otherVIP)
	case from.MPTCP.FirstPort != 0 && from.MPTCP != to.MPTCP:
		add("the ports of mptcp change: subflows that have joined there break, and a connection without another one with them")
	case from.Affinity == model.AffinityHistory && to.Affinity == model.AffinityHistory && to.Choices.Candidates < from.Choices.Candidates:
		add("fewer candidates: the connections that those have accepted who are none any more break")
	case len(gone) > 0:
		add("port %s goes: of %s those there end: %s", strings.Join(gone, ", "), had(), portsBeside(from, to))
	}
	key := identity(from, to)
	before := index(from.Servers, key)
	for i := range to.Servers {
		server := &to.Servers[i]
		if old := before[key(server)]; old != nil && old.State != model.StateOff && server.State == model.StateOff {
			add("server %s: off: its connections are cut", server.Name)
		}
	}
	return lines
}

// portsBeside is how the connections of ports that go are kept.
func portsBeside(from, to *model.Service) string {
	ports := portsOfService(from)
	for _, port := range portsOfService(to) {
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	var texts []string
	for _, port := range ports {
		texts = append(texts, portText(port))
	}
	return fmt.Sprintf("to keep them, serve both (ports: [%s]) until clients have moved and their connections have ended, then remove it", strings.Join(texts, ", "))
}

func keyDangers(a, b *model.Keys) (lines []string) {
	for _, epoch := range a.Epochs() {
		if _, ok := b.Cookie[epoch]; !ok {
			lines = append(lines, fmt.Sprintf("keys: epoch %d goes: connections whose cookies are of it break", epoch))
		}
	}
	if a.Current != 0 && a.Current != b.Current {
		lines = append(lines, fmt.Sprintf("keys: current %d -> %d: every load balancer and agent must have the key of epoch %d by now", a.Current, b.Current, b.Current))
	}
	return lines
}

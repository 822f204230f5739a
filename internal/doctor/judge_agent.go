package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// onServer is what the judges of the agent's role look at: direct services of this host, with this host's entry in them.
func (f *facts) onServer(visit func(s *model.Service, server *model.Server)) {
	if f.Role == RoleAgent {
		f.services(func(s *model.Service) { visit(s, f.mine(s)) })
	}
}

// onVIPs does the same for each address of those services.
func (f *facts) onVIPs(visit func(s *model.Service, vip netip.Addr)) {
	if f.Role == RoleAgent {
		f.services(eachVIP(visit))
	}
}

func eachVIP(visit func(s *model.Service, vip netip.Addr)) func(s *model.Service) {
	return func(s *model.Service) {
		for _, vip := range s.VIPs() {
			visit(s, vip)
		}
	}
}

func judgeIdentity(f *facts) (out []Finding) {
	if f.Role != RoleAgent || !f.File.known() {
		return nil
	}
	f.onServer(func(s *model.Service, server *model.Server) {
		out = append(out, ok("identity", s.Name, "this host is %s, id %d", server.Name, server.ID))
	})
	if len(out) > 0 || len(f.File.Fleet.Services) == 0 && (f.Daemon.ByControllers || f.File.Kept != "") { // controllers have told nothing of this host: the daemon says so
		return out
	}
	for i := range f.File.Fleet.Services {
		if s := &f.File.Fleet.Services[i]; f.mine(s) != nil {
			if len(f.Daemon.Gateways) > 0 {
				return []Finding{ok("identity", s.Name, "this host is a network function")}
			}
			return []Finding{{"identity", s.Name, Warning, "this host serves only return: through, which needs no agent", "stop the agent here"}}
		}
	}
	return []Finding{{"identity", "", Problem, "no server is this host",
		"give a server the address of this host, or say which it is with --server NAME"}}
}

// judgeGateways asks the agent of a network function: which load balancers answer it?
func judgeGateways(f *facts) (out []Finding) {
	if f.Role != RoleAgent {
		return nil
	}
	dead, severity, kept := 0, Warning, ""
	for _, g := range f.Daemon.Gateways {
		if !g.Answers {
			dead++
		}
	}
	if dead > 0 && dead == len(f.Daemon.Gateways) {
		severity, kept = Problem, ", nor does another: the default route is not changed"
	}
	for _, g := range f.Daemon.Gateways {
		when := "never"
		if g.Heard != nil {
			when = fmt.Sprintf("%.1f s ago", float64(*g.Heard))
		}
		if g.Answers {
			out = append(out, ok("gateway", g.Address.String(), "answers BFD, last %s", when))
			continue
		}
		out = append(out, Finding{"gateway", g.Address.String(), severity, fmt.Sprintf("does not answer BFD, last %s%s", when, kept),
			"start the load balancer, let UDP port 3784 through, and check that its services name this host's address"})
	}
	return out
}

// judgeTunnels asks the agent that runs: who may send packets to its services past routers and load balancers?
func judgeTunnels(f *facts) []Finding {
	if f.Role != RoleAgent || f.Daemon.Role != RoleAgent {
		return nil
	}
	t := &f.Daemon.Tunnels
	if t.Limited {
		return []Finding{ok("tunnels", "", "only those of %s are taken, known from %s", model.Counted(len(t.From), "address", "addresses"), t.Source)}
	}
	return []Finding{{"tunnels", "", Warning, "packets in tunnels are accepted from every address: whoever reaches this host bypasses what routers filter for the VIPs",
		t.Open + "; or keep IP protocols 4 and 41 and UDP port 6080 of others out"}}
}

func judgeVIPs(f *facts) (out []Finding) {
	seen := map[netip.Addr]bool{}
	f.onVIPs(func(s *model.Service, vip netip.Addr) {
		if seen[vip] {
			return
		}
		seen[vip] = true
		if device := f.Host.Addresses[vip]; !f.elsewhere(vip) {
			out = append(out, ok("vip", vip.String(), "on %s", device))
			return
		}
		out = append(out, f.judgeVIP(s, vip))
	})
	return out
}

func judgeTimestamps(f *facts) (out []Finding) {
	cookie := false
	f.onServer(func(s *model.Service, _ *model.Server) { cookie = cookie || s.Affinity.Cookies() })
	if !cookie {
		return nil
	}
	switch f.Host.Timestamps {
	case 0:
		out = append(out, Finding{"timestamps", "", Problem, "net.ipv4.tcp_timestamps is 0: new connections cannot carry cookies, and the agent is not ready, or refuses to start",
			"sysctl -w net.ipv4.tcp_timestamps=1, or give the service affinity: hash"})
	case -1:
		out = append(out, Finding{"timestamps", "", Warning, "net.ipv4.tcp_timestamps cannot be read", "mount /proc"})
	}
	for _, route := range f.Host.Microsecond {
		what, remedy := splitRemedy(route)
		out = append(out, Finding{"timestamps", "", Problem, what, remedy})
	}
	if len(out) == 0 {
		out = append(out, ok("timestamps", "", "net.ipv4.tcp_timestamps is %d", f.Host.Timestamps))
	}
	return out
}

// judgeMPTCP: may subflows join where the agent tells clients to?
func judgeMPTCP(f *facts) (out []Finding) {
	joins := false
	f.onServer(func(s *model.Service, _ *model.Server) { joins = joins || s.MPTCP.FirstPort != 0 })
	if !joins {
		return nil
	}
	for _, obstacle := range f.Host.MPTCP {
		what, remedy := splitRemedy(obstacle)
		out = append(out, Finding{"mptcp", "", Problem, what, remedy})
	}
	if f.Host.MPTCPPlain {
		out = append(out, Finding{"mptcp", "", Warning, "handshakes that join nothing can fill the queue of the port where subflows join, on this kernel",
			"take Linux 6.12 or newer, or a stable kernel of October 2024 or later (docs/features/mptcp.md)"})
	}
	if len(out) == 0 {
		out = append(out, ok("mptcp", "", "the kernel lets subflows join"))
	}
	return out
}

// judgeBack: health checks come from near, and do not notice that answers to clients find no way.
func judgeBack(f *facts) (out []Finding) {
	seen := map[bool]bool{}
	f.onVIPs(func(_ *model.Service, vip netip.Addr) {
		ipv6 := vip.Is6()
		if seen[ipv6] {
			return
		}
		seen[ipv6] = true
		family := map[bool]string{false: "IPv4", true: "IPv6"}[ipv6]
		err, silent := f.Host.Back[ipv6], &netdev.Unresolved{}
		switch {
		case errors.As(err, &silent) && silent.Neighbour == somewhere[ipv6]:
			out = append(out, ok("way back", family, "the default route has no gateway: clients are neighbours"))
		case errors.As(err, &silent):
			out = append(out, silentHop("way back", family, "the router of the way to clients", err, "correct the default route: ip route replace default via ROUTER"))
		case err != nil && len(f.Host.Egress)+len(f.Host.EgressBare) == 0:
			out = append(out, Finding{"way back", family, Problem, "no answer reaches clients that are not on a link of this host: " + err.Error(), "ip route add default via ROUTER"})
		case err != nil:
			out = append(out, Finding{"way back", family, Warning, "only clients on links of this host, and behind the routes that there are, get answers: " + err.Error(),
				"ip route add default via ROUTER"})
		default:
			out = append(out, ok("way back", family, "to clients anywhere"))
		}
	})
	return out
}

// judgeEgress: what leaves by a device without our program carries no cookie: what the client echoes leads to any server.
func judgeEgress(f *facts) (out []Finding) {
	cookie := false
	f.onServer(func(s *model.Service, _ *model.Server) { cookie = cookie || s.Affinity.Cookies() })
	if !cookie {
		return nil
	}
	for _, name := range f.Host.EgressBare {
		out = append(out, Finding{"way out", name, Warning, "a default route or a route through a gateway leads there, and the device has no Ethernet addresses: " +
			"answers to clients that leave by it are not marked, and break their connections", "route answers to clients by a device with Ethernet addresses: ip route get CLIENT from VIP"})
	}
	if f.Daemon.Role != RoleAgent || !f.Daemon.Ready {
		return out // it attaches when it starts, or says why it cannot
	}
	missing := 0
	for _, name := range f.Host.Egress {
		_, attached := f.Daemon.Interfaces[name]
		if said := slices.ContainsFunc(f.Daemon.Problems, func(p string) bool { return strings.Contains(p, " by "+name+" ") }); attached || said {
			continue
		}
		missing++
		out = append(out, Finding{"way out", name, Problem, "a default route or a route through a gateway leads there, and the agent is not attached: " +
			"answers to clients that leave by it are not marked, and break their connections", "look again in a few seconds; if it stays, read the agent's log, and start it again"})
	}
	if missing == 0 && len(f.Host.Egress) > 0 {
		out = append(out, ok("way out", "", "the agent is attached to %s", strings.Join(f.Host.Egress, ", ")))
	}
	return out
}

// judgeReversePath: packets of clients come in by the fabric. Strict filtering drops them where the way back is another one. Devices that
// answers only leave by do not matter.
func judgeReversePath(f *facts) (out []Finding) {
	ipv4 := false
	f.onServer(func(s *model.Service, _ *model.Server) { ipv4 = ipv4 || s.HasIPv4() })
	if !ipv4 {
		return nil
	}
	for _, d := range f.Devices {
		if f.Daemon.Interfaces[d.Name] == string(attach.XDPNone) {
			continue
		}
		if d.ReversePath != 1 {
			out = append(out, ok("rp_filter", d.Name, "%s", map[int]string{0: "off", 2: "loose", -1: "unknown"}[d.ReversePath]))
			continue
		}
		others := slices.DeleteFunc(slices.Clone(f.Host.WaysBack), func(way string) bool { return way == d.Name })
		severity, found := Warning, "strict: clients whose way back is not this interface lose their packets"
		switch {
		case len(f.Host.WaysBack) == 0:
			severity, found = Problem, "strict, and there is no route back to clients: their packets are dropped"
		case len(others) > 0:
			severity, found = Problem, "strict, and routes lead back by "+strings.Join(others, ", ")+": packets of the clients behind them are dropped"
		}
		out = append(out, Finding{"rp_filter", d.Name, severity, found,
			fmt.Sprintf("sysctl -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.%s.rp_filter=0", d.Name)})
	}
	return out
}

// judgeARP: a server that answers ARP for a VIP takes the router's packets away from the load balancers.
func judgeARP(f *facts) (out []Finding) {
	type pair struct {
		vip    netip.Addr
		device string
	}
	seen := map[pair]bool{}
	f.onVIPs(func(s *model.Service, vip netip.Addr) {
		holder, local := f.Host.Addresses[vip]
		if !local || !vip.Is4() {
			return
		}
		for i := range f.Devices {
			d := &f.Devices[i]
			// Routers ask for the VIP only on the subnet it is in, and where the load balancers are on the servers' segment.
			if key := (pair{vip, d.Name}); !seen[key] && (s.Forward == model.ForwardL2 || onLink(d, vip)) {
				seen[key] = true
				out = append(out, judgeARPOn(d, vip, holder))
			}
		}
	})
	return out
}

func onLink(d *deviceFacts, vip netip.Addr) bool {
	return slices.ContainsFunc(d.Prefixes, func(prefix netip.Prefix) bool { return prefix.Bits() < prefix.Addr().BitLen() && prefix.Contains(vip) })
}

func judgeARPOn(d *deviceFacts, vip netip.Addr, holder string) Finding {
	strict := ""
	if holder == netdev.IPVSDevice {
		strict = "; kube-proxy does it by ipvs.strictARP: true"
	}
	switch {
	case holder == d.Name:
		return Finding{"arp", d.Name, Problem, fmt.Sprintf("%s is on this interface, so this host answers ARP for it", vip),
			fmt.Sprintf("ip address del %s dev %s; ip address add %s/32 dev lo", vip, d.Name, vip)}
	case d.ARPIgnore == 0:
		return Finding{"arp", d.Name, Problem, fmt.Sprintf("arp_ignore is 0: this host answers ARP for %s", vip),
			fmt.Sprintf("sysctl -w net.ipv4.conf.%s.arp_ignore=1 net.ipv4.conf.%s.arp_announce=2%s", d.Name, d.Name, strict)}
	case d.ARPAnnounce != 2 && d.ARPAnnounce != -1:
		return Finding{"arp", d.Name, Problem, fmt.Sprintf("arp_announce is %d: this host names %s as its own when it asks", d.ARPAnnounce, vip),
			fmt.Sprintf("sysctl -w net.ipv4.conf.%s.arp_announce=2%s", d.Name, strict)}
	}
	return ok("arp", d.Name, "no ARP for %s", vip)
}

// judgeReturnMTU: what clients may send is announced by the server, which does not know of the tunnel.
func judgeReturnMTU(f *facts) (out []Finding) {
	type worst struct{ extra, headers int }
	family := map[bool]worst{}
	f.onServer(func(s *model.Service, server *model.Server) {
		extra := plan.Overhead(s, server.Address)
		for _, vip := range s.VIPs() {
			if s.Protocol == model.ProtocolTCP && extra > family[vip.Is6()].extra {
				family[vip.Is6()] = worst{extra, plan.ClientHeaders(vip.Is6())}
			}
		}
	})
	for _, d := range f.Devices {
		for _, ipv6 := range []bool{false, true} {
			need, any := family[ipv6]
			if !any || d.MTU-need.extra >= clientMTU {
				continue
			}
			mss := d.MTU - need.extra - need.headers
			announced := slices.ContainsFunc(f.Host.DefaultRoutes, func(r netdev.DefaultRoute) bool { return r.IPv6 == ipv6 && r.AdvMSS > 0 && r.AdvMSS <= mss })
			if announced {
				out = append(out, ok("mtu", d.Name, "%d; the default route announces segments that fit the tunnel", d.MTU))
				continue
			}
			out = append(out, Finding{"mtu", d.Name, Warning,
				fmt.Sprintf("MTU %d less %d of encapsulation is too little for packets of %d bytes: %s", d.MTU, need.extra, clientMTU, narrowness(d.MTU)),
				fmt.Sprintf("ip link set %s mtu %d, and the fabric likewise, or ip route change default via ROUTER advmss %d", d.Name, clientMTU+need.extra, mss)})
		}
	}
	return out
}

// narrowness is what clients see of a device that takes too little. An MTU below that of Ethernet is often one host's alone: load balancers
// go by their own device and route, and a receiver drops what is too long without ICMP.
func narrowness(mtu int) string {
	if mtu < clientMTU {
		return "unless load balancers have this MTU on their path, too, the device drops longer packets without ICMP, and clients that send much hang"
	}
	return "clients find out by ICMP, and hang where it is filtered"
}

func judgeListeners(f *facts) (out []Finding) {
	f.onVIPs(func(s *model.Service, vip netip.Addr) {
		before := len(out)
		var silent []string
		for _, port := range s.Ports {
			if p := f.probed(s, netip.AddrPortFrom(vip, port)); p != nil {
				out = append(out, judgeProbedListener(s, p)...)
				continue
			}
			if f.byIPVS(vip) { // before any socket of this host
				continue
			}
			if f.unheard(s, vip, port) {
				silent = append(silent, strconv.Itoa(int(port)))
				continue
			}
			out = append(out, f.judgeListener(s, vip, port)...)
		}
		if len(silent) > 0 {
			ports := "port"
			if len(silent) > 1 {
				ports = "ports"
			}
			out = append(out, Finding{"listener", s.Name, Problem, fmt.Sprintf("nothing listens on %s %s %s of %s", s.Protocol, ports, strings.Join(silent, ", "), vip),
				"start the application, bound to the VIP or to all addresses"})
		}
		if len(out) == before && len(s.Ports) > 0 {
			what := "on every port"
			if len(s.PortRanges) > 0 {
				what = "on every single port"
			}
			out = append(out, ok("listener", s.Name, "%s of %s", what, vip))
		}
		for _, r := range s.PortRanges {
			out = append(out, f.judgeRange(s, vip, r))
		}
	})
	return out
}

func listens(sockets []netip.AddrPort, want netip.AddrPort) bool {
	return slices.ContainsFunc(sockets, func(have netip.AddrPort) bool {
		if have.Port() != want.Port() {
			return false
		}
		// An IPv6 wildcard takes IPv4 as well, unless its application said otherwise.
		return have.Addr() == want.Addr() || have.Addr().IsUnspecified() && (have.Addr().Is6() || want.Addr().Is4())
	})
}

package doctor

import (
	"errors"
	"fmt"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

const (
	clientMTU   = 1500 // of nearly every client
	smallestMTU = 1280 // that IPv6 allows (RFC 8200), and that clients of IPv4 are all but sure to get down to
)

func judgePaths(f *facts) (out []Finding) {
	if f.Role != RoleLB {
		return nil
	}
	good := 0
	f.services(func(s *model.Service) {
		for i := range s.Servers {
			server := &s.Servers[i]
			found := judgePath(s, server, f.Paths[server.Address])
			out = append(out, found...)
			if len(found) == 0 {
				good++
			}
		}
	})
	if good > 0 {
		out = append(out, ok("path", "", "%s packets of %d bytes", model.Counted(good, "server can be reached and takes", "servers can be reached and take"), clientMTU))
	}
	return out
}

// silentHop is a neighbour without a MAC address: it does not answer, or the kernel has no room for it.
func silentHop(check, subject, what string, err error, remedy string) Finding {
	var silent *netdev.Unresolved
	if errors.As(err, &silent) && silent.Full {
		return Finding{check, subject, Problem, fmt.Sprintf("the kernel has no room for %s: its neighbour table is full (%s)", what, silent.Neighbour),
			fmt.Sprintf("sysctl -w %s=N, with N more than all hosts on links of this host; gc_thresh2 in proportion", netdev.NeighbourLimit(silent.Neighbour))}
	}
	return Finding{check, subject, Problem, what + " does not answer (ARP, neighbour discovery): " + err.Error(), remedy}
}

func judgePath(s *model.Service, server *model.Server, path pathFacts) (out []Finding) {
	subject := s.Name + "/" + server.Name
	switch {
	case path.Err != nil && !server.TakesNew(): // the daemon reports it if packets come for it all the same
		return []Finding{{"path", subject, Warning, "no way to a server that gets no new connections: " + path.Err.Error(),
			"remove the server, or start it again if it has connections left"}}
	case errors.Is(path.Err, netdev.ErrUnresolved):
		return []Finding{silentHop("path", subject, "the next hop", path.Err, "start the server or its router, and check the cabling, VLAN and subnet of this host")}
	case path.Err != nil:
		return []Finding{{"path", subject, Problem, path.Err.Error(), fmt.Sprintf("ip route add %s via ROUTER, or correct the address", server.Address)}}
	case path.Here && !plan.ServesHere(s):
		return []Finding{{"path", subject, Problem, "it is this host, which packets of the service cannot be given to",
			"use forward ipip, gue or srv6, return direct and no session, or take the server out"}}
	case path.Silent:
		out = append(out, Finding{"reachability", subject, Warning, fmt.Sprintf("%s does not answer TCP within %v", server.Address, reachTimeout),
			"start the server; this is no fault when a firewall there drops connections of the load balancer"})
	}
	return append(out, judgeRoom(subject, path.MTU, plan.Overhead(s, server.Address), plan.ClientHeaders(s.HasIPv6()))...)
}

// judgeRoom is about the encapsulation of packets that have so many bytes of headers before the data.
func judgeRoom(subject string, mtu, encapsulation, headers int) []Finding {
	room := mtu - encapsulation
	if room >= clientMTU {
		return nil
	}
	severity, effect := Warning, "clients learn it by ICMP, and hang where that is filtered; without Don't Fragment their packets go in fragments, which costs more"
	if room < smallestMTU {
		severity, effect = Problem, "too little even for small packets of clients"
	}
	return []Finding{{"mtu", subject, severity,
		fmt.Sprintf("path MTU %d less %d of encapsulation leaves %d for packets of %d bytes: %s", mtu, encapsulation, max(room, 0), clientMTU, effect),
		fmt.Sprintf("raise the fabric's MTU to %d, or on the server: ip route change default via ROUTER advmss %d", clientMTU+encapsulation, max(room, 0)-headers)}}
}

// judgeServerClocks is about servers of return: through services, which have no agent to look at them.
func judgeServerClocks(f *facts) (out []Finding) {
	const remedy = "on the server: sysctl -w net.ipv4.tcp_timestamps=2"
	good := 0
	f.services(func(s *model.Service) {
		for i := range s.Servers {
			clock, asked := f.Clocks[s.Endpoint(&s.Servers[i])]
			subject := s.Name + "/" + s.Servers[i].Name
			switch {
			case !asked || s.Return != model.ReturnThrough:
			case errors.Is(clock.Err, netdev.ErrNoTimestamp):
				out = append(out, Finding{"timestamps", subject, Problem, "the server does not use TCP timestamps: its connections are placed by the fallback", remedy})
			case clock.Err != nil:
				out = append(out, Finding{"timestamps", subject, Warning, "not known: " + clock.Err.Error(), "let the load balancer connect to the server's port"})
			case !clock.One:
				out = append(out, Finding{"timestamps", subject, Warning,
					"the server has a clock for each connection (net.ipv4.tcp_timestamps=1): its connections are placed by the fallback", remedy})
			default:
				good++
			}
		}
	})
	if good > 0 {
		out = append(out, ok("timestamps", "", "%s one clock for all connections", model.Counted(good, "server has", "servers have")))
	}
	return out
}

// judgeForwarding: answers of return: through services are routed to clients by the kernel's rules.
func judgeForwarding(f *facts) (out []Finding) {
	if f.Role != RoleLB {
		return nil
	}
	var through4, through6 bool
	f.services(func(s *model.Service) {
		if s.Return != model.ReturnThrough {
			return
		}
		through4, through6 = through4 || s.HasIPv4(), through6 || s.HasIPv6()
		if s.Forward == model.ForwardNAT && !s.Functions() {
			out = append(out, ok("own address", s.Name, "clients that are not in the servers' network reach its ports by the VIP alone: answers from a server's own address and port become the VIP's"))
		}
	})
	for _, d := range f.Devices {
		const effect = "answers of servers (return: through) are not routed to clients"
		before := len(out)
		if through4 && d.Forwarding4 == 0 {
			out = append(out, Finding{"forwarding", d.Name, Problem, "IPv4 forwarding is off: " + effect, "sysctl -w net.ipv4.ip_forward=1"})
		}
		if through6 && d.Forwarding6 == 0 {
			out = append(out, Finding{"forwarding", d.Name, Problem, "IPv6 forwarding is off: " + effect, "sysctl -w net.ipv6.conf.all.forwarding=1"})
		}
		if through4 && d.ReversePath == 1 {
			out = append(out, Finding{"rp_filter", d.Name, Warning,
				"strict: answers that the host's stack has to route (unresolved neighbours, VLAN tags, fragments) come from a VIP and may be dropped",
				fmt.Sprintf("sysctl -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.%s.rp_filter=0", d.Name)})
		}
		if len(out) == before && (through4 || through6) {
			out = append(out, ok("forwarding", d.Name, "on"))
		}
	}
	return out
}

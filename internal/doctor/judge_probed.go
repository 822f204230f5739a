package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
)

// lookBehind is where to look for packets that are lost on their way to an application.
const lookBehind = "find what should take them: on a node of Kubernetes, kube-proxy and a ready pod of the service on this node (externalTrafficPolicy: Local); " +
	"else a rule of DNAT, or the VIP as an address of this host; and a firewall between"

// elsewhere reports whether a VIP is no address that a socket of this host could have: a translation of addresses may take its packets all the same.
func (f *facts) elsewhere(vip netip.Addr) bool {
	_, local := f.Host.Addresses[vip]
	return !local || f.byIPVS(vip)
}

// byIPVS reports whether kube-proxy's IPVS takes the packets of a VIP.
func (f *facts) byIPVS(vip netip.Addr) bool { return f.Host.Addresses[vip] == netdev.IPVSDevice }

// probed is what the agent has found out about a port of a VIP that this host does not have, nil: nothing.
func (f *facts) probed(s *model.Service, at netip.AddrPort) *api.ProbedPort {
	if i := slices.IndexFunc(f.Daemon.Probes, func(p api.ProbedPort) bool { return p.At == at && of(&p, s) }); i >= 0 {
		return &f.Daemon.Probes[i]
	}
	return nil
}

// of reports whether a probe is of a service's protocol.
func of(p *api.ProbedPort, s *model.Service) bool {
	return strings.EqualFold(p.Protocol, s.Protocol.String())
}

// probedAs lists the ports of a service's VIP of which the agent's probes have shown one of these.
func (f *facts) probedAs(s *model.Service, vip netip.Addr, states ...api.ProbeState) (ports []string) {
	for _, p := range f.Daemon.Probes {
		if p.At.Addr() == vip && of(&p, s) && slices.Contains(states, p.State) {
			when := ""
			if p.Age != nil {
				when = fmt.Sprintf(" (%.0f s ago)", float64(*p.Age))
			}
			ports = append(ports, fmt.Sprintf("%d%s", p.At.Port(), when))
		}
	}
	return ports
}

// takenIn lists the ports of a range that what the agent sends is taken at.
func (f *facts) takenIn(s *model.Service, vip netip.Addr, r model.PortRange) (ports []uint16) {
	for _, p := range f.Daemon.Probes {
		if port := p.At.Port(); p.At.Addr() == vip && of(&p, s) && r.Contains(port) && slices.Contains(arrive, p.State) {
			ports = append(ports, port)
		}
	}
	return ports
}

// arrive are what probes show of packets that reach whoever they are for, as far as can be seen.
var arrive = []api.ProbeState{api.ProbeTaken, api.ProbePassed, api.ProbeRefused}

// judgeVIP is about an address that no socket of this host could have: what becomes of the agent's SYNs and datagrams counts, and without any what rules say.
func (f *facts) judgeVIP(s *model.Service, vip netip.Addr) Finding {
	lost, unknown := f.probedAs(s, vip, api.ProbeLost), f.probedAs(s, vip, api.ProbeUnknown)
	taken := f.probedAs(s, vip, arrive...)
	sent, taking := api.ProbedPort{Protocol: strings.ToLower(s.Protocol.String())}, "taken"
	if s.Protocol == model.ProtocolUDP {
		taking = "taken, or passed on"
	}
	port := sent.Protocol + " port "
	where, there := "not an address of this host", "on no interface"
	if f.byIPVS(vip) {
		there = "on " + netdev.IPVSDevice + ", by kube-proxy's IPVS"
		where = there
	}
	switch {
	case len(lost) > 0:
		return Finding{"vip", vip.String(), Problem, where + ", and " + sent.Packets() + " of the agent to " + port + strings.Join(lost, ", ") + " are lost", lookBehind}
	case len(unknown) > 0:
		return Finding{"vip", vip.String(), Problem, where + ", and whether packets to " + port + strings.Join(unknown, ", ") + " are taken is not known",
			"see why the agent cannot probe them: ballast ctl --instance " + f.Instance + " status"}
	case len(taken) > 0:
		return ok("vip", vip.String(), "%s; %s of the agent to %s%s are %s", there, sent.Packets(), port, strings.Join(taken, ", "), taking)
	case f.named(s, vip), f.byIPVS(vip):
		by := "rules of nftables take"
		if f.byIPVS(vip) {
			by = "that takes"
		}
		return Finding{"vip", vip.String(), Warning, where + ": " + by + " its packets, but whether they arrive is not known",
			"ask an agent that runs, which probes ports: ballast ctl --instance " + f.Instance + " status"}
	}
	return Finding{"vip", vip.String(), Problem, "not an address of this host: it does not take the service's packets", fmt.Sprintf("ip address add %s/%d dev lo", vip, vip.BitLen())}
}

// named reports whether rules take all single ports of a service elsewhere.
func (f *facts) named(s *model.Service, vip netip.Addr) bool {
	return len(s.Ports) > 0 && !slices.ContainsFunc(s.Ports, func(port uint16) bool {
		_, sure, _ := f.translated(s, vip, port)
		return sure != surely
	})
}

// judgeProbedListener is about a port that the agent has probed.
func judgeProbedListener(s *model.Service, p *api.ProbedPort) []Finding {
	if p.State != api.ProbeRefused {
		return nil // judgeVIPs
	}
	return []Finding{{"listener", s.Name, Problem, fmt.Sprintf("nothing listens where %s port %d of %s is taken: %s answered the agent", p.Protocol, p.At.Port(), p.At.Addr(),
		map[bool]string{true: "ICMP", false: "an RST"}[p.Protocol == "udp"]),
		"start the application there"}}
}

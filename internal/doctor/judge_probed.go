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
func (f *facts) probed(at netip.AddrPort) *api.ProbedPort {
	if i := slices.IndexFunc(f.Daemon.Probes, func(p api.ProbedPort) bool { return p.At == at }); i >= 0 {
		return &f.Daemon.Probes[i]
	}
	return nil
}

// probedAs lists the ports of a VIP of which the agent's probes have shown one of these.
func (f *facts) probedAs(vip netip.Addr, states ...api.ProbeState) (ports []string) {
	for _, p := range f.Daemon.Probes {
		if p.At.Addr() == vip && slices.Contains(states, p.State) {
			when := ""
			if p.Age != nil {
				when = fmt.Sprintf(" (%.0f s ago)", float64(*p.Age))
			}
			ports = append(ports, fmt.Sprintf("%d%s", p.At.Port(), when))
		}
	}
	return ports
}

// takenIn lists the ports of a range that the agent's SYNs are taken at.
func (f *facts) takenIn(vip netip.Addr, r model.PortRange) (ports []uint16) {
	for _, p := range f.Daemon.Probes {
		if port := p.At.Port(); p.At.Addr() == vip && r.Contains(port) && (p.State == api.ProbeTaken || p.State == api.ProbeRefused) {
			ports = append(ports, port)
		}
	}
	return ports
}

// judgeVIP is about an address that no socket of this host could have: what becomes of the agent's SYNs counts, and without any what rules say.
func (f *facts) judgeVIP(s *model.Service, vip netip.Addr) Finding {
	lost, unknown := f.probedAs(vip, api.ProbeLost), f.probedAs(vip, api.ProbeUnknown)
	taken := f.probedAs(vip, api.ProbeTaken, api.ProbeRefused)
	where, there := "not an address of this host", "on no interface"
	if f.byIPVS(vip) {
		there = "on " + netdev.IPVSDevice + ", by kube-proxy's IPVS"
		where = there
	}
	switch {
	case len(lost) > 0:
		return Finding{"vip", vip.String(), Problem, where + ", and SYNs of the agent to tcp port " + strings.Join(lost, ", ") + " are lost", lookBehind}
	case len(unknown) > 0:
		return Finding{"vip", vip.String(), Problem, where + ", and whether packets to tcp port " + strings.Join(unknown, ", ") + " are taken is not known",
			"see why the agent cannot probe them: ballast ctl --instance " + f.Instance + " status"}
	case len(taken) > 0:
		return ok("vip", vip.String(), "%s; SYNs of the agent to tcp port %s are taken", there, strings.Join(taken, ", "))
	case f.named(s, vip), f.byIPVS(vip):
		by := "rules of nftables take"
		if f.byIPVS(vip) {
			by = "that takes"
		}
		return Finding{"vip", vip.String(), Warning, where + ": " + by + " its packets, but whether they arrive is not known",
			"ask an agent that runs, which probes TCP ports: ballast ctl --instance " + f.Instance + " status"}
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
	return []Finding{{"listener", s.Name, Problem, fmt.Sprintf("nothing listens where tcp port %d of %s is taken: an RST answered the agent", p.At.Port(), p.At.Addr()),
		"start the application there"}}
}

package doctor

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/ballast-lb/ballast/internal/linux/mptcp"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
)

// sessions tells whether connections of some service begin at load balancers.
func (f *facts) sessions() (some bool) {
	f.services(func(s *model.Service) { some = some || s.BegunForServers() })
	return some
}

// judgeSessions: do connections that load balancers begin come to be here? This host has seen no SYN of theirs.
func judgeSessions(f *facts) (out []Finding) {
	if f.Role != RoleAgent || !f.sessions() {
		return nil
	}
	if f.Host.TakesOver != nil {
		what, remedy := splitRemedy(f.Host.TakesOver.Error())
		out = append(out, Finding{"sessions", "", Problem, what, remedy})
	}
	if f.Host.LooseTracking == 0 {
		out = append(out, Finding{"sessions", "", Warning, "net.netfilter.nf_conntrack_tcp_loose is 0: a firewall here that drops what is invalid drops connections that load balancers begin",
			"sysctl -w net.netfilter.nf_conntrack_tcp_loose=1"})
	}
	// An agent makes its table when it starts, or says itself why it cannot.
	if f.Host.Translated != "" && !f.Host.Untracked && f.Daemon.runs() {
		out = append(out, Finding{"sessions", "", Warning, "the kernel tracks connections and translates addresses (" + f.Host.Translated + "), and the agent keeps no table against it: " +
			"it resets connections that load balancers begin", "start the agent without --keep-tracking, unless rules of your own keep them out of tracking"})
	}
	f.services(eachVIP(func(s *model.Service, vip netip.Addr) {
		for _, port := range s.Ports {
			if s.BegunForServers() && mptcp.ListensAt(f.Host.Listeners, netip.AddrPortFrom(vip, port)) {
				what, remedy := splitRemedy(server.RefusesMultipath)
				out = append(out, Finding{"sessions", s.Name, Problem, fmt.Sprintf("port %d: %s", port, what), remedy})
			}
			if rule, sure, _ := f.translated(s, vip, port); s.BegunForServers() && sure == surely {
				out = append(out, Finding{"sessions", s.Name, Problem, "a rule of nftables takes tcp port " + strconv.Itoa(int(port)) + " elsewhere (" + rule.Text +
					"): the kernel takes no connection over there", "let the application listen at the service's port itself, or use session: none and syn_proxy: off"})
			}
		}
	}))
	if len(out) == 0 {
		out = append(out, ok("sessions", "", "the kernel takes over connections that load balancers begin"))
	}
	return out
}

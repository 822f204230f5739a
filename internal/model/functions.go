package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Prefix is a range of addresses. The zero value: none.
type Prefix struct{ netip.Prefix }

// IsZero is for what leaves zero values out.
func (p Prefix) IsZero() bool { return p == Prefix{} }

// Functions reports whether the servers of a service are network functions (NAT, firewalls, proxies), whose gateway load balancers are: it has all
// addresses of Destinations, and all ports.
func (s *Service) Functions() bool { return s.Protocol == ProtocolAny }

// OnlyReturns reports whether a service is there for what comes back to a public address of network functions: nobody is to open connections to it, so
// that all its servers have weight 0, and they take new connections by another service.
func (f *Fleet) OnlyReturns(s *Service) bool {
	if !s.Functions() || len(s.Servers) == 0 || slices.ContainsFunc(s.Servers, func(server Server) bool { return server.Weight > 0 }) {
		return false
	}
	opens := func(server Server) bool {
		return server.TakesNew() && slices.ContainsFunc(s.Servers, func(own Server) bool { return own.Address == server.Address })
	}
	return slices.ContainsFunc(f.Services, func(other Service) bool { return other.Functions() && slices.ContainsFunc(other.Servers, opens) })
}

// Where is where clients connect to: the VIPs, or the addresses that are for network functions.
func (s *Service) Where() string {
	if s.Functions() {
		return s.Destinations.String()
	}
	vips := make([]string, 0, 1+len(s.MoreVIPs))
	for _, vip := range s.VIPs() {
		vips = append(vips, vip.String())
	}
	return strings.Join(vips, ",")
}

// functionDefaults are those that other services have not.
func (s *Service) functionDefaults() {
	if s.Destinations.IsValid() && !s.VIP.IsValid() {
		s.VIP = s.Destinations.Addr()
	}
	setDefault(&s.Affinity, AffinityUnset, AffinityReplicated)
	setDefault(&s.Return, ReturnUnset, ReturnThrough)
	setDefault(&s.Forward, ForwardUnset, ForwardL2)
	setDefault(&s.Fallback, FallbackUnset, FallbackHash)
}

// validateFunctions refuses what cannot be of a service of network functions, and what only such a one has.
func (s *Service) validateFunctions(path string, found *findings) {
	if !s.Functions() {
		if s.Destinations != (Prefix{}) {
			found.add(path+".destinations", "remove it, or use protocol: any", "protocol %s has one address, vip", s.Protocol)
		}
		return
	}
	const why = "a service of network functions has all ports of its addresses, and no cookies"
	if !s.Destinations.IsValid() {
		found.add(path+".destinations", "write it like 0.0.0.0/0 or 203.0.113.1/32", "missing: with protocol any it says which addresses are for the functions")
	} else if s.Destinations.Prefix != s.Destinations.Masked() {
		found.add(path+".destinations", "use "+s.Destinations.Masked().String(), "%s has bits behind its length", s.Destinations)
	} else if s.VIP != s.Destinations.Addr() {
		found.add(path+".vip", "remove it: destinations says it", "%s is not %s", s.VIP, s.Destinations.Addr())
	}
	if s.Announce != VIPAuto {
		found.add(path+".announce", "remove it", "routers lead there by routes of their own: nothing is announced")
	}
	if len(s.Ports)+len(s.PortRanges) > 0 {
		found.add(path+".ports", "remove them", why)
	}
	if s.Affinity != AffinityReplicated && s.Affinity != AffinityHash {
		found.add(path+".affinity", "use affinity: replicated, or hash as a baseline", why)
	}
	if s.Return != ReturnThrough {
		found.add(path+".return", "use return: through", "what functions send passes the load balancers: its answer finds the function by that")
	}
	if s.Forward != ForwardL2 {
		found.add(path+".forward", "use forward: l2", "a function gets packets as they are, as from a router")
	}
	if s.Fallback != FallbackHash {
		found.add(path+".fallback", "use fallback: hash", why)
	}
	if s.MPTCP.FirstPort != 0 {
		found.add(path+".mptcp", "remove it", why)
	}
	if s.Health.Check == CheckQUIC {
		found.add(path+".health.check", "use another check", "a function does not terminate QUIC")
	} else if s.Health.Check != CheckNone && s.Health.Check != CheckExec && s.Health.Port == 0 {
		found.add(path+".health.port", "give the port that the functions answer at, by their own addresses", "missing: a function has no port of the service")
	}
	for i := range s.Servers {
		if s.Servers[i].Port != 0 {
			found.add(fmt.Sprintf("%s.servers[%d].port", path, i), "remove it", why)
		}
	}
}

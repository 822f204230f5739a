package model

import "fmt"

// Limits and defaults of sessions.
const (
	MaxSessionServices    = 256 // with session tls or syn_proxy, that load balancers have room for
	MaxSessionClients     = 32  // SESSION_CLIENTS_MAX
	DefaultSessionClients = 16
	SessionClientsUnset   = 255 // Service.SessionClients that was not given
)

// validateSession refuses where load balancers could not begin connections, or where servers have no agent to take them over.
func (s *Service) validateSession(path string, found *findings) {
	if s.SessionClients > MaxSessionClients {
		found.add(path+".session_clients", fmt.Sprintf("use 0 (no limit) to %d", MaxSessionClients), "%d is out of range", s.SessionClients)
	}
	if s.Session == SessionNone {
		if n := s.SessionClients; n != 0 && n != DefaultSessionClients && n != SessionClientsUnset { // 0: in states of older versions
			found.add(path+".session_clients", fmt.Sprintf("remove it (ctl: --session-clients %d), or use session: tls", DefaultSessionClients), "without session: tls there are no sessions to limit")
		}
		return
	}
	at := path + ".session"
	checkChoice(at, sessionNames, s.Session, found)
	s.validateBegun(at, found)
}

// BegunForServers reports whether connections may begin at load balancers, which answer SYNs themselves.
func (s *Service) BegunForServers() bool {
	return s.Session != SessionNone || s.SYNProxy != SYNProxyOff
}

// validateBegun refuses what does not go with connections that begin at load balancers.
func (s *Service) validateBegun(at string, found *findings) {
	switch {
	case s.Protocol != ProtocolTCP:
		found.add(at, "remove it", "it needs tcp, and the service is %s", s.Protocol)
	case s.Affinity != AffinityCookie:
		found.add(at, "use affinity: cookie", "affinity %s finds connections by what their SYN has left behind, and load balancers answer SYNs themselves", s.Affinity)
	case s.Return != ReturnDirect:
		found.add(at, "use return: direct", "an agent takes connections over at the server, and with return: %s there is none", s.Return)
	case s.Dispatch == DispatchChoices:
		found.add(at, "use another dispatch", "servers accept or pass on SYNs, and load balancers answer them themselves")
	case s.Fallback == FallbackReplicated:
		found.add(at, "use fallback: second-chance or hash", "clients without timestamps, whose SYNs load balancers answer, go by placement")
	case s.MPTCP.FirstPort != 0:
		found.add(at, "remove it, or mptcp", "load balancers that answer SYNs themselves speak plain TCP, and ports of mptcp would show which connections share a server, which sealed session ids hide")
	}
}

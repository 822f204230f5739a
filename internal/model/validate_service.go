package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

func (s *Service) validate(path string, found *findings) {
	checkName(path+".name", s.Name, found)
	if s.Owner != "" {
		checkName(path+".owner", s.Owner, found)
	}
	s.validateVIPs(path, found)
	s.validateValues(path, found)
	s.validatePorts(path, found)
	s.validateCombination(path, found)
	s.validateSizes(path, found)
	s.validateTable(path, found)
	s.validateChoices(path, found)
	s.validateReplicated(path, found)
	s.validateFunctions(path, found)
	s.validateQUIC(path, found)
	s.validateSession(path, found)
	s.validateSYNProxy(path, found)
	s.validateMPTCP(path, found)
	s.validateAllow(path, found)
	s.validateSourceLimit(path+".source_limit", found)
	s.validatePredecessor(path+".predecessor", found)
	s.Source.validate(path+".servers", found)
	s.validateIDs(path, found)
	for i := range s.Servers {
		s.validateServer(fmt.Sprintf("%s.servers[%d]", path, i), &s.Servers[i], found)
	}
	s.validateTwins(path, found)
	s.Load.validate(path+".load", found)
	s.validatePlacement(path+".placement", found)
	s.validateSlowStart(path+".slow_start", found)
	s.Health.validate(path+".health", found)
}

func (s *Service) validateValues(path string, found *findings) {
	checkChoice(path+".protocol", protocolNames, s.Protocol, found)
	checkChoice(path+".dispatch", dispatchNames, s.Dispatch, found)
	checkChoice(path+".affinity", affinityNames, s.Affinity, found)
	checkChoice(path+".fallback", fallbackNames, s.Fallback, found)
	checkChoice(path+".forward", forwardNames, s.Forward, found)
	checkChoice(path+".return", returnNames, s.Return, found)
	checkChoice(path+".announce", vipAnnouncementNames, s.Announce, found)
}

func checkChoice[E ~uint8](path string, names map[E]string, v E, found *findings) {
	if _, ok := names[v]; !ok {
		found.add(path, "use one of "+choices(names), "unknown value %d", uint8(v))
	}
}

// validateCombination refuses choices that cannot work together, with the reason.
func (s *Service) validateCombination(path string, found *findings) {
	if s.Protocol == ProtocolUDP && s.Affinity.Cookies() {
		found.add(path+".affinity", "use affinity: quic, replicated, hash or local-table", "udp packets have no TCP timestamp to carry a cookie")
	}
	if s.Affinity == AffinityHash && (!s.Dispatch.Placed() || s.Dispatch == DispatchChoices) {
		found.add(path+".dispatch", "use dispatch: maglev, hash or wcmp, or affinity: cookie, table or local-table",
			"%s with affinity hash would send the packets of one connection to different servers", s.Dispatch)
	}
	if s.Affinity == AffinityHistory && s.Dispatch != DispatchChoices {
		found.add(path+".affinity", "use affinity: cookie, or dispatch: choices", "history remembers which candidate has accepted, and %s has no candidates", s.Dispatch)
	}
	if s.Affinity == AffinityHistory && s.Fallback != FallbackSecondChance {
		found.add(path+".fallback", "use fallback: second-chance", "with affinity history a packet visits the servers that had its place before")
	}
	if s.Return == ReturnThrough && s.Forward != ForwardL2 && s.Forward != ForwardNAT {
		found.add(path+".forward", "use forward: nat or l2",
			"%s needs an agent to unpack it on the server, and return: through has none", s.Forward)
	}
	if s.Forward == ForwardNAT && s.Return == ReturnDirect {
		found.add(path+".forward", "use return: through, or forward: ipip",
			"nat with return: direct would answer the client from an address that it does not know")
	}
	if s.Fallback == FallbackSecondChance && s.Return == ReturnThrough {
		found.add(path+".fallback", "use fallback: hash", "second-chance needs agents on the servers, and return: through has none")
	}
	if s.Fallback == FallbackSecondChance && s.Protocol == ProtocolUDP {
		found.add(path+".fallback", "use fallback: hash", "second-chance looks for a TCP connection on the server, and udp has none")
	}
}

func (s *Service) validateSizes(path string, found *findings) {
	if s.CookieBits < MinCookieBits || s.CookieBits > MaxCookieBits {
		found.add(path+".cookie_bits", fmt.Sprintf("use %d to %d", MinCookieBits, MaxCookieBits), "%d is out of range", s.CookieBits)
	} else if s.Return == ReturnThrough && s.CookieBits != ThroughBits {
		found.add(path+".cookie_bits", fmt.Sprintf("use %d", ThroughBits),
			"%d bits do not fit: the LB writes over the low %d bits of the server's own timestamp", s.CookieBits, ThroughBits)
	}
	if !slices.Contains(tableSizes, s.TableSlots) {
		found.add(path+".table_slots", "use one of "+strings.Trim(fmt.Sprint(tableSizes), "[]"), "%d is not a table size", s.TableSlots)
	}
	takesNew := 0
	for i := range s.Servers {
		if s.Servers[i].TakesNew() {
			takesNew++
		}
	}
	if uint32(takesNew) > s.TableSlots {
		found.add(path+".table_slots", "choose a larger table", "%d servers do not fit %d slots", takesNew, s.TableSlots)
	}
	if !s.Dispatch.Placed() && takesNew > MaxRoundServers {
		found.add(path+".dispatch", "use dispatch: maglev", "%d servers, a round of %s has at most %d turns", takesNew, s.Dispatch, MaxRoundServers)
	}
}

func (s *Service) validateIDs(path string, found *findings) {
	wider, room := "use wider cookies (cookie_bits)", fmt.Sprintf("%d cookie bits", s.CookieBits)
	switch s.Affinity {
	case AffinityQUIC:
		wider, room = "use longer ids (quic.server_id_length)", fmt.Sprintf("ids of %d bytes", s.QUIC.ServerIDLength)
	case AffinityTable:
		wider = fmt.Sprintf("use wider cookies (cookie_bits, up to %d) or smaller table.index_bits", MaxCookieBits)
		room = fmt.Sprintf("%d cookie bits less %d of the table", s.CookieBits, s.Table.NodeBits+s.Table.IndexBits)
	}
	if m := &s.MPTCP; m.FirstPort != 0 && int(m.PerEpoch()) < 1<<s.IDBits()-1 {
		wider, room = "use more ports (mptcp.ports)", fmt.Sprintf("half of %d ports of mptcp", m.Ports)
	}
	free := s.FreeIDs()
	remedy := func() string { // another one for each server
		if id, ok := free(); ok {
			return fmt.Sprintf("the next free id is %d", id)
		}
		return "remove a server or " + wider
	}
	owner := make(map[uint16]string)
	for i, server := range s.Servers {
		at := fmt.Sprintf("%s.servers[%d].id", path, i)
		other, taken := owner[server.ID]
		switch {
		case s.MaxID() == 0: // the width is wrong and already reported
		case server.ID == 0:
			found.add(at, remedy(), "missing: a service with affinity %s needs an id that stays with the server", s.Affinity)
		case server.ID > s.MaxID():
			found.add(at, remedy(), "%d is out of range 1-%d of %s", server.ID, s.MaxID(), room)
		case taken:
			found.add(at, remedy(), "%d is the id of server %s", server.ID, other)
		default:
			owner[server.ID] = server.Name
		}
	}
}

func (s *Service) validateServer(path string, server *Server, found *findings) {
	checkName(path+".name", server.Name, found)
	checkAddress(path+".address", server.Address, found)
	checkChoice(path+".state", stateNames, server.State, found)
	if !server.Deadline.IsZero() && server.State == StateActive {
		found.add(path+".deadline", "use state: draining, or remove the deadline", "an active server has no deadline")
	}
	if server.Weight > MaxWeight {
		found.add(path+".weight", fmt.Sprintf("use 0 to %d", MaxWeight), "%d is out of range", server.Weight)
	}
	if s.Forward == ForwardSRv6 && server.Address.IsValid() && server.Address.Is4() {
		found.add(path+".address", "use the server's IPv6 address, or forward: gue", "%s cannot be a segment: they are IPv6 addresses", server.Address)
	}
	if s.Forward == ForwardNAT && server.Address.IsValid() && s.VIP.IsValid() && server.Address.Is4() != s.VIP.Is4() {
		found.add(path+".address", "use an address of the vip's family, or return: direct with forward: ipip",
			"nat cannot turn %s into %s", family(s.VIP), family(server.Address))
	}
	if server.Port != 0 && s.Forward != ForwardNAT {
		found.add(path+".port", "remove it, or use forward: nat", "only nat can change the port")
	} else if server.Port != 0 && len(s.Ports)+len(s.PortRanges) > 1 {
		found.add(path+".port", "make one service per port", "answers from port %d could belong to any of the service's %d ports", server.Port, len(s.Ports))
	}
}

// validateTwins refuses servers that cannot be told apart, by people or by the source of their answers.
func (s *Service) validateTwins(path string, found *findings) {
	type source struct {
		address netip.Addr
		port    uint16
	}
	names := make(map[string]int, len(s.Servers))
	sources := make(map[source]int, len(s.Servers))
	for i := range s.Servers {
		server := &s.Servers[i]
		at := fmt.Sprintf("%s.servers[%d]", path, i)
		from := source{server.Address, s.effectivePort(server)}
		if first, ok := sources[from]; ok && server.Address.IsValid() {
			found.add(at+".address", "remove one of them", "%s is also the address of server %s", server.Address, s.Servers[first].Name)
		} else if first, ok := names[server.Name]; ok && server.Name != "" {
			found.add(at+".name", "choose another name", "%q is also the name of servers[%d]", server.Name, first)
		}
		names[server.Name] = i
		sources[from] = i
	}
}

// effectivePort is where a nat server listens; 0 for a service with several ports, where the client's port is kept.
func (s *Service) effectivePort(server *Server) uint16 {
	if s.Forward == ForwardNAT && server.Port == 0 && len(s.Ports) == 1 {
		return s.Ports[0]
	}
	return server.Port
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

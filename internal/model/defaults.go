package model

import "slices"

// ApplyDefaults fills in what is unset: choices made by NewService and NewServer, zero Protocol, CookieBits and TableSlots,
// empty server names, and the ids of the servers of services that keep none. It is idempotent and never fails;
// what makes no sense is left for Validate to refuse.
func (f *Fleet) ApplyDefaults() {
	if f.Keys.Current == 0 && len(f.Keys.Cookie) == 1 {
		for epoch := range f.Keys.Cookie {
			f.Keys.Current = epoch
		}
	}
	if f.HasSecondTier() {
		f.NodeHealth.applyDefaults()
	}
	if f.Replicated() {
		f.Replicas.ApplyDefaults()
	}
	f.MakeRoomForNodes()
	for i := range f.Nodes {
		f.Nodes[i].BGP.applyDefaults()
		f.Nodes[i].L2.applyDefaults()
	}
	for i := range f.Services {
		f.Services[i].ApplyDefaults()
	}
}

// ApplyDefaults fills in what is unset in one service; see Fleet.ApplyDefaults.
func (s *Service) ApplyDefaults() {
	setDefault(&s.Protocol, 0, ProtocolTCP)
	setDefault(&s.TableSlots, 0, DefaultSlots)
	setDefault(&s.SessionClients, SessionClientsUnset, DefaultSessionClients)
	if s.SYNProxy == SYNProxyAuto {
		setDefault(&s.SYNLimit, 0, DefaultSYNLimit)
	}
	if s.SourceLimit.Rate != 0 {
		s.SourceLimit.applyDefaults()
	}
	s.Load.applyDefaults()
	s.Health.applyDefaults()

	if s.Functions() {
		s.functionDefaults()
	}
	setDefault(&s.Return, ReturnUnset, ReturnDirect)
	affinity, fallback := AffinityCookie, FallbackSecondChance
	if s.Protocol == ProtocolUDP {
		affinity, fallback = AffinityHash, FallbackHash
	}
	forward, bits := ForwardIPIP, uint8(DirectCookieBits)
	if s.Return == ReturnThrough {
		forward, bits, fallback = ForwardNAT, ThroughBits, FallbackHash
	}
	setDefault(&s.Affinity, AffinityUnset, affinity)
	if s.Affinity == AffinityTable {
		s.Table.applyDefaults()
	}
	if s.Affinity.Cookies() && s.Table.NodeBits > 0 {
		bits = MaxCookieBits
	}
	if s.Affinity == AffinityReplicated {
		fallback = FallbackHash
	}
	setDefault(&s.Fallback, FallbackUnset, fallback)
	setDefault(&s.Forward, ForwardUnset, forward)
	setDefault(&s.CookieBits, 0, bits)

	dispatch := DispatchRR
	if s.Affinity == AffinityHash {
		dispatch = DispatchMaglev
	}
	setDefault(&s.Dispatch, DispatchUnset, dispatch)
	if s.BySource() {
		s.Placement.applyDefaults()
	}
	if s.Dispatch == DispatchChoices {
		s.Choices.applyDefaults()
	}
	if s.Affinity == AffinityQUIC {
		s.QUIC.applyDefaults()
	}
	if s.MPTCP.FirstPort != 0 {
		setDefault(&s.MPTCP.Ports, 0, DefaultJoinPorts)
	}
	s.defaultServers()
}

// defaultServers names servers after their address, gives them weight 1 and, where no connection is remembered by it, an id: the smallest
// unused one in the order of the list, so that equal files give equal tables on every node.
func (s *Service) defaultServers() {
	var used []uint16
	for _, server := range s.Servers {
		used = append(used, server.ID)
	}
	slices.Sort(used)
	next := uint16(1)
	for i := range s.Servers {
		server := &s.Servers[i]
		setDefault(&server.Weight, WeightUnset, 1)
		if server.Name == "" && server.Address.IsValid() {
			server.Name = server.Address.String()
		}
		if server.ID != 0 || s.Affinity.KeepsIDs() {
			continue
		}
		for next < s.MaxID() {
			if _, taken := slices.BinarySearch(used, next); !taken {
				break
			}
			next++
		}
		server.ID = next // above MaxID servers the last id repeats and Validate says so
		next = min(next+1, max(s.MaxID(), 1))
	}
}

func setDefault[T comparable](field *T, unset, value T) {
	if *field == unset {
		*field = value
	}
}

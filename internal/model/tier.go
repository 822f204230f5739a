package model

// SecondTierName is the name by which the nodes of the second tier are checked and judged, as if they were the servers of a service.
// No service can have it (checkName).
const SecondTierName = "@second-tier"

// SecondTier returns the nodes of the second tier as the servers of a service that is not a part of the fleet, nil: there are none.
// Whatever checks servers finds out by it who of them is alive. It has no VIP: nodes are asked at their own addresses.
func (f *Fleet) SecondTier() *Service {
	s := &Service{Name: SecondTierName, Protocol: ProtocolTCP, Dispatch: DispatchMaglev, Affinity: AffinityHash, Forward: ForwardIPIP, Health: f.NodeHealth}
	s.Health.Deadline = 0 // what is behind a dead node's connections is not on that node
	for i := range f.Nodes {
		if n := &f.Nodes[i]; n.Tier == TierSecond {
			s.Servers = append(s.Servers, Server{Name: n.Name, Address: n.Address, ID: n.ID, Weight: 1, State: n.State})
		}
	}
	if len(s.Servers) == 0 {
		return nil
	}
	return s
}

// SendsToNodes reports whether a node of the first tier sends the service's packets to nodes of the second, and not to its servers.
func (s *Service) SendsToNodes(tier Tier) bool {
	return tier == TierFirst && s.Affinity == AffinityTable
}

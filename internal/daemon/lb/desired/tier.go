// A node's part in two tiers (Cheetah III-B). It finds itself among the fleet's nodes by its name. On a node of the first tier the
// packets of services with a table go to nodes of the second, whose health it checks as that of servers.
package desired

import (
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// ThisNode is the daemon's own among those that have a tier; the zero value: it has none, as a first tier without a second.
func (s *State) ThisNode() model.Node {
	if !s.Running.HasSecondTier() {
		return model.Node{}
	}
	return s.Own()
}

// Own is the daemon's own among the fleet's nodes: how it announces VIPs, and whether it shall. The zero value: it is none of them, and active.
func (s *State) Own() model.Node {
	if node := s.Running.Node(s.Self); node != nil {
		return *node
	}
	return model.Node{}
}

// Tier is what the tables have to know of the tiers.
func (s *State) Tier() plan.Tier {
	here := s.ThisNode()
	tier := plan.Tier{Tier: here.Tier, ID: here.ID}
	if here.Tier != model.TierFirst {
		return tier
	}
	for _, node := range s.Running.Nodes {
		if node.Tier == model.TierSecond {
			tier.Second = append(tier.Second, node)
		}
	}
	tier.Down = s.DownOf(model.SecondTierName)
	return tier
}

// SendsToNodes reports whether the service's packets go to nodes of the second tier from here.
func (s *State) SendsToNodes(service *model.Service) bool {
	return service.SendsToNodes(s.ThisNode().Tier)
}

// SecondTier are the nodes that this one sends to, nil: none.
func (s *State) SecondTier() *model.Service {
	if s.ThisNode().Tier != model.TierFirst {
		return nil
	}
	return s.Running.SecondTier()
}

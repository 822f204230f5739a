package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/plan"
)

// A node's part in two tiers (Cheetah III-B). It finds itself among the fleet's nodes by its name. On a node of the first tier the
// packets of services with a table go to nodes of the second, whose health it checks as that of servers.

// nodeName is what the node is called in the fleet: as in its certificate if it has one.
func nodeName(given string, credentials *pki.Credentials) (string, error) {
	switch {
	case credentials != nil:
		return credentials.Identity().Name, nil
	case given != "":
		return given, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find this node's name: %w: use --name", err)
	}
	return name, nil
}

// thisNode is the daemon's own among those that have a tier; the zero value: it has none, as a first tier without a second. Callers hold mu.
func (lb *LB) thisNode() model.Node {
	fleet := &lb.node.Running
	if node := fleet.Node(lb.name); node != nil && fleet.HasSecondTier() {
		return *node
	}
	return model.Node{}
}

// tier is what the tables have to know of the tiers. Callers hold mu.
func (lb *LB) tier() plan.Tier {
	here := lb.thisNode()
	tier := plan.Tier{Tier: here.Tier, ID: here.ID}
	if here.Tier != model.TierFirst {
		return tier
	}
	for _, node := range lb.node.Running.Nodes {
		if node.Tier == model.TierSecond {
			tier.Second = append(tier.Second, node)
		}
	}
	tier.Down = set(lb.unhealthy[model.SecondTierName].Down)
	return tier
}

// sendsToNodes reports whether the service's packets go to nodes of the second tier from here. Callers hold mu.
func (lb *LB) sendsToNodes(s *model.Service) bool { return s.SendsToNodes(lb.thisNode().Tier) }

// secondTier are the nodes that this one sends to, nil: none. Callers hold mu.
func (lb *LB) secondTier() *model.Service {
	if lb.thisNode().Tier != model.TierFirst {
		return nil
	}
	return lb.node.Running.SecondTier()
}

// acceptTunnels makes the data path open what the first tier sends to this node. Callers hold mu.
func (lb *LB) acceptTunnels() error {
	address := lb.thisNode().Address
	if address == lb.accepts {
		return nil
	}
	if err := lb.path.AcceptTunnels(address); err != nil {
		return fmt.Errorf("take packets from the first tier: %w", err)
	}
	lb.accepts = address
	return nil
}

// tierProblems are what keeps the first tier's packets from arriving here. Callers hold mu.
func (lb *LB) tierProblems() []string {
	address := lb.thisNode().Address
	if !address.IsValid() {
		return nil
	}
	if local, err := netdev.LocalAddresses(); err != nil || slices.Contains(local, address) {
		return nil
	}
	return []string{fmt.Sprintf("node %s: its address %s is none of this host's: what the first tier sends there does not arrive", lb.name, address)}
}

// secondTierView is the second tier as the engine of this process sees it, nil: it is not for this node to judge. Callers hold mu.
func (lb *LB) secondTierView() *engine.ServiceView {
	second := lb.secondTier()
	if second == nil {
		return nil
	}
	return &engine.ServiceView{Service: *second, Down: lb.unhealthy[model.SecondTierName].Down}
}

// tierStatus is nil for a node that has no tier. Callers hold mu.
func (lb *LB) tierStatus() (*api.TierStatus, error) {
	here := lb.thisNode()
	if here.Tier == 0 {
		return nil, nil
	}
	status := &api.TierStatus{Tier: here.Tier, ID: here.ID, Address: here.Address}
	second := lb.secondTier()
	if second == nil {
		return status, nil
	}
	states, places := lb.nodeHealth(second), lb.tables.Places()
	for i := range second.Servers {
		server := &second.Servers[i]
		node := api.SecondTierNode{Node: *lb.node.Running.Node(server.Name), Health: states[server.ID].state, HealthDetail: states[server.ID].detail,
			Path: lb.describePath(server.Address)}
		for j := range lb.node.Running.Services {
			place := places[lb.node.Running.Services[j].Name]
			if !place.Nodes {
				continue
			}
			traffic, _, err := lb.serverTraffic(model.DispatchMaglev, place, server.ID)
			if err != nil {
				return nil, err
			}
			node.Packets += traffic.Packets
			node.Bytes += traffic.Bytes
		}
		status.Second = append(status.Second, node)
	}
	return status, nil
}

// nodeTraffic is what a service's packets from here to nodes came to. Callers hold mu.
func (lb *LB) nodeTraffic(place plan.Place) (nodes []api.NodeTraffic, err error) {
	for _, node := range lb.tier().Second {
		traffic, _, err := lb.serverTraffic(model.DispatchMaglev, place, node.ID)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, api.NodeTraffic{Name: node.Name, ID: node.ID, Packets: traffic.Packets, Bytes: traffic.Bytes, Connections: traffic.Connections})
	}
	return nodes, nil
}

type judgedState struct{ state, detail string }

// nodeHealth tells what is known of the nodes, by id. Callers hold mu.
func (lb *LB) nodeHealth(second *model.Service) map[uint16]judgedState {
	states := map[uint16]judgedState{}
	if lb.engine != nil {
		for _, s := range lb.engine.Servers(model.SecondTierName) {
			states[s.Server.ID] = judgedState{s.Health, s.HealthDetail}
		}
		return states
	}
	down := set(lb.unhealthy[model.SecondTierName].Down)
	for i := range second.Servers {
		id := second.Servers[i].ID
		switch {
		case down[id]:
			states[id] = judgedState{state: health.Unhealthy}
		case second.Health.Check == model.CheckNone:
			states[id] = judgedState{state: health.Unchecked}
		default:
			states[id] = judgedState{state: health.Unknown}
		}
	}
	return states
}

// subject is what messages call an address that this node sends to. Callers hold mu.
func (lb *LB) subject(address netip.Addr) string {
	for _, node := range lb.node.Running.Nodes {
		if node.Address == address {
			return "node " + node.Name + " (" + address.String() + ")"
		}
	}
	return "server " + address.String()
}

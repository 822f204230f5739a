package doctor

import (
	"errors"
	"fmt"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
)

// self is this load balancer among those that have a tier, nil: it has none.
func (f *facts) self() *model.Node {
	if f.Role != RoleLB || !f.File.Fleet.HasSecondTier() {
		return nil
	}
	return f.File.Fleet.Node(f.Name)
}

// secondTier are the load balancers that this one sends to, nil: none.
func (f *facts) secondTier() *model.Service {
	if self := f.self(); self == nil || self.Tier != model.TierFirst {
		return nil
	}
	return f.File.Fleet.SecondTier()
}

// judgeTier is about load balancers in two tiers.
func judgeTier(f *facts) (out []Finding) {
	fleet := &f.File.Fleet
	if f.Role != RoleLB || len(fleet.Nodes) == 0 {
		return nil
	}
	if !fleet.HasSecondTier() {
		return []Finding{{"tier", f.Name, Warning, "there is a first tier and no second: nodes of the first keep connection tables themselves",
			"add nodes of tier: second, or remove `nodes`"}}
	}
	if fleet.NodeHealth.Check == model.CheckNone {
		out = append(out, Finding{"tier", "node_health", Warning, "nodes of the second tier are not checked: of one that is dead, connections end and new ones fail",
			"start them with --metrics :9435 and add node_health: {check: http, port: 9435, path: /healthz}"})
	}
	switch self := f.self(); {
	case self == nil:
		return append(out, Finding{"tier", f.Name, Warning, fmt.Sprintf("is not among the %d nodes that have a tier: it keeps connection tables itself", len(fleet.Nodes)),
			"name it under `nodes`, or start it with the --name that it has there"})
	case self.Tier == model.TierFirst:
		return append(out, f.judgeSecondTier()...)
	default:
		return append(out, f.judgeTunnelEnd(self))
	}
}

// judgeTunnelEnd is about where the first tier sends to.
func (f *facts) judgeTunnelEnd(self *model.Node) Finding {
	device, local := f.Host.Addresses[self.Address]
	if !local {
		return Finding{"tier", f.Name, Problem, fmt.Sprintf("its address %s is none of this host's: what the first tier sends there does not arrive", self.Address),
			"correct the address, give it to this host, or start the load balancer with another --name"}
	}
	return ok("tier", f.Name, "second, with id %d at %s (%s)", self.ID, self.Address, device)
}

func (f *facts) judgeSecondTier() (out []Finding) {
	second := f.secondTier()
	for i := range second.Servers {
		node := &second.Servers[i]
		out = append(out, judgeWayToNode(second, node, f.Paths[node.Address])...)
	}
	if len(out) == 0 {
		out = append(out, ok("tier", f.Name, "first; %d nodes of the second can be reached and take packets of %d bytes", len(second.Servers), clientMTU))
	}
	return out
}

func judgeWayToNode(second *model.Service, node *model.Server, path pathFacts) (out []Finding) {
	subject := "node " + node.Name
	switch {
	case errors.Is(path.Err, netdev.ErrUnresolved):
		return []Finding{{"path", subject, Problem, "the next hop does not answer (ARP, neighbour discovery): " + path.Err.Error(),
			"start the load balancer or its router, and check the cabling, VLAN and subnet of this host"}}
	case path.Err != nil:
		return []Finding{{"path", subject, Problem, path.Err.Error(), fmt.Sprintf("ip route add %s via ROUTER, or correct the address", node.Address)}}
	case path.Silent:
		out = append(out, Finding{"reachability", subject, Warning, fmt.Sprintf("%s does not answer at port %d of node_health within %v", node.Address, second.Health.Port, reachTimeout),
			"start the load balancer with --metrics, and let this host through to it"})
	}
	return append(out, judgeRoom(subject, path.MTU, overhead(second, node.Address), ipv6Header+tcpHeader)...)
}

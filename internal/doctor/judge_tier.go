package doctor

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
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
	tiered := slices.ContainsFunc(fleet.Nodes, func(n model.Node) bool { return n.Tier != 0 })
	if f.Role != RoleLB || !tiered {
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
	case self == nil || self.Tier == 0:
		return append(out, Finding{"tier", f.Name, Warning, fmt.Sprintf("is not among the nodes that have a tier (%d): it keeps connection tables itself", len(fleet.Nodes)),
			"name it under `nodes`, or start it with the --name that it has there"})
	case self.Tier == model.TierFirst:
		return append(out, f.judgeSecondTier()...)
	default:
		return append(append(out, f.judgeAnswers()...), f.judgeTunnelEnd(self))
	}
}

// judgeAnswers: a node of the second tier routes what it answers to clients itself, as the packet came from the first.
func (f *facts) judgeAnswers() (out []Finding) {
	for _, d := range f.Devices {
		for i := range f.File.Fleet.Services {
			s := &f.File.Fleet.Services[i]
			off4, off6, remedy := s.HasIPv4() && d.Forwarding4 == 0, s.HasIPv6() && d.Forwarding6 == 0, "sysctl -w net.ipv4.ip_forward=1"
			if !off4 {
				remedy = "sysctl -w net.ipv6.conf.all.forwarding=1"
			}
			if s.SendsToNodes(model.TierFirst) && (off4 || off6) {
				out = append(out, Finding{"forwarding", d.Name, Warning,
					"is off: clients of service " + s.Name + " do not learn from this node that a packet is too big for the way to its server", remedy})
				break
			}
		}
	}
	return out
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
		out = append(out, f.judgeWayToNode(second, node)...)
	}
	if len(out) == 0 {
		out = append(out, ok("tier", f.Name, "first; %s packets of %d bytes", model.Counted(len(second.Servers), "node of the second can be reached and takes", "nodes of the second can be reached and take"), clientMTU))
	}
	return out
}

func (f *facts) judgeWayToNode(second *model.Service, node *model.Server) (out []Finding) {
	subject, path := "node "+node.Name, f.Paths[node.Address]
	switch {
	case errors.Is(path.Err, netdev.ErrUnresolved):
		return []Finding{silentHop("path", subject, "the next hop", path.Err, "start the load balancer or its router, and check the cabling, VLAN and subnet of this host")}
	case path.Err != nil:
		return []Finding{{"path", subject, Problem, path.Err.Error(), fmt.Sprintf("ip route add %s via ROUTER, or correct the address", node.Address)}}
	case path.Silent:
		out = append(out, Finding{"reachability", subject, Warning, fmt.Sprintf("%s does not answer at port %d of node_health within %v", node.Address, second.Health.Port, reachTimeout),
			"start the load balancer with --metrics, and let this host through to it"})
	}
	return append(out, judgeRoom(subject, path.MTU, f.roomBehind(second, node), plan.ClientHeaders(true))...)
}

// roomBehind is what the first tier leaves for encapsulation on the way to a node: as much as the node itself needs.
func (f *facts) roomBehind(second *model.Service, node *model.Server) int {
	most := plan.Overhead(second, node.Address)
	for i := range f.File.Fleet.Services {
		s := &f.File.Fleet.Services[i]
		if !s.SendsToNodes(model.TierFirst) {
			continue
		}
		for j := range s.Servers {
			most = max(most, plan.Overhead(s, s.Servers[j].Address))
		}
	}
	return most
}

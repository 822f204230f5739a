package model

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
)

// Implementation constants: bounds of two tiers.
const (
	MaxNodes    = 1024 // with a tier, of one fleet
	MaxNodeBits = 8    // of the cookie, for the ids of the second tier's nodes: 255 of them
)

// HasSecondTier reports whether there are nodes of the second tier.
func (f *Fleet) HasSecondTier() bool {
	return slices.ContainsFunc(f.Nodes, func(n Node) bool { return n.Tier == TierSecond })
}

// MakeRoomForNodes gives the cookies of services with connection tables room for the ids of the second tier's nodes, where there are any
// and the service does not say how much.
func (f *Fleet) MakeRoomForNodes() {
	if !f.HasSecondTier() {
		return
	}
	for i := range f.Services {
		if s := &f.Services[i]; s.Affinity == AffinityTable {
			setDefault(&s.Table.NodeBits, 0, DefaultNodeBits)
		}
	}
}

// maxNodeID returns the largest id that the cookies of every service can carry, and the service that has the least room; nil: there is none
// with a connection table.
func (f *Fleet) maxNodeID() (most uint16, narrowest *Service) {
	most = 1<<MaxNodeBits - 1
	for i := range f.Services {
		s := &f.Services[i]
		if s.Affinity == AffinityTable && s.Table.NodeBits > 0 && s.Table.NodeBits <= MaxNodeBits && (narrowest == nil || s.MaxNodeID() < most) {
			most, narrowest = s.MaxNodeID(), s
		}
	}
	return most, narrowest
}

// NextFreeNodeID returns an id for another node of the second tier: above all in use, and when those are used up the smallest unused one.
// ok is false when all are taken.
func (f *Fleet) NextFreeNodeID() (id uint16, ok bool) { return f.freeNodeIDs()() }

// freeNodeIDs returns what gives ids for further nodes, one after the other.
func (f *Fleet) freeNodeIDs() (next func() (id uint16, ok bool)) {
	most, _ := f.maxNodeID()
	used := map[uint16]bool{}
	for _, n := range f.Nodes {
		used[n.ID] = true
	}
	return freeIDs(used, most)
}

// IsZero reports whether nothing is given.
func (h Health) IsZero() bool { return reflect.ValueOf(h).IsZero() }

func (f *Fleet) validateNodes(found *findings) {
	if len(f.Nodes) > MaxNodes {
		found.add("nodes", "leave load balancers without a tier out", "%d nodes, at most %d fit", len(f.Nodes), MaxNodes)
		return
	}
	if len(f.Nodes) > 0 {
		taken := nodesTaken{map[string]int{}, map[uint16]string{}, f.addressesInUse(), f.freeNodeIDs()}
		for i := range f.Nodes {
			f.validateNode(fmt.Sprintf("nodes[%d]", i), i, taken, found)
		}
	}
	switch {
	case f.HasSecondTier():
		f.validateNodeHealth(found)
		f.validateRoomForNodes(found)
	case !f.NodeHealth.IsZero():
		found.add("node_health", "remove it", "there are no nodes of the second tier to check")
	}
}

// nodesTaken is what no two nodes may have: name -> index, id -> name, and address -> whose it is.
type nodesTaken struct {
	names     map[string]int
	ids       map[uint16]string
	addresses map[netip.Addr]string
	free      func() (id uint16, ok bool)
}

// addressesInUse returns those of nodes that are also a server's or a service's, and whose.
func (f *Fleet) addressesInUse() map[netip.Addr]string {
	nodes, used := map[netip.Addr]bool{}, map[netip.Addr]string{}
	for i := range f.Nodes {
		nodes[f.Nodes[i].Address] = true
		for _, neighbor := range f.Nodes[i].BGP.Neighbors {
			nodes[neighbor.Address] = true
		}
	}
	for i := range f.Services {
		s := &f.Services[i]
		for _, vip := range s.VIPs() {
			if nodes[vip] {
				used[vip] = "the vip of service " + s.Name
			}
		}
		for j := range s.Servers {
			if server := &s.Servers[j]; nodes[server.Address] {
				used[server.Address] = "the address of server " + server.Name + " of service " + s.Name
			}
		}
	}
	return used
}

func (f *Fleet) validateNode(path string, i int, taken nodesTaken, found *findings) {
	n := &f.Nodes[i]
	checkName(path+".name", n.Name, found)
	if first, ok := taken.names[n.Name]; ok && n.Name != "" {
		found.add(path+".name", "choose another name", "%q is also the name of nodes[%d]", n.Name, first)
	} else {
		taken.names[n.Name] = i
	}
	checkChoice(path+".state", stateNames, n.State, found)
	if !n.BGP.IsZero() {
		n.BGP.validate(path+".bgp", taken.addresses, found)
	}
	if !n.L2.IsZero() {
		n.L2.validate(path+".l2", found)
	}
	if !n.L2.IsZero() && !n.BGP.IsZero() {
		found.add(path+".l2", "use one of both", "the node has bgp: routers would have two ways to its VIPs")
	}
	switch n.Tier {
	case 0:
		if !n.Announces() {
			found.add(path+".tier", "use one of "+choices(tierNames)+", or remove the node", "missing, and so are bgp and l2")
		}
		n.refuseOfFirst(path, found)
	case TierFirst:
		n.refuseOfFirst(path, found)
	case TierSecond:
		if !n.BGP.IsZero() {
			found.add(path+".bgp", "give it to nodes of the first tier", "nodes of the second get what the first sends them, not what routers send")
		}
		if !n.L2.IsZero() {
			found.add(path+".l2", "give it to nodes of the first tier", "nodes of the second get what the first sends them, not what clients send")
		}
		n.validateAddress(path+".address", taken, found)
		f.validateNodeID(path+".id", n, taken, found)
	default:
		checkChoice(path+".tier", tierNames, n.Tier, found)
	}
}

func (n *Node) refuseOfFirst(path string, found *findings) {
	const why = "only nodes of the second tier have one"
	if n.Address.IsValid() {
		found.add(path+".address", "remove it, or use tier: second", why)
	}
	if n.ID != 0 {
		found.add(path+".id", "remove it, or use tier: second", why)
	}
	if n.State != StateActive && !n.Announces() {
		found.add(path+".state", "remove it, and send clients to the other load balancers", "only nodes of the second tier, or with bgp or l2, have one")
	}
}

func (n *Node) validateAddress(path string, taken nodesTaken, found *findings) {
	checkAddress(path, n.Address, found)
	if !n.Address.IsValid() {
		return
	}
	if whose, ok := taken.addresses[n.Address]; ok {
		found.add(path, "use an address that is the load balancer's alone", "%s is %s: what is sent there would be steered once more", n.Address, whose)
		return
	}
	taken.addresses[n.Address] = "the address of node " + n.Name
}

func (f *Fleet) validateNodeID(path string, n *Node, taken nodesTaken, found *findings) {
	remedy := func() string { // another one for each node
		if id, ok := taken.free(); ok {
			return fmt.Sprintf("the next free id is %d", id)
		}
		return "remove a node or use wider table.node_bits"
	}
	most, narrowest := f.maxNodeID()
	other, used := taken.ids[n.ID]
	switch {
	case n.ID == 0:
		found.add(path, remedy(), "missing: cookies carry the ids of the second tier's nodes")
	case n.ID > most && narrowest != nil:
		found.add(path, remedy()+"; the service's table.node_bits says how many there can be", "%d is out of range 1-%d of service %s", n.ID, most, narrowest.Name)
	case n.ID > most:
		found.add(path, remedy(), "%d is out of range 1-%d", n.ID, most)
	case used:
		found.add(path, remedy(), "%d is the id of node %s", n.ID, other)
	default:
		taken.ids[n.ID] = n.Name
	}
}

func (f *Fleet) validateNodeHealth(found *findings) {
	const path = "node_health"
	h := &f.NodeHealth
	h.validate(path, found)
	if h.Check.ByUDP() {
		found.add("node_health.check", "use http", "load balancers do not answer check %s", h.Check)
	}
	if h.Check != CheckNone && h.Check != CheckExec && h.Port == 0 {
		found.add(path+".port", "give the port that they answer at, as that of their --metrics", "missing: nodes have no port of their own")
	}
	if h.Deadline != 0 {
		found.add(path+".deadline", "remove it", "connections of an unhealthy node go to the others at once")
	}
}

// validateRoomForNodes refuses services whose connections could not tell the first tier their node.
func (f *Fleet) validateRoomForNodes(found *findings) {
	for i := range f.Services {
		if s := &f.Services[i]; s.Affinity == AffinityTable && s.Table.NodeBits == 0 {
			found.add(fmt.Sprintf("services[%d].table.node_bits", i), fmt.Sprintf("use %d, or more for more than %d nodes", DefaultNodeBits, 1<<DefaultNodeBits-1),
				"0 leaves the ids of the second tier's nodes no room in the cookie")
		}
	}
}

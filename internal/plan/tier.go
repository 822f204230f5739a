package plan

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/model"
)

// Tier is the node's part in two tiers (Cheetah III-B). The zero value: there is one.
type Tier struct {
	Tier   model.Tier
	ID     uint16          // second tier: this node's
	Second []model.Node    // first tier: the nodes of the second
	Down   map[uint16]bool // first tier: ids of those that get no packets, because they are not healthy
}

// ofTier returns the service as a node of this tier serves it. One of the first tier is a stateless load balancer of those services
// that have a table, with the nodes of the second tier for servers.
//
// A node that is down gets no packets at all, unlike a server: what it would have kept of its connections, the others do without.
func (s *Service) ofTier(tier *Tier) *Service {
	if !s.SendsToNodes(tier.Tier) {
		return s
	}
	first := Service{Service: s.Service}
	first.Affinity, first.Dispatch = model.AffinityCookie, model.DispatchMaglev
	first.Forward, first.Return, first.Fallback = model.ForwardIPIP, model.ReturnDirect, model.FallbackHash
	first.Servers, first.Placement = nil, model.Placement{}
	for _, node := range tier.Second {
		server := model.Server{Name: node.Name, Address: node.Address, ID: node.ID, Weight: 1, State: node.State}
		if tier.Down[node.ID] {
			server.State = model.StateOff
		}
		first.Servers = append(first.Servers, server)
	}
	return &first
}

// makeRoom takes from the way to a node what the node will need to put around a packet beyond what this one does: so clients are told by the
// first tier, which can answer them, how large their packets may be. It takes the node's way to servers to be as wide as the one to the node.
func (row ServerRow) makeRoom(s *model.Service, node netip.Addr, tier *Tier) ServerRow {
	if !s.SendsToNodes(tier.Tier) || row.MTU == 0 {
		return row
	}
	most := 0
	for i := range s.Servers {
		most = max(most, Overhead(s, s.Servers[i].Address))
	}
	around := ipv4Header
	if node.Is6() {
		around = ipv6Header
	}
	row.MTU -= min(row.MTU, uint16(max(most-around, 0)))
	return row
}

// layCookie says in the row where the id is in a cookie's bits below the epoch: that of the server last, that of the node first.
func (row *ServiceRow) layCookie(keys *model.Keys, s *model.Service, tier *Tier) {
	row.IDBits = s.IDBits()
	if s.SendsToNodes(tier.Tier) {
		row.IDBits, row.IDShift = s.Table.NodeBits, s.Table.IndexBits+s.IDBits()
		row.Flags |= ServiceFirstTier
	}
	for epoch := range keys.Cookie {
		row.IDMask[epoch&1] = 1<<row.IDBits - 1
	}
}

// leadsToNodes tells ids of nodes from ids of servers.
func (img *image) leadsToNodes() bool { return img.row.Flags&ServiceFirstTier != 0 }

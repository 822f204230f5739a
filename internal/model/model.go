// Package model holds the desired state of a fleet: services, their servers and the keys, and the rules that a fleet must obey.
//
// It is plain data: nothing here knows about files, the kernel or time, and it imports nothing of ours.
package model

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Implementation constants: bounds that the maps of the data path are sized for.
const (
	MaxServices      = 4096  // services of one fleet
	MaxPorts         = 16    // ports, or ranges of them, of one service
	MaxWeight        = 256   // weight of one server
	MaxRoundServers  = 4096  // servers of a service that takes turns (rr, wrr): the longest round
	MinCookieBits    = 8     // narrowest cookie: one epoch bit and ids 1..127
	MaxCookieBits    = 16    // widest cookie: one epoch bit and ids 1..32767
	DirectCookieBits = 14    // default width when the server writes the cookie
	ThroughBits      = 8     // the only width when the LB writes the cookie into a server's TSval (Cheetah IV-B)
	DefaultSlots     = 4093  // default number of table slots
	DefaultEntries   = 65536 // default size of a connection table
	DefaultIndexBits = 6     // of a connection table: partitions of 63 connections, the most there can be
	MaxIndexBits     = 6
	DefaultNodeBits  = 3     // where there is a second tier: 7 nodes
	MaxTunnelSources = 16384 // addresses of load balancers that an agent has room for
	WeightUnset      = 65535 // Server.Weight of a server that has not been given one: ApplyDefaults makes it 1
)

// tableSizes are the prime table sizes that the data path offers; Maglev needs a prime.
var tableSizes = []uint32{251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521}

// TableSizes returns the allowed values of Service.TableSlots, ascending.
func TableSizes() []uint32 { return slices.Clone(tableSizes) }

// Fleet is the desired state: what every load balancer and agent should do. The zero value is an empty, valid fleet.
// It is not safe for concurrent change; share copies made by Clone.
type Fleet struct {
	Keys     Keys      `json:"-"` // secrets never leave by way of JSON; config.Marshal writes them
	Services []Service `json:"services"`
	// Nodes are the load balancers that have a tier, or announce VIPs. Others are one tier by themselves.
	Nodes []Node `json:"nodes,omitempty"`
	// NodeHealth is how those of the first tier find out which of the second are alive.
	NodeHealth Health `json:"node_health,omitzero"`
	// Replicas is how load balancers keep a replicated table.
	Replicas Replicas `json:"replicas,omitzero"`
	// TunnelsFrom are the addresses that load balancers send tunnels from: agents that run by a file drop those of others. None: they take
	// them of anybody.
	TunnelsFrom []netip.Addr `json:"tunnels_from,omitempty"`
	// Unserved is what becomes of packets to VIPs that are for no service.
	Unserved Unserved `json:"unserved,omitempty"`
}

// Node is a load balancer with a tier, or one that announces VIPs.
type Node struct {
	Name    string      `json:"name"`
	Tier    Tier        `json:"tier,omitempty"`   // 0: none
	Address netip.Addr  `json:"address,omitzero"` // second tier: where the first sends to
	ID      uint16      `json:"id,omitempty"`     // second tier: what the cookie's first bits carry; from 1
	State   ServerState `json:"state"`            // second tier: draining nodes get no new connections; with BGP or L2: only active ones announce
	BGP     BGP         `json:"bgp,omitzero"`     // none with the second tier
	L2      L2          `json:"l2,omitzero"`      // none with the second tier, nor with BGP
}

// Keys are the secrets of a fleet. An all-zero key counts as missing.
type Keys struct {
	Placement [16]byte            // places connections that carry no cookie; never changes
	Current   uint32              // epoch whose key writes new cookies; epochs start at 1
	Cookie    map[uint32][16]byte // epoch -> key; one or two consecutive epochs, readers accept both
}

// Service is a virtual address with a protocol and ports, and how its connections find a server.
// Start from NewService, or set every enumeration: their zero values are ordinary choices, not "unset".
type Service struct {
	Name string `json:"name"`
	// Owner is the certificate's name of the program that keeps the service by ApplyServices; empty: people do.
	Owner string     `json:"owner,omitempty"`
	VIP   netip.Addr `json:"vip"` // the first of its addresses, which connection ids and sessions are keyed by
	// MoreVIPs are further addresses, of either family, with the same servers, ids and health: see VIPs. Cookies and places have keys by address.
	MoreVIPs []netip.Addr `json:"more_vips,omitempty"` // vips, with VIP before them
	// Destinations are the addresses that clients connect to, with protocol any; VIP is the first of them then.
	Destinations Prefix   `json:"destinations,omitzero"`
	Protocol     Protocol `json:"protocol"`
	Ports        []uint16 `json:"ports,omitempty"` // single ones; see AllOfPorts
	// PortRanges are those given as ranges, or AllPorts alone.
	PortRanges []PortRange `json:"port_ranges,omitempty"`
	// Allow are prefixes of the clients that may begin connections; none: all may.
	Allow      []netip.Prefix `json:"allow,omitempty"`
	Dispatch   Dispatch       `json:"dispatch"`
	Affinity   Affinity       `json:"affinity"`
	Fallback   Fallback       `json:"fallback"`
	CookieBits uint8          `json:"cookie_bits"` // width of the cookie including its epoch bit
	Forward    Forward        `json:"forward"`
	Return     Return         `json:"return"`
	TableSlots uint32         `json:"table_slots"`
	Placement  Placement      `json:"placement,omitzero"`
	// SlowStart is how long the share of new connections grows of a server that begins to take them; 0: it has all of it at once.
	SlowStart Duration `json:"slow_start,omitempty"`
	Session   Session  `json:"session,omitzero"`
	// SessionClients are how many clients may show one session to its server, with session tls; 0: any number.
	SessionClients uint8    `json:"session_clients"`
	SYNProxy       SYNProxy `json:"syn_proxy,omitzero"`
	// SYNLimit is how many SYNs a second and server turn on syn_proxy auto, at each load balancer; 0: not auto.
	SYNLimit    uint32          `json:"syn_limit,omitempty"`
	Announce    VIPAnnouncement `json:"announce,omitzero"`
	SourceLimit SourceLimit     `json:"source_limit,omitzero"`
	Predecessor Predecessor     `json:"predecessor,omitzero"`
	Table       Table           `json:"table,omitzero"`
	Choices     Choices         `json:"choices,omitzero"`
	QUIC        QUIC            `json:"quic,omitzero"`
	MPTCP       MPTCP           `json:"mptcp,omitzero"`
	Load        Load            `json:"load"`
	Health      Health          `json:"health"`
	// Source is who names Servers; controllers keep these as it names them.
	Source  ServerSource `json:"source,omitzero"`
	Servers []Server     `json:"servers"`
}

// Placement is what places a connection, where the policy or nothing else says who gets it. The zero value: all of the connection.
type Placement struct {
	Over       PlacementOver `json:"over"`
	IPv4Prefix uint8         `json:"ipv4_prefix,omitempty"` // over source: bits of its address
	IPv6Prefix uint8         `json:"ipv6_prefix,omitempty"`
}

// Table is how a service with affinity table keeps its connections (Cheetah III-B). The cookie's bits are, from the first:
// the epoch, NodeBits, IndexBits, and the server's id in what is left. The zero value is that of other services.
type Table struct {
	Entries   uint32 `json:"entries,omitempty"` // memory, 32 bytes each; rounded up to a multiple of 64
	IndexBits uint8  `json:"index_bits"`        // r of Cheetah III-B; the table is Entries/2^r partitions of 2^r-1 connections each
	NodeBits  uint8  `json:"node_bits"`         // for the ids of the second tier's nodes; 0: there is one tier
	// IdleTimeout is when a silent connection's entry is freed. The connection lives on, and gets another with its next packet.
	IdleTimeout Duration `json:"idle_timeout,omitempty"`
	PacketLimit uint32   `json:"packet_limit,omitempty"` // packets per second of one connection that pass; 0: all
	Scrubber    string   `json:"scrubber,omitempty"`     // name of the server that suspects' packets visit first
}

// Choices is who is asked to accept a connection of a service with dispatch choices, and who accepts (SHELL III). The zero value is that of
// other services.
type Choices struct {
	Candidates uint8  `json:"candidates"` // c: servers that a new connection is offered to; 2 to 4
	History    uint8  `json:"history"`    // h: owners of each candidate's place that are remembered, the present one among them; 1 to 4
	Accept     Accept `json:"accept"`
}

// Accept is how a candidate that is not the last one decides.
type Accept struct {
	Policy    AcceptPolicy `json:"policy"`
	Load      AcceptLoad   `json:"load"`
	Threshold uint32       `json:"threshold"`        // load from which on a server passes on; dynamic: at first
	Window    uint16       `json:"window,omitempty"` // dynamic: offers after which the threshold may move
	Margin    uint8        `json:"margin,omitempty"` // dynamic: percent around a half within which it stays
}

// QUIC is the form of the connection ids of a service with affinity quic: one octet, which names the key, then id and nonce, hidden by the
// algorithm. The zero value is that of other services.
type QUIC struct {
	Algorithm      QUICAlgorithm `json:"algorithm"`
	ServerIDLength uint8         `json:"server_id_length"` // bytes; the id is a number, big-endian
	NonceLength    uint8         `json:"nonce_length"`     // bytes
}

// MPTCP is where further subflows of a service's MPTCP connections go: ports of the VIP, each of which names one server (Cheetah VI, by other means).
// The zero value is that of services without.
type MPTCP struct {
	FirstPort uint16 `json:"first_port"`
	Ports     uint16 `json:"ports"` // so many, and half as many ids
}

// Server is one backend of a service.
type Server struct {
	Name    string      `json:"name"`
	Address netip.Addr  `json:"address"`
	Port    uint16      `json:"port,omitempty"` // nat only; 0 = the port that the client asked for
	ID      uint16      `json:"id"`             // what the cookie carries; 1..Service.MaxID()
	Weight  uint16      `json:"weight"`         // 0 = no new connections
	State   ServerState `json:"state"`
	// Deadline ends a draining server's last connections: from then on it is off. Zero: never.
	Deadline time.Time `json:"deadline,omitzero"`
}

// NewService returns a service in which every choice is unset, for ApplyDefaults to fill.
func NewService() Service {
	return Service{Dispatch: DispatchUnset, Affinity: AffinityUnset, Fallback: FallbackUnset, Forward: ForwardUnset, Return: ReturnUnset,
		SessionClients: SessionClientsUnset, Load: Load{Source: LoadUnset, Classes: ClassesUnset}}
}

// NewServer returns an active server whose weight is unset, for ApplyDefaults to fill.
func NewServer() Server { return Server{Weight: WeightUnset} }

// IDBits returns the width of the server's id in the cookie: what epoch, node and index leave; or in connection ids. 0 when the widths are invalid.
func (s *Service) IDBits() uint8 {
	if s.Affinity == AffinityQUIC {
		return 8 * min(s.QUIC.ServerIDLength, 2)
	}
	left := int(s.CookieBits) - 1
	if s.Affinity.Cookies() { // with affinity cookie the room of a table that was, or will be
		left -= int(s.Table.IndexBits) + int(s.Table.NodeBits)
	}
	if s.CookieBits < MinCookieBits || s.CookieBits > MaxCookieBits || left < 1 {
		return 0
	}
	return uint8(left)
}

// MaxID returns the largest server id that the service has room for: 2^IDBits-1, which its cookie can carry; with mptcp no more than half of its ports.
func (s *Service) MaxID() uint16 {
	most := uint16(1<<s.IDBits() - 1)
	if s.MPTCP.FirstPort != 0 {
		most = min(most, s.MPTCP.PerEpoch())
	}
	return most
}

// MaxNodeID returns the largest id of a node of the second tier that the service's cookie can carry.
func (s *Service) MaxNodeID() uint16 { return uint16(1<<s.Table.NodeBits - 1) }

// NextFreeID returns the smallest id above every id in use, so that the id of a removed server is not given away while its
// connections may still live; when those are used up, the smallest unused id. ok is false when all ids are taken.
func (s *Service) NextFreeID() (id uint16, ok bool) { return s.FreeIDs()() }

// FreeIDs returns a function that gives what NextFreeID would, one id after the other, as if each were in use from then on.
func (s *Service) FreeIDs() (next func() (id uint16, ok bool)) {
	used := make(map[uint16]bool, len(s.Servers))
	for _, server := range s.Servers {
		used[server.ID] = true
	}
	return freeIDs(used, s.MaxID())
}

// freeIDs gives those above all that are used, up to most, and when they are used up the smallest unused ones.
func freeIDs(used map[uint16]bool, most uint16) (next func() (id uint16, ok bool)) {
	var highest, lowest uint16
	for id := range used {
		if id <= most {
			highest = max(highest, id)
		}
	}
	return func() (id uint16, ok bool) {
		if highest < most {
			highest++
			used[highest] = true
			return highest, true
		}
		for lowest < most {
			if lowest++; !used[lowest] {
				return lowest, true
			}
		}
		return 0, false
	}
}

// TakesNew reports whether the server may be given new connections: active, with a weight above 0.
func (s *Server) TakesNew() bool { return s.State == StateActive && s.Weight > 0 }

// DrainEnded reports whether a drain has come to its end by now, and the server should be off.
func (s *Server) DrainEnded(now time.Time) bool {
	return s.State == StateDraining && !s.Deadline.IsZero() && !now.Before(s.Deadline)
}

// Service returns the service of that name for reading or changing in place, or nil.
func (f *Fleet) Service(name string) *Service {
	for i := range f.Services {
		if f.Services[i].Name == name {
			return &f.Services[i]
		}
	}
	return nil
}

// Server returns the server of that name for reading or changing in place, or nil.
func (s *Service) Server(name string) *Server {
	for i := range s.Servers {
		if s.Servers[i].Name == name {
			return &s.Servers[i]
		}
	}
	return nil
}

// Endpoint is where a server takes the service's connections; of several ports, the first.
func (s *Service) Endpoint(server *Server) netip.AddrPort {
	port := server.Port
	if port == 0 && len(s.Ports) > 0 {
		port = s.Ports[0]
	}
	return netip.AddrPortFrom(server.Address, port)
}

// Clone returns a copy that shares no memory with f.
func (f *Fleet) Clone() Fleet {
	clone := Fleet{Keys: f.Keys, Services: slices.Clone(f.Services), Nodes: slices.Clone(f.Nodes), NodeHealth: f.NodeHealth, Replicas: f.Replicas,
		TunnelsFrom: slices.Clone(f.TunnelsFrom), Unserved: f.Unserved}
	clone.NodeHealth.Command = slices.Clone(f.NodeHealth.Command)
	clone.Keys.Cookie = maps.Clone(f.Keys.Cookie)
	for i := range clone.Services {
		clone.Services[i] = clone.Services[i].Clone()
	}
	return clone
}

// Clone returns a copy that shares no memory with s.
func (s *Service) Clone() Service {
	clone := *s
	clone.MoreVIPs, clone.Allow = slices.Clone(s.MoreVIPs), slices.Clone(s.Allow)
	clone.Ports, clone.PortRanges = slices.Clone(s.Ports), slices.Clone(s.PortRanges)
	clone.Predecessor = s.Predecessor.clone()
	clone.Servers = slices.Clone(s.Servers)
	clone.Health.Command = slices.Clone(s.Health.Command)
	return clone
}

// Share is a server's part in a dispatch table: what table-building arithmetic needs to know of it.
type Share struct {
	ID     uint16
	Weight uint16
}

// Node returns the node of that name for reading or changing in place, or nil.
func (f *Fleet) Node(name string) *Node {
	for i := range f.Nodes {
		if f.Nodes[i].Name == name {
			return &f.Nodes[i]
		}
	}
	return nil
}

// Shares returns the servers that may be given new connections, in the order of the list.
func (s *Service) Shares() []Share {
	return s.shares(func(server *Server) bool { return server.TakesNew() })
}

// SharesBeforeDrain returns Shares as they would be if no server were draining: who owned what before.
func (s *Service) SharesBeforeDrain() []Share {
	return s.shares(func(server *Server) bool { return server.Weight > 0 })
}

func (s *Service) shares(include func(*Server) bool) []Share {
	var shares []Share
	for i := range s.Servers {
		if server := &s.Servers[i]; include(server) {
			shares = append(shares, Share{ID: server.ID, Weight: server.Weight})
		}
	}
	return shares
}

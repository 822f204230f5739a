// Package plan turns what the load balancer should do into ordered changes of the data path's tables, so that a packet
// sees a service as it was or as it will be and never half of each.
//
// One rule makes that hold (bpf/lb/state/service.h): a record of more than one word is immutable once published; what
// changes is the one u32 that names it. Old records are reused only after a grace period.
package plan

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/pathid"
	"github.com/ballast-lb/ballast/internal/algo/siphash"
	"github.com/ballast-lb/ballast/internal/model"
)

// The rows have the layout of bpf/lb/state/service.h; tests of internal/linux/lb and server compare every field with BTF.

// PortKey is struct vip_key. A zero port and protocol stand for the address itself, a zero port and formerVIP for one that was a VIP.
type PortKey struct {
	Address  [16]byte // IPv4: the first four bytes
	Port     [2]byte  // network order
	Protocol uint8
	IPv6     uint8
}

// VIPKey is where packets come in: at one port or, with a Last, at consecutive ones, which lie in lists beside the map of keys (bpf/wire/port_ranges.h).
type VIPKey struct {
	PortKey
	Last uint16 // 0: one port
}

// List is the key that names the list which ranges of its address and protocol are in.
func (k PortKey) List() PortKey {
	return PortKey{Address: k.Address, Protocol: k.Protocol, IPv6: k.IPv6}
}

// Ports are those of the key.
func (k VIPKey) Ports() model.PortRange {
	first := binary.BigEndian.Uint16(k.Port[:])
	return model.PortRange{First: first, Last: max(first, k.Last)}
}

// formerVIP is FORMER_VIP.
const formerVIP = 255

// VIPRejects is VIP_REJECTS: what an address leads to that refuses what none of its services takes.
const VIPRejects = 1 << 31

func (k VIPKey) address() VIPKey { return VIPKey{PortKey: PortKey{Address: k.Address, IPv6: k.IPv6}} }
func (k VIPKey) former() VIPKey {
	return VIPKey{PortKey: PortKey{Address: k.Address, IPv6: k.IPv6, Protocol: formerVIP}}
}

// VIP is the address.
func (k VIPKey) VIP() netip.Addr {
	if k.IPv6 != 0 {
		return netip.AddrFrom16(k.Address)
	}
	return netip.AddrFrom4([4]byte(k.Address[:4]))
}

// AddressOf is the address of WireAddress: no IPv6 address that packets go to ends in twelve bytes of 0.
func AddressOf(wire [16]byte) netip.Addr {
	if [12]byte(wire[4:]) == [12]byte{} {
		return netip.AddrFrom4([4]byte(wire[:4]))
	}
	return netip.AddrFrom16(wire)
}

// ServiceRow is struct service.
type ServiceRow struct {
	CookieHash    [2]siphash.State // of the keys, by parity of the epoch
	PlacementHash siphash.State
	PlacementKey  cookie.Key
	VIP           [16]byte
	Number        uint32
	IDsBase       uint32
	IDsCount      uint32
	RoundsBase    uint32
	RoundsCount   uint32
	SlotsBase     uint32
	SlotsCount    uint32
	Dispatch      uint8
	Affinity      uint8
	Forward       uint8
	Flags         uint8
	CookieBits    uint8
	EpochParity   uint8
	Columns       uint8 // of a slot
	Classes       uint8
	Port          [2]byte
	Members       uint16
	TableBase     uint32
	TableBlocks   uint32
	IDBits        uint8
	IDShift       uint8
	IndexBits     uint8
	QUICConfig    uint8
	Node          uint16
	Scrubber      uint16
	PacketLimit   uint16    // packets of one connection in a window of 2^30 ns
	IDMask        [2]uint16 // by parity of the epoch; 0: there is no such key
	IDTurns       uint16
	Row           uint32 // of this
	QUICBase      uint32
	Session       uint32
	Allow         uint32
	PlacedIPv6    [16]byte // which bits of a flow place it
	PlacedIPv4    [4]byte
	PlacedPorts   uint16
	SYNProxy      uint16 // 1: load balancers answer SYNs now
	VIPNumber     uint32 // of the VIP
	SourceStep    uint32 // in 256 ns
	SourceDepth   uint32
	SourceIPv4    uint8 // bits
	SourceIPv6    uint8
	Predecessors  uint8
	_             byte

	PredecessorsBase uint32
	Share            uint16 // with predecessors: per mille that begins here
	_                [2]byte
}

// Flags of ServiceRow: enum service_flag.
const (
	ServiceThrough      = 1
	ServiceSecondChance = 2
	ServiceFirstTier    = 4
	ServiceReplicated   = 8
	ServiceFunctions    = 16
	ServiceSession      = 32
	ServiceReported     = 64 // SERVICE_REPORTED_LOADS
	ServiceGuarded      = 128
)

// countsOpen is model.Service.CountsOpen.
func (r *ServiceRow) countsOpen() bool {
	return model.Dispatch(r.Dispatch).ComparesLoads() && r.Flags&ServiceReported == 0
}

// serviceRow is what a row says of the service alone.
func serviceRow(keys *model.Keys, s *model.Service) ServiceRow {
	row := ServiceRow{
		Dispatch:    uint8(s.Dispatch),
		Affinity:    uint8(s.Affinity),
		Forward:     uint8(s.Forward),
		CookieBits:  s.CookieBits,
		EpochParity: uint8(keys.Current & 1),
	}
	if s.Affinity == model.AffinityQUIC {
		row.QUICConfig = QUICConfigNumber(keys.Current)
	}
	if s.Return == model.ReturnThrough {
		row.Flags |= ServiceThrough
	}
	if s.Fallback == model.FallbackSecondChance {
		row.Flags |= ServiceSecondChance
	}
	if s.Replicated() {
		row.Flags |= ServiceReplicated
	}
	if s.Session == model.SessionTLS {
		row.Flags |= ServiceSession
	}
	row.limitSources(&s.SourceLimit)
	if len(s.Allow) > 0 || row.SourceStep != 0 {
		row.Flags |= ServiceGuarded
	}
	if s.ComparesReports() {
		row.Flags |= ServiceReported
	}
	if s.Functions() {
		row.Flags |= ServiceFunctions
		row.Port = wirePort(uint16(s.Destinations.Bits()))
	}
	if len(s.Ports) == 1 {
		row.Port = wirePort(s.Ports[0])
	}
	return row
}

// limitSources says how long a connection is owed by its source, rounded up, and how long all but the last of a burst are.
func (row *ServiceRow) limitSources(l *model.SourceLimit) {
	if l.Rate == 0 {
		return
	}
	const unit = 256 // ns
	row.SourceStep = uint32((time.Second/unit + time.Duration(l.Rate) - 1) / time.Duration(l.Rate))
	row.SourceDepth = uint32(min(uint64(l.Burst-1)*uint64(row.SourceStep), math.MaxUint32))
	row.SourceIPv4, row.SourceIPv6 = l.IPv4Prefix, l.IPv6Prefix
}

// at is the row at one of the service's addresses, which has keys of its own.
func (row ServiceRow) at(keys *model.Keys, s *model.Service, vip netip.Addr) ServiceRow {
	row.VIP = WireAddress(vip)
	row.PlacementKey = cookie.ServiceKey(keys.Placement, vip, s.Protocol)
	row.placeBy(keys, s, vip)
	for epoch, fleet := range keys.Cookie {
		key := cookie.ServiceKey(fleet, vip, s.Protocol)
		row.CookieHash[epoch&1] = siphash.Begin(key.K0, key.K1)
	}
	return row
}

// placeBy says what of a flow places it. By its source clients have one place in all services of a VIP, which have one key for it then.
func (row *ServiceRow) placeBy(keys *model.Keys, s *model.Service, vip netip.Addr) {
	key, ipv4, ipv6 := row.PlacementKey, 32, 128
	row.PlacedPorts = math.MaxUint16
	if s.BySource() {
		key = cookie.ServiceKey(keys.Placement, vip, 0)
		ipv4, ipv6, row.PlacedPorts = int(s.Placement.IPv4Prefix), int(s.Placement.IPv6Prefix), 0
	}
	row.PlacementHash = siphash.Begin(key.K0, key.K1)
	setBits(row.PlacedIPv4[:], ipv4)
	setBits(row.PlacedIPv6[:], ipv6)
}

// setBits sets the first bits of a mask that has none.
func setBits(mask []byte, count int) {
	for i := range count {
		mask[i/8] |= 0x80 >> (i % 8)
	}
}

// ServerRow is struct server.
type ServerRow struct {
	Address        [16]byte
	Source         [16]byte
	DestinationMAC [6]byte
	SourceMAC      [6]byte
	Ifindex        uint32
	Counter        uint32
	MTU            uint16
	VLAN           [2]byte
	Port           [2]byte
	Flags          uint16
	Path           uint32 // IPv6: its secret (internal/algo/pathid); IPv4: the identification, and above it the sum of what outer headers have alike
}

// Flags of ServerRow: enum server_flag.
const (
	ServerNoCookie = 1
	ServerNextHop  = 2
	ServerIPv6     = 4
	ServerDown     = 8

	ServerPredecessor  = 16
	ServerOnLink       = 32
	serverForwardShift = 8
)

// serverRow is what a row says of a server and of the way to it.
func serverRow(want *Want, s *Service, server *model.Server) ServerRow {
	row := wayTo(want, server.Address)
	row.Port = wirePort(server.Port)
	if want.Paths[server.Address].Here && !ServesHere(&s.Service) {
		row.Flags &^= ServerNextHop
	}
	if s.NoCookie[server.ID] {
		row.Flags |= ServerNoCookie
	}
	return row
}

// wayTo is what a row says of the way to an address.
func wayTo(want *Want, address netip.Addr) ServerRow {
	path := want.Paths[address]
	row := ServerRow{Address: WireAddress(address), MTU: path.MTU, Source: WireAddress(path.Source)}
	if row.Path = pathid.Secret(want.Keys.Placement, address); address.Is6() {
		row.Flags |= ServerIPv6
	} else {
		row.Path = row.outerIPv4(pathid.Identification(row.Path))
	}
	if path.Known() {
		row.Flags |= ServerNextHop
		row.Ifindex, row.VLAN = path.Ifindex, wirePort(path.VLAN)
		row.SourceMAC, row.DestinationMAC = path.SourceMAC, path.DestinationMAC
	}
	return row
}

// outerIPv4 is what all outer headers to the server have in common: see struct server.
func (row *ServerRow) outerIPv4(identification uint16) uint32 {
	const dontFragment = 0x4000
	sum := uint32(identification) + dontFragment
	for at := 0; at < 4; at += 2 {
		sum += uint32(binary.BigEndian.Uint16(row.Source[at:])) + uint32(binary.BigEndian.Uint16(row.Address[at:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return bits.ReverseBytes32(sum | uint32(identification)<<16)
}

// ReturnKey is struct return_key; ReturnValue what it leads to.
type ReturnKey struct {
	Address  [16]byte
	Port     [2]byte
	MAC      [6]byte
	Protocol uint8
	_        [3]byte
}

// ReturnValue packs a service number and a server id as the map has them.
func ReturnValue(number uint32, id uint16) uint64 { return uint64(number)<<32 | uint64(id) }

// WireAddress is the address as it stands in a packet, IPv4 in the first four bytes.
func WireAddress(a netip.Addr) (out [16]byte) {
	copy(out[:], a.Unmap().AsSlice())
	return out
}

func wirePort(port uint16) (out [2]byte) {
	binary.BigEndian.PutUint16(out[:], port)
	return out
}

func vipKey(address netip.Addr, port uint16, protocol uint8) VIPKey {
	key := VIPKey{PortKey: PortKey{Address: WireAddress(address), Port: wirePort(port), Protocol: protocol}}
	if address.Is6() {
		key.IPv6 = 1
	}
	return key
}

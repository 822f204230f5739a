// The load balancer of shell-resets, in memory, and the connections that it is shown.
package shell

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	simulator "github.com/ballast-lb/ballast/internal/lab/sim/shell"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Implementation constants: offsets and lengths in a frame that an IPv6 header and a segment routing header (RFC 8754) stand before.
const (
	port     = 443
	loopback = 1       // test runs come in by that device
	clock    = 1 << 20 // of a server's timestamps, whose low bits are the place of the candidate

	outerNext    = 14 + 6
	outerTo      = 14 + 24
	routing      = 14 + 40
	routingFixed = 8
)

var placement = [16]byte{1}

// resetRig is a load balancer with a service for each length of history.
type resetRig struct {
	lb     *lb.LB
	tables *plan.Tables
	want   plan.Want
}

func openResetRig() (*resetRig, error) {
	rig := &resetRig{tables: plan.NewTables(plan.DefaultLimits)}
	rig.want = plan.Want{Paths: map[netip.Addr]plan.Path{},
		Keys: model.Keys{Placement: placement, Current: 1, Cookie: map[uint32][16]byte{1: {2}}}}
	for h := 1; h <= model.MaxHistory; h++ {
		one := model.NewService()
		one.Name, one.VIP, one.Ports = fmt.Sprint("h", h), vipOf(h), []uint16{port}
		one.Dispatch, one.Affinity, one.TableSlots = model.DispatchChoices, model.AffinityHistory, resetSlots
		one.Forward = model.ForwardSRv6 // segments are the servers
		one.Choices = model.Choices{Candidates: simulator.Choices, History: uint8(h)}
		one.ApplyDefaults()
		rig.want.Services = append(rig.want.Services, plan.Service{Service: one})
	}
	var err error
	rig.lb, err = lb.Open("", plan.DefaultLimits)
	return rig, err
}

func (rig *resetRig) close() error { return rig.lb.Close() }

func vipOf(h int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, byte(h)}) }

func serverAddress(id uint16) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(id >> 8), 15: byte(id)})
}

// serve makes a pool that of all services. Servers that have left keep their rows, as their connections go on.
func (rig *resetRig) serve(pool []model.Share) error {
	var servers []model.Server
	for _, share := range pool {
		server := model.NewServer()
		server.ID, server.Address = share.ID, serverAddress(share.ID)
		servers = append(servers, server)
		rig.want.Paths[server.Address] = plan.Path{Ifindex: loopback, Source: netip.MustParseAddr("fd01::1"),
			SourceMAC: [6]byte{2, 1}, DestinationMAC: [6]byte{2, 2}, MTU: 1500}
	}
	for i := range rig.want.Services {
		one := &rig.want.Services[i]
		for _, before := range one.Servers {
			if !slices.ContainsFunc(servers, func(now model.Server) bool { return now.ID == before.ID }) {
				one.Removed = append(one.Removed, before)
			}
		}
		one.Servers = servers
	}
	changes, err := rig.tables.Update(&rig.want)
	if err != nil {
		return fmt.Errorf("plan a pool of %d servers: %w", len(pool), err)
	}
	return rig.lb.Apply(changes)
}

// stops returns the servers that a segment is sent through, in their order.
func (rig *resetRig) stops(segment []byte) ([]netip.Addr, error) {
	_, frame, err := rig.lb.Program().Test(segment)
	if err != nil {
		return nil, fmt.Errorf("run the load balancer's program: %w", err)
	}
	return stopsOf(frame)
}

// stopsOf reads the servers that a frame is sent through.
func stopsOf(frame []byte) ([]netip.Addr, error) {
	if len(frame) < routing || binary.BigEndian.Uint16(frame[12:]) != uint16(layers.EthernetTypeIPv6) {
		return nil, fmt.Errorf("read where a packet goes: % x has no outer IPv6 header", frame)
	}
	first := netip.AddrFrom16([16]byte(frame[outerTo:]))
	if layers.IPProtocol(frame[outerNext]) != layers.IPProtocolIPv6Routing {
		return []netip.Addr{first}, nil
	}
	var stops []netip.Addr
	if len(frame) < routing+routingFixed {
		return nil, fmt.Errorf("read where a packet goes: % x ends within its routing header", frame)
	}
	segments := int(frame[routing+4]) + 1 // the header counts from 0, and has the last stop first
	if len(frame) < routing+routingFixed+16*segments {
		return nil, fmt.Errorf("read where a packet goes: % x ends within its %d segments", frame, segments)
	}
	for i := range segments {
		stops = append(stops, netip.AddrFrom16([16]byte(frame[routing+routingFixed+16*i:])))
	}
	slices.Reverse(stops)
	if stops[0] != first { // the reduced form
		stops = slices.Insert(stops, 0, first)
	}
	return stops, nil
}

// connections are one of each slot and candidate, to a service.
type connections struct {
	segments [][]byte
	servers  []netip.Addr
	lost     []bool
	reset    int
}

// connect opens connections: a candidate has accepted each of them, and clients echo its place.
func (rig *resetRig) connect(h int) (*connections, error) {
	c := &connections{}
	key := cookie.ServiceKey(placement, vipOf(h), model.ProtocolTCP)
	seen := map[uint32]bool{}
	for client := uint32(0); len(seen) < resetSlots; client++ {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(client >> 16), byte(client >> 8), byte(client)}), 40000)
		slot := cookie.Slot(cookie.FlowHash(key, from, port), resetSlots)
		if seen[slot] {
			continue
		}
		seen[slot] = true
		candidates, err := rig.stops(segment(from, vipOf(h), true, 0))
		if err != nil {
			return nil, err
		}
		if len(candidates) != simulator.Choices {
			return nil, fmt.Errorf("open a connection: it is offered to %v, want %d servers", candidates, simulator.Choices)
		}
		for column, server := range candidates {
			c.segments = append(c.segments, segment(from, vipOf(h), false, clock|uint32(column)))
			c.servers = append(c.servers, server)
		}
	}
	c.lost = make([]bool, len(c.servers))
	return c, nil
}

// send has a segment of each connection sent.
func (c *connections) send(rig *resetRig) error {
	for i, one := range c.segments {
		stops, err := rig.stops(one)
		if err != nil {
			return err
		}
		if !c.lost[i] && !slices.Contains(stops, c.servers[i]) {
			c.lost[i] = true
			c.reset++
		}
	}
	return nil
}

func (c *connections) percent() float64 { return 100 * float64(c.reset) / float64(len(c.servers)) }

// segment is one from a client, a SYN or one that echoes a timestamp.
func segment(from netip.AddrPort, vip netip.Addr, syn bool, echo uint32) []byte {
	timestamps := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 1}, echo)
	ip := &layers.IPv4{Version: 4, TTL: 60, Protocol: layers.IPProtocolTCP, SrcIP: from.Addr().AsSlice(), DstIP: vip.AsSlice()}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(from.Port()), DstPort: port, Seq: 1, SYN: syn, ACK: !syn, Window: 500, Options: []layers.TCPOption{
		{OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindNop},
		{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: timestamps},
	}}
	buffer := gopacket.NewSerializeBuffer()
	all := []gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		EthernetType: layers.EthernetTypeIPv4}, ip, tcp}
	if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
		panic(err)
	}
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		panic(fmt.Sprintf("build a segment: %v", err))
	}
	return buffer.Bytes()
}

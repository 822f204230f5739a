package replication

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/linux/frametest"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// testIfindex is that of the loopback device: test runs come in by it, and paths lead out of it.
const testIfindex = 1

var (
	udpVIP    = netip.MustParseAddr("198.51.100.10")
	tcpVIP    = netip.MustParseAddr("198.51.100.11")
	nodeMAC   = [6]byte{2, 0, 0, 0, 0, 1}
	routerMAC = [6]byte{2, 0, 0, 0, 0, 2}
)

func nodeAddress(id uint16) netip.Addr   { return netip.AddrFrom4([4]byte{10, 1, 0, byte(id)}) }
func serverAddress(id uint16) netip.Addr { return netip.AddrFrom4([4]byte{10, 2, 0, byte(id)}) }

// testService is one whose connections are replicated, with servers of ids 1 to 5.
func testService(name string, vip netip.Addr, protocol model.Protocol) model.Service {
	s := model.NewService()
	s.Name, s.VIP, s.Protocol, s.Ports, s.Affinity, s.Dispatch, s.Fallback, s.TableSlots = name, vip, protocol, []uint16{53, 443}, model.AffinityReplicated,
		model.DispatchRR, model.FallbackHash, 1021
	for id := uint16(1); id <= 5; id++ {
		s.Servers = append(s.Servers, model.Server{Name: fmt.Sprint("s", id), ID: id, Weight: 1, Address: serverAddress(id)})
	}
	s.ApplyDefaults()
	return s
}

// host is a load balancer of the fleet: the data path, and the machine on its tables.
type host struct {
	testing.TB
	id      uint16
	path    *lb.LB
	tables  *plan.Tables
	want    plan.Want
	machine *replica.Node
}

var loadedPaths = map[uint16]*lb.LB{}

// loaded returns the data path of a node, with no entries: loading takes a second, so that all tests use the same.
func loaded(t testing.TB, id uint16) *lb.LB {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading BPF programs needs root")
	}
	if loadedPaths[id] == nil {
		path, err := lb.Open("", testLimits)
		if err != nil {
			t.Fatal(err)
		}
		loadedPaths[id] = path // until the process ends
	}
	path := loadedPaths[id]
	path.SetRing(false)
	if err := path.PublishView(&lb.ReplicaView{}); err != nil {
		t.Fatal(err)
	}
	entries, answers := path.ReplicaTables()
	emptied(t, entries)
	emptied(t, answers)
	return path
}

func newHost(t testing.TB, id uint16, nodes int) *host {
	t.Helper()
	return newHostOn(t, id, nodes, loaded(t, id), testLimits)
}

func newHostOn(t testing.TB, id uint16, nodes int, path *lb.LB, limits plan.Limits) *host {
	t.Helper()
	h := &host{TB: t, id: id, path: path}
	var err error
	if h.tables, err = plan.Restore(limits, h.path); err != nil {
		t.Fatal(err)
	}
	h.want = plan.Want{Keys: model.Keys{Placement: [16]byte{1}, Current: 3, Cookie: map[uint32][16]byte{3: {3}}}, Paths: map[netip.Addr]plan.Path{},
		Services: []plan.Service{{Service: testService("udp", udpVIP, model.ProtocolUDP)}, {Service: testService("tcp", tcpVIP, model.ProtocolTCP)}},
		Replicas: plan.Replicas{Self: id, Nodes: map[uint16]netip.Addr{}}}
	way := func(to netip.Addr) {
		h.want.Paths[to] = plan.Path{Ifindex: testIfindex, Source: nodeAddress(id), SourceMAC: nodeMAC, DestinationMAC: routerMAC, MTU: 1500}
	}
	for node := uint16(1); node <= uint16(nodes); node++ {
		h.want.Replicas.Nodes[node] = nodeAddress(node)
		way(nodeAddress(node))
	}
	for server := uint16(1); server <= 5; server++ {
		way(serverAddress(server))
	}
	h.apply()
	return h
}

func (h *host) apply() {
	h.Helper()
	changes, err := h.tables.Update(&h.want)
	if err == nil {
		err = h.path.Apply(changes)
	}
	if err != nil {
		h.Fatal(err)
	}
}

// open starts the machine on empty tables.
func (h *host) open(config *replica.Config) {
	h.Helper()
	h.Publish(replica.View{})
	entries, answers := h.path.ReplicaTables()
	failed := func(err error) { h.Fatal(err) }
	h.machine = replica.OpenNode(h.id, config, newTable(emptied(h.TB, entries), h.path.ReplicaPeriod, nil, failed),
		newTable(emptied(h.TB, answers), h.path.ReplicaPeriod, nil, failed), h, h.path.ReplicaPeriod())
}

// Publish makes a host a replica.Path.
func (h *host) Publish(v replica.View) {
	h.Helper()
	if err := publish(h.path, v, hopLimit); err != nil {
		h.Fatal(err)
	}
}

const hopLimit = 8

// Period makes a host a replica.Path.
func (h *host) Period(period uint32) { h.path.SetReplicaPeriod(period) }

// setState gives a server of all services a state at this node alone.
func (h *host) setState(id uint16, state model.ServerState) {
	for i := range h.want.Services {
		s := &h.want.Services[i]
		s.Servers = slices.Clone(s.Servers)
		s.Servers[id-1].State = state
	}
	h.apply()
}

func (h *host) isOff(id uint16) bool {
	return id == 0 || int(id) > 5 || h.want.Services[0].Servers[id-1].State == model.StateOff
}

// connection is one of a client's.
type connection struct {
	client   netip.AddrPort
	service  netip.AddrPort
	protocol model.Protocol
}

func anyConnection(n int) connection {
	c := connection{netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, byte(n >> 8), byte(n)}), uint16(1024+n)), netip.AddrPortFrom(udpVIP, 53), model.ProtocolUDP}
	if n%3 == 0 {
		c.service, c.protocol = netip.AddrPortFrom(tcpVIP, 443), model.ProtocolTCP
	}
	return c
}

func (c connection) key(keys *model.Keys) ring.Key {
	k0, k1 := plan.EntryKey(keys.Placement)
	return ring.Key(peermessage.FlowKey(k0, k1, c.client, c.service, uint8(c.protocol)))
}

// TCP flags.
const (
	syn = 2
	rst = 4
	ack = 16
)

// frame is a packet of a connection, with TCP flags or without meaning to them.
func (c connection) frame(flags byte) []byte {
	l4 := make([]byte, 20)
	if c.protocol == model.ProtocolUDP {
		l4 = make([]byte, 8+12)
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	} else {
		l4[12], l4[13] = 5<<4, flags
	}
	binary.BigEndian.PutUint16(l4, c.client.Port())
	binary.BigEndian.PutUint16(l4[2:], c.service.Port())
	return slices.Concat(nodeMAC[:], routerMAC[:], []byte{8, 0}, ipv4(c.client.Addr(), c.service.Addr(), byte(c.protocol), l4))
}

func ipv4(from, to netip.Addr, protocol byte, payload []byte) []byte {
	packet := make([]byte, 20, 20+len(payload))
	packet[0], packet[8], packet[9] = 0x45, 64, protocol
	binary.BigEndian.PutUint16(packet[2:], uint16(20+len(payload)))
	copy(packet[12:], from.AsSlice())
	copy(packet[16:], to.AsSlice())
	return append(packet, payload...)
}

// sent is what a node did with a frame.
type sent struct {
	frame   []byte
	message peermessage.Message // Kind 0: none
	to      uint16              // node, of a message
	server  uint16              // that got it; 0: none
}

// run has a frame come in.
func (h *host) run(frame []byte) (out sent) {
	h.Helper()
	action, text := frametest.Run(h, h.path.Program(), frame)
	if action == frametest.Drop {
		return out
	}
	out.frame = text
	if action != frametest.TX {
		h.Fatalf("node %d: action %d of %x", h.id, action, frame)
	}
	outer := out.frame[14:]
	destination := netip.AddrFrom4([4]byte(outer[16:20]))
	if outer[9] != 17 {
		out.server = uint16(destination.As4()[3])
		if serverAddress(out.server) != destination || outer[9] != 4 {
			h.Fatalf("node %d sent to %s: %x", h.id, destination, out.frame)
		}
		return out
	}
	var ok bool
	if out.message, ok = peermessage.Parse(outer[28:]); !ok || binary.BigEndian.Uint16(outer[22:]) != peermessage.Port {
		h.Fatalf("node %d sent no message: %x", h.id, out.frame)
	}
	out.to = uint16(destination.As4()[3])
	return out
}

// inner is the packet in a message, as it came from its client.
func (s *sent) inner() []byte { return s.frame[14+28+peermessage.GUELength+peermessage.Length:] }

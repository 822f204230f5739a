package server_test

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/syncookie"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// newSessionRig is a rig whose services have session tls.
func newSessionRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	o.plain = true
	r := newRig(t, o)
	for i := range r.fleet.Services {
		r.fleet.Services[i].Session = model.SessionTLS
	}
	r.attach("")
	return r
}

// byHand is a client whose every packet a test makes. No kernel answers in its place. Its SYNs have been answered by a load balancer.
type byHand struct {
	*rig
	vip, address netip.Addr
	port         uint16
	socket       int
	header       []byte // Ethernet

	options    syncookie.Options
	timestamps bool
	sequence   uint32 // of its SYN
	number     uint32 // of the answer
	echo       uint32 // of the answer's timestamp, until another one is received
	received   uint32 // what it acknowledges
	clock      uint32
}

// handPorts are those that clients by hand have had. No two share one: connections of an earlier one may still be open. Some use the next, too.
var handPorts atomic.Uint32

func init() { handPorts.Store(20000 + rand.Uint32N(10000)) }

var usualOptions = syncookie.Options{MSS: 1460, WindowScale: 7, SACK: true}

func (r *rig) byHand(vip netip.Addr) *byHand {
	t := r.t
	t.Helper()
	c := &byHand{rig: r, vip: vip, address: netip.MustParseAddr("10.9.0.77"), port: uint16(handPorts.Add(8)), options: usualOptions, timestamps: true,
		sequence: rand.Uint32(), clock: rand.Uint32()}
	protocol := layers.EthernetTypeIPv4
	if vip.Is6() {
		c.address, protocol = netip.MustParseAddr("fd09::77"), layers.EthernetTypeIPv6
	}
	from, err := r.client.MAC("eth0")
	progtest.Check(t, err)
	to, err := r.server.MAC("eth0")
	progtest.Check(t, err)
	c.header = binary.BigEndian.AppendUint16(append(append([]byte{}, to...), from...), uint16(protocol))
	progtest.Check(t, r.server.KnowNeighbours("eth0", map[netip.Addr]net.HardwareAddr{c.address: from}))
	progtest.Check(t, r.client.Do(func() (err error) {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		if c.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(progtest.Htons(unix.ETH_P_ALL))); err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(c.socket) })
		return errors.Join(unix.Bind(c.socket, &unix.SockaddrLinklayer{Ifindex: device.Index, Protocol: progtest.Htons(unix.ETH_P_ALL)}),
			unix.SetsockoptInt(c.socket, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptTimeval(c.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50000}))
	}))
	c.begin()
	return c
}

// begin is a handshake with a load balancer now. Clients' sequence numbers rise from one to the next (RFC 6528).
func (c *byHand) begin() { c.beginAt(uint64(time.Now().Unix())) }

// beginAt is a handshake at a time, in seconds.
func (c *byHand) beginAt(now uint64) {
	client, bits := netip.AddrPortFrom(c.address, c.port), c.fleet.Services[0].CookieBits
	hash := cookie.FlowHash(cookie.ServiceKey(c.fleet.Keys.Cookie[1], c.vip, model.ProtocolTCP), client, servicePort)
	c.sequence, c.echo = c.sequence+1<<20+rand.Uint32N(1<<20), 0
	if c.timestamps {
		c.echo = syncookie.Timestamp(bits, 1, serverID, hash)
	}
	c.number = syncookie.Make(plan.SYNCookieKey(&c.fleet.Keys, c.vip),
		syncookie.Flow{Client: client, ServicePort: servicePort, Sequence: c.sequence, Timestamp: c.echo}, c.options, now)
	c.received = c.number + 1
	c.clock += 1000
}

// segment is one of the client's, from a place counted from behind its SYN.
func (c *byHand) segment(offset uint32, payload string, more ...func(*layers.TCP)) []byte {
	var ip gopacket.NetworkLayer = &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: c.address.AsSlice(), DstIP: c.vip.AsSlice()}
	if c.vip.Is6() {
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: c.address.AsSlice(), DstIP: c.vip.AsSlice()}
	}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(c.port), DstPort: servicePort, Seq: c.sequence + 1 + offset, Ack: c.received, ACK: true, PSH: len(payload) > 0, Window: 1000}
	if c.timestamps {
		tcp.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindNop}, {OptionType: layers.TCPOptionKindNop},
			{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, c.clock), c.echo)}}
	}
	for _, change := range more {
		change(tcp)
	}
	buffer := gopacket.NewSerializeBuffer()
	progtest.Check(c.t, errors.Join(tcp.SetNetworkLayerForChecksum(ip), gopacket.SerializeLayers(buffer,
		gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, gopacket.Payload(c.header), ip.(gopacket.SerializableLayer), tcp, gopacket.Payload(payload))))
	return buffer.Bytes()
}

func (c *byHand) send(offset uint32, payload string, more ...func(*layers.TCP)) {
	c.t.Helper()
	c.put(make([]byte, 10), c.segment(offset, payload, more...))
}

// sendAtOnce sends data in segments of this size, one right behind the other.
func (c *byHand) sendAtOnce(offset uint32, payload string, size int) {
	c.t.Helper()
	frame := c.segment(offset, payload)
	kind, ip := byte(1), 20 // VIRTIO_NET_HDR_GSO_TCPV4
	if c.vip.Is6() {
		kind, ip = 4, 40
	}
	tcp, header := frame[14+ip:], len(frame)-len(payload)
	sum := uint32(unix.IPPROTO_TCP + len(tcp)) // of the pseudo header: the kernel adds the rest
	for _, address := range [][]byte{c.address.AsSlice(), c.vip.AsSlice()} {
		for i := 0; i < len(address); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(address[i:]))
		}
	}
	binary.BigEndian.PutUint16(tcp[16:], uint16(sum&0xffff+sum>>16))
	virtual := []byte{1, kind}
	for _, word := range []int{header, size, 14 + ip, 16} {
		virtual = binary.NativeEndian.AppendUint16(virtual, uint16(word))
	}
	c.put(virtual, frame)
}

func (c *byHand) put(virtual, frame []byte) {
	c.t.Helper()
	_, err := unix.Write(c.socket, append(virtual, frame...))
	progtest.Check(c.t, err)
}

func deadline() time.Time { return time.Now().Add(progtest.Deadline) }

func fin(tcp *layers.TCP) { tcp.FIN = true }

// expect waits for a packet of the server's, and learns its timestamp. Without: none is the answer to what was sent so far.
func (c *byHand) expect(what string, is func(*layers.TCP) bool) *layers.TCP {
	c.t.Helper()
	buffer := make([]byte, 4096)
	for end := time.Now().Add(progtest.Deadline); time.Now().Before(end); {
		n, from, err := unix.Recvfrom(c.socket, buffer, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		progtest.Check(c.t, err)
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		packet := gopacket.NewPacket(buffer[10:n], layers.LayerTypeEthernet, gopacket.Default)
		tcp, ok := packet.TransportLayer().(*layers.TCP)
		if !ok || tcp.DstPort != layers.TCPPort(c.port) || !is(tcp) {
			continue
		}
		for _, option := range tcp.Options {
			if option.OptionType == layers.TCPOptionKindTimestamps {
				c.echo = binary.BigEndian.Uint32(option.OptionData)
			}
		}
		return tcp
	}
	c.t.Fatalf("no %s came; %v", what, c.counts())
	return nil
}

// counts are those of the agent's that are not 0.
func (r *rig) counts() map[string]uint64 {
	counters, _ := r.agent.Counters()
	out := map[string]uint64{}
	for name, n := range counters {
		if n.Packets > 0 {
			out[name] = n.Packets
		}
	}
	return out
}

// accept returns the next connection, which must be of this client, with its first bytes.
func (c *byHand) accept(listener net.Listener, bytes string) net.Conn {
	c.t.Helper()
	progtest.Check(c.t, listener.(*net.TCPListener).SetDeadline(deadline()))
	conn, err := listener.Accept()
	if err != nil {
		c.t.Fatalf("%v; %v", err, c.counts())
	}
	c.t.Cleanup(func() { conn.Close() })
	if from := netip.MustParseAddrPort(conn.RemoteAddr().String()); from != netip.AddrPortFrom(c.address, c.port) {
		c.t.Fatalf("a connection from %s", from)
	}
	read(c.t, conn, bytes)
	return conn
}

func read(t *testing.T, conn net.Conn, bytes string) {
	t.Helper()
	progtest.Check(t, conn.SetDeadline(deadline()))
	got := make([]byte, len(bytes))
	_, err := io.ReadFull(conn, got)
	progtest.Check(t, err)
	if string(got) != bytes {
		t.Fatalf("received %q, not %q", got, bytes)
	}
}

// talk has the server say something, and the client acknowledge it.
func (c *byHand) talk(conn net.Conn, sent uint32) {
	c.t.Helper()
	_, err := conn.Write([]byte("hello, client"))
	progtest.Check(c.t, err)
	data := c.expect("answer", func(tcp *layers.TCP) bool { return len(tcp.Payload) > 0 })
	if data.Seq != c.number+1 || data.Ack != c.sequence+1+sent {
		c.t.Fatalf("the server's sequence number %#x acknowledges %#x, not %#x and %#x", data.Seq, data.Ack, c.number+1, c.sequence+1+sent)
	}
	c.received = data.Seq + uint32(len(data.Payload))
	c.clock++
	c.send(sent, "")
}

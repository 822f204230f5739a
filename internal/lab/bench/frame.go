package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/algo/pathid"
	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
)

const servicePort = 80

var (
	clientMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 9}
	ourMAC     = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	serverMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	ourAddress = netip.MustParseAddr("10.0.0.1")
	ourIPv6    = netip.MustParseAddr("fd00::1")
	clients6   = netip.MustParseAddr("2001:db8::")
)

// TCP options as Linux sends them, and none.
var (
	ackOptions = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1}
	synOptions = []byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7}
)

// kind is what a segment does to its connection.
type kind int

const (
	segmentACK kind = iota
	segmentSYN
	segmentFIN
	segmentRST
)

func optionsOf(kind kind) []byte {
	if kind == segmentSYN {
		return synOptions
	}
	return ackOptions
}

// frame builds what the wrapper repeats: a segment to vip from nobody, filled up with payload.
func frame(vip netip.Addr, kind kind, options []byte) (out [wrapper.FrameLength]byte) {
	header := 14 + 20 + 20 + len(options)
	if vip.Is6() {
		header += 40 - 20
	}
	copy(out[:], segment(vip, kind, options, make([]byte, len(out)-header)))
	return out
}

// segment is one to vip from nobody.
func segment(vip netip.Addr, kind kind, options, payload []byte) []byte {
	eth := &layers.Ethernet{SrcMAC: clientMAC, DstMAC: ourMAC, EthernetType: layers.EthernetTypeIPv4}
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv4{Version: 4, TTL: 60, Protocol: layers.IPProtocolTCP, SrcIP: net.IPv4zero, DstIP: vip.AsSlice()}
	if vip.Is6() {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 60, NextHeader: layers.IPProtocolTCP, SrcIP: clients6.AsSlice(), DstIP: vip.AsSlice()}
	}
	tcp := &layers.TCP{DstPort: servicePort, Seq: 1, SYN: kind == segmentSYN, ACK: kind != segmentSYN,
		FIN: kind == segmentFIN, RST: kind == segmentRST, Window: 500, Options: tcpOptions(options)}
	if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
		panic(err)
	}
	buffer := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, tcp, gopacket.Payload(payload))
	if err != nil {
		panic(fmt.Sprintf("build a segment: %v", err))
	}
	return buffer.Bytes()
}

// datagramFrame is a datagram to vip, as long as a segment: the payload and zeros.
func datagramFrame(vip netip.Addr, payload []byte) (out [wrapper.FrameLength]byte) {
	ip := &layers.IPv4{Version: 4, TTL: 60, Protocol: layers.IPProtocolUDP, SrcIP: net.IPv4zero, DstIP: vip.AsSlice()}
	udp := &layers.UDP{DstPort: servicePort}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		panic(err)
	}
	whole := make(gopacket.Payload, len(out)-14-20-8)
	copy(whole, payload)
	buffer := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: clientMAC, DstMAC: ourMAC, EthernetType: layers.EthernetTypeIPv4}, ip, udp, whole)
	if err != nil || len(buffer.Bytes()) != len(out) {
		panic(fmt.Sprintf("build a frame of %d bytes: got %d: %v", len(out), len(buffer.Bytes()), err))
	}
	copy(out[:], buffer.Bytes())
	return out
}

// tcpOptions hands ready-made bytes to gopacket, which writes options one by one.
func tcpOptions(raw []byte) (options []layers.TCPOption) {
	for len(raw) > 0 {
		kind, length := layers.TCPOptionKind(raw[0]), 1
		if kind != layers.TCPOptionKindNop {
			length = int(raw[1])
		}
		option := layers.TCPOption{OptionType: kind, OptionLength: uint8(length)}
		if length > 2 {
			option.OptionData = raw[2:length]
		}
		options, raw = append(options, option), raw[length:]
	}
	return options
}

// sent is a frame that the wrapper wrote.
type sent struct {
	cell  wrapper.Cell
	flow  uint32
	index uint8 // that the flow's cookie carries
}

// checkEncapsulated compares the output of an encapsulating program with what it must be, byte by byte. It returns the server that the
// frame goes to.
func checkEncapsulated(output []byte, s sent, identification func(server netip.Addr) uint16) (server netip.Addr, err error) {
	packet := gopacket.NewPacket(output, layers.LayerTypeEthernet, gopacket.NoCopy)
	outer, ok := packet.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	if !ok || outer.Protocol != layers.IPProtocolIPv4 {
		return server, fmt.Errorf("the output is not IP in IP: %x", output)
	}
	server, _ = netip.AddrFromSlice(outer.DstIP)
	want := gopacket.NewSerializeBuffer()
	err = gopacket.SerializeLayers(want, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: ourMAC, DstMAC: serverMAC, EthernetType: layers.EthernetTypeIPv4},
		&layers.IPv4{Version: 4, TTL: 64, Id: identification(server), Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolIPv4,
			SrcIP: ourAddress.AsSlice(), DstIP: outer.DstIP},
		gopacket.Payload(s.bytes()[14:]))
	if err != nil {
		return server, fmt.Errorf("build the expected output: %w", err)
	}
	return server, checkSame(output, want.Bytes())
}

// checkIPv6 compares the output with what it must be: the packet in IPv6 to a server, behind an extension header if there is one.
func checkIPv6(output []byte, s sent, server netip.Addr, next layers.IPProtocol, extension []byte) error {
	secret := pathid.Secret(keys().Placement, server)
	want := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(want, gopacket.SerializeOptions{FixLengths: true},
		&layers.Ethernet{SrcMAC: ourMAC, DstMAC: serverMAC, EthernetType: layers.EthernetTypeIPv6},
		&layers.IPv6{Version: 6, HopLimit: 64, FlowLabel: pathid.Label(secret, pathid.Entropy(s.cell.Client(s.flow), servicePort)),
			NextHeader: next, SrcIP: ourIPv6.AsSlice(), DstIP: server.AsSlice()},
		gopacket.Payload(slices.Concat(extension, s.bytes()[14:])))
	if err != nil {
		return fmt.Errorf("build the expected output: %w", err)
	}
	return checkSame(output, want.Bytes())
}

// checkGUE does so for GUE over IPv4, with private data of fewer than 100 bytes.
func checkGUE(output []byte, s sent, server netip.Addr, private []byte) error {
	entropy := pathid.Entropy(s.cell.Client(s.flow), servicePort)
	want := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(want, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: ourMAC, DstMAC: serverMAC, EthernetType: layers.EthernetTypeIPv4},
		&layers.IPv4{Version: 4, TTL: 64, Id: identification(server), Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolUDP,
			SrcIP: ourAddress.AsSlice(), DstIP: server.AsSlice()})
	if err != nil {
		return fmt.Errorf("build the expected output: %w", err)
	}
	inner := s.bytes()[14:]
	udp := []byte{0xc0 | byte(entropy>>8)&0x3f, byte(entropy), 6080 >> 8, 6080 & 255, 0, byte(12 + len(private) + len(inner)), 0, 0, byte(len(private) / 4), 4, 0, 0}
	frame := slices.Concat(want.Bytes()[:14+20], udp, private, inner) // it was filled up
	length := len(frame) - 14
	binary.BigEndian.PutUint16(frame[16:], uint16(length))
	binary.BigEndian.PutUint16(frame[24:], checksumReplace(binary.BigEndian.Uint16(frame[24:]), 20, uint32(length)))
	return checkSame(output, frame)
}

func checkSwapped(output []byte, s sent) error {
	want := s.bytes()
	copy(want[0:6], clientMAC)
	copy(want[6:12], ourMAC)
	return checkSame(output, want)
}

func checkUnchanged(output []byte, s sent) error { return checkSame(output, s.bytes()) }

func checkSame(output, want []byte) error {
	if !bytes.Equal(output, want) {
		return fmt.Errorf("the output is\n%x, want\n%x", output, want)
	}
	return nil
}

// tcpChecksumAt is where the frames have it.
const tcpChecksumAt = 14 + 20 + 16

func (s sent) bytes() []byte { return s.cell.FrameOf(s.flow, s.index) }

func (s sent) server() uint16 { return s.cell.Server(s.flow) }

// given returns the index that the output of an encapsulating program tells the server, left of so many bits of the server's id, and the
// output without it.
func (s sent) given(output []byte, idBits uint8) (index uint8, without []byte) {
	if len(output) != len(s.cell.Frame)+outerLength {
		return 0, output
	}
	without = bytes.Clone(output)
	inner := without[outerLength:]
	had, has := binary.BigEndian.Uint32(s.bytes()[wrapper.EchoAt:]), binary.BigEndian.Uint32(inner[wrapper.EchoAt:])
	check := binary.BigEndian.Uint16(inner[tcpChecksumAt:])
	binary.BigEndian.PutUint32(inner[wrapper.EchoAt:], had)
	binary.BigEndian.PutUint16(inner[tcpChecksumAt:], checksumReplace(check, has, had))
	return uint8((had ^ has) >> idBits), without
}

// checksumReplace is RFC 1624 equation 3.
func checksumReplace(check uint16, before, after uint32) uint16 {
	sum := uint32(^check) + (^before >> 16) + (^before & 0xffff) + after>>16 + after&0xffff
	sum = sum&0xffff + sum>>16
	return ^uint16(sum + sum>>16)
}

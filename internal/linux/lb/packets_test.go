package lb

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// TCP flags.
const (
	fin = 1
	syn = 2
	rst = 4
	psh = 8
	ack = 16
)

// flow is a connection seen from the client.
type flow struct{ client, service netip.AddrPort }

// flowTo is the n-th client's connection to a port of a VIP.
func flowTo(vip netip.Addr, port uint16, n int) flow {
	client := client4
	if vip.Is6() {
		client = client6
	}
	return flow{netip.AddrPortFrom(client, uint16(20000+n)), netip.AddrPortFrom(vip, port)}
}

// timestamps is the option as Linux puts it into packets that are not SYNs.
func timestamps(value, echo uint32) []byte {
	b := []byte{1, 1, 8, 10}
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, value), echo)
}

// synOptions is what Linux offers: MSS, SACK permitted, timestamps, NOP, window scale.
func synOptions() []byte {
	return slices.Concat([]byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 1, 2, 3, 0, 0, 0, 0, 1, 3, 3, 7})
}

// cookieFor is a TSval that leads to a server: a clock value and the cookie for this flow.
func (w *world) cookieFor(name string, f flow, id uint16, epoch uint32) uint32 {
	s := service(&w.want, name)
	if s.HasVIP(f.service.Addr()) {
		s = atVIP(s, f.service.Addr())
	}
	return cookieUnder(w.want.Keys.Cookie[epoch], s, f, id, epoch)
}

func cookieUnder(key [16]byte, s *plan.Service, f flow, id uint16, epoch uint32) uint32 {
	hash := cookie.FlowHash(cookie.ServiceKey(key, s.VIP, s.Protocol), f.client, f.service.Port())
	return 0x1234<<s.CookieBits | uint32(cookie.Encode(s.CookieBits, epoch, id, hash))
}

// carrying is a data segment that echoes a server's timestamp.
func (f flow) carrying(echo uint32) []byte {
	return f.frame(f.tcp(psh|ack, timestamps(77, echo), []byte("GET / HTTP/1.1\r\n")))
}

// tcp is a segment from the client, its checksum right. Options are padded with zeros to whole words.
func (f flow) tcp(flags byte, options, payload []byte) []byte {
	return tcpSegment(f.client, f.service, flags, options, payload)
}

func tcpSegment(from, to netip.AddrPort, flags byte, options, payload []byte) []byte {
	options = append(slices.Clone(options), make([]byte, -len(options)&3)...)
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 2, byte(5+len(options)/4)<<4, flags, 0x10, 0, 0, 0, 0, 0)
	b = slices.Concat(b, options, payload)
	setTransportChecksum(b, 16, from.Addr(), to.Addr(), 6)
	return b
}

func udpDatagram(from, to netip.AddrPort, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = slices.Concat(b, []byte{0, 0}, payload)
	setTransportChecksum(b, 6, from.Addr(), to.Addr(), 17)
	return b
}

// udp is a datagram from the client.
func (f flow) udp(payload []byte) []byte { return udpDatagram(f.client, f.service, payload) }

// frame is a TCP segment in an IP packet in an untagged frame from the router.
func (f flow) frame(segment []byte) []byte {
	return ethernet(0, ipPacket(f.client.Addr(), f.service.Addr(), 6, segment))
}

func ipPacket(from, to netip.Addr, protocol byte, payload []byte) []byte {
	if from.Is6() {
		return serialize(&layers.IPv6{Version: 6, TrafficClass: 0x28, FlowLabel: 0x1234, HopLimit: 61, NextHeader: layers.IPProtocol(protocol),
			SrcIP: from.AsSlice(), DstIP: to.AsSlice()}, gopacket.Payload(payload))
	}
	return serialize(&layers.IPv4{Version: 4, TOS: 0x28, Id: 0x4321, TTL: 61, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocol(protocol),
		SrcIP: from.AsSlice(), DstIP: to.AsSlice()}, gopacket.Payload(payload))
}

// mayFragment takes Don't Fragment off an IPv4 packet.
func mayFragment(ip []byte) []byte {
	ip[6] &^= 0x40
	setIPv4Checksum(ip)
	return ip
}

// fragmentOf is one fragment of a datagram, whose offset is counted in bytes.
func fragmentOf(from, to netip.Addr, protocol byte, id uint32, offset int, more bool, payload []byte) []byte {
	if from.Is6() {
		header := []byte{protocol, 0, 0, 0, 0, 0, 0, 0}
		binary.BigEndian.PutUint16(header[2:], uint16(offset))
		if more {
			header[3] |= 1
		}
		binary.BigEndian.PutUint32(header[4:], id)
		return ethernet(0, ipPacket(from, to, 44, append(header, payload...)))
	}
	ip := ipPacket(from, to, protocol, payload)
	binary.BigEndian.PutUint16(ip[4:], uint16(id))
	binary.BigEndian.PutUint16(ip[6:], uint16(offset/8))
	if more {
		ip[6] |= 0x20
	}
	setIPv4Checksum(ip)
	return ethernet(0, ip)
}

// ethernet is a frame from the router to this node, tagged unless vlan is 0.
func ethernet(vlan uint16, ip []byte) []byte {
	frame := slices.Concat(nodeMAC[:], routerMAC[:])
	if vlan != 0 {
		frame = binary.BigEndian.AppendUint16(append(frame, 0x81, 0), vlan)
	}
	return append(binary.BigEndian.AppendUint16(frame, uint16(etherType(ip[0]>>4 == 6))), ip...)
}

// icmpFrame is an ICMP message in a frame, with a right checksum.
func icmpFrame(from, to netip.Addr, kind, code byte, rest uint32, body []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{kind, code, 0, 0}, rest)
	b = append(b, body...)
	protocol := byte(1)
	if from.Is6() {
		protocol = 58
		setTransportChecksum(b, 2, from, to, protocol)
	} else {
		binary.BigEndian.PutUint16(b[2:], ^foldSum(b))
	}
	return ethernet(0, ipPacket(from, to, protocol, b))
}

func serialize(parts ...gopacket.SerializableLayer) []byte {
	buffer := gopacket.NewSerializeBuffer()
	mustSet(gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, parts...))
	return buffer.Bytes()
}

func mustSet(err error) {
	if err != nil {
		panic(err)
	}
}

// foldSum is the ones' complement sum of RFC 1071 over b.
func foldSum(parts ...[]byte) uint16 {
	sum := 0
	for _, b := range parts {
		for i, octet := range b { // every part starts at an even offset
			sum += int(octet) << (8 * (1 - i&1))
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

func pseudoHeader(from, to netip.Addr, protocol byte, length int) []byte {
	b := slices.Concat(from.AsSlice(), to.AsSlice())
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	return append(b, 0, 0, 0, protocol)
}

func setTransportChecksum(b []byte, at int, from, to netip.Addr, protocol byte) {
	b[at], b[at+1] = 0, 0
	sum := ^foldSum(pseudoHeader(from, to, protocol, len(b)), b)
	if protocol == 17 && sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], sum)
}

func setIPv4Checksum(ip []byte) {
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^foldSum(ip[:20]))
}

// replaceBytes writes new over field, which lies at an even offset, and updates the checksum at check (nil: none) as RFC 1624 says.
func replaceBytes(check, field, new []byte) {
	field = field[:len(new)]
	if check != nil {
		sum := int(^binary.BigEndian.Uint16(check)) + int(^foldSum(field)) + int(foldSum(new))
		for sum > 0xffff {
			sum = sum&0xffff + sum>>16
		}
		binary.BigEndian.PutUint16(check, ^uint16(sum))
	}
	copy(field, new)
}

// udpService is a UDP service on port 53.
func udpService(name string, vip netip.Addr, change func(*model.Service)) model.Service {
	return serviceOf(name, vip, func(s *model.Service) {
		s.Protocol, s.Ports = model.ProtocolUDP, []uint16{53}
		if change != nil {
			change(s)
		}
	})
}

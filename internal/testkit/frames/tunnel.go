package frames

import (
	"encoding/binary"
	"net/netip"
)

// Specification constants (draft-ietf-intarea-gue; docs/design/connection.md).
const (
	guePort       = 6080
	gueHeader     = 4
	gueWordsMask  = 0x1f
	protocolIPv4  = 4 // in IPv4 and in GUE
	protocolUDP   = 17
	ethernetBytes = 14
	ipv4Bytes     = 20
	udpBytes      = 8
)

// Tunnelled reads the segment that a frame carries in IP in IP or GUE over IPv4; ok tells whether there is one.
func Tunnelled(frame []byte) (s Segment, ok bool) {
	inner := ethernetBytes + ipv4Bytes
	if len(frame) < inner+udpBytes+gueHeader || binary.BigEndian.Uint16(frame[12:]) != 0x0800 || frame[ethernetBytes] != 0x45 {
		return s, false
	}
	switch frame[ethernetBytes+9] {
	case protocolIPv4:
	case protocolUDP:
		if binary.BigEndian.Uint16(frame[inner+2:]) != guePort {
			return s, false
		}
		inner += udpBytes
		inner += gueHeader + 4*int(frame[inner]&gueWordsMask)
	default:
		return s, false
	}
	if inner > len(frame) {
		return s, false
	}
	return Parse(append(append([]byte(nil), frame[:ethernetBytes]...), frame[inner:]...))
}

// WithStop is the segment as a load balancer sends it to a server in GUE, with another server as the stop behind it.
func (s *Segment) WithStop(balancer, server, stop netip.Addr) ([]byte, error) {
	const sourcePort = 50000
	inner, err := s.Frame()
	if err != nil {
		return nil, err
	}
	gue := append([]byte{3, protocolIPv4, 0, 0, 1, 0, 1, 0}, stop.AsSlice()...) // 3 words of private data: stops, the next is 0 of 1
	gue = append(gue, 0, 0, 0, 0)                                               // room for another
	return Datagram(s.From, s.To, netip.AddrPortFrom(balancer, sourcePort), netip.AddrPortFrom(server, guePort), append(gue, inner[ethernetBytes:]...))
}

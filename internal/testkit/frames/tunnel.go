package frames

import "encoding/binary"

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

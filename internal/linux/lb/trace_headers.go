// Which bytes of a traced frame are headers.
package lb

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
)

// Lengths of headers (RFC 768, 791, 792, 8200, 9293; GUE: draft-ietf-intarea-gue), and what says that others follow.
const (
	ethernetLength = 14
	tagLength      = 4
	ipv4Length     = 20
	ipv6Length     = 40
	udpLength      = 8
	icmpLength     = 8
	tcpLength      = 20
	gueLength      = 4
	arpLength      = 28
)

// onlyHeaders cuts a frame behind the transport header of the packet between source and destination, so that what clients say is not shown. A tunnel's headers
// before it, and the headers that an ICMP error quotes, are headers, too.
func onlyHeaders(frame []byte, source, destination netip.Addr) []byte {
	at, kind := ethernetLength, 0
	if len(frame) < at {
		return frame
	}
	for kind = int(binary.BigEndian.Uint16(frame[12:])); kind == unix.ETH_P_8021Q || kind == unix.ETH_P_8021AD; at += tagLength {
		if len(frame) < at+tagLength {
			return frame
		}
		kind = int(binary.BigEndian.Uint16(frame[at+2:]))
	}
	for {
		from, to, protocol, next, ok := ipHeader(frame, at, kind)
		if !ok {
			return frame[:min(next, len(frame))]
		}
		inner := from != source || to != destination
		at, kind = next, 0
		switch protocol {
		case unix.IPPROTO_IPIP:
			kind = unix.ETH_P_IP
		case unix.IPPROTO_IPV6:
			kind = unix.ETH_P_IPV6
		case unix.IPPROTO_UDP:
			at += udpLength
			if inner {
				at, kind = gueHeader(frame, at)
			}
		case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
			at += icmpLength
			kind = quotedKind(frame, next, protocol)
			inner = true
		case unix.IPPROTO_TCP:
			at = tcpEnd(frame, at)
		}
		if kind == 0 || !inner {
			return frame[:min(at, len(frame))]
		}
	}
}

// ipHeader reads the header at a place. next is what follows it and its extensions. Not ok: there is none, or the packet is a later fragment.
func ipHeader(frame []byte, at, kind int) (from, to netip.Addr, protocol uint8, next int, ok bool) {
	switch {
	case kind == unix.ETH_P_IP && len(frame) >= at+ipv4Length:
		h := frame[at:]
		from, to = netip.AddrFrom4([4]byte(h[12:16])), netip.AddrFrom4([4]byte(h[16:20]))
		later := binary.BigEndian.Uint16(h[6:])&0x1fff != 0
		return from, to, h[9], at + max(int(h[0]&15)*4, ipv4Length), !later
	case kind == unix.ETH_P_IPV6 && len(frame) >= at+ipv6Length:
		h := frame[at:]
		from, to, protocol, at = netip.AddrFrom16([16]byte(h[8:24])), netip.AddrFrom16([16]byte(h[24:40])), h[6], at+ipv6Length
		for len(frame) >= at+8 {
			h := frame[at:]
			switch protocol {
			case unix.IPPROTO_FRAGMENT:
				if binary.BigEndian.Uint16(h[2:])&0xfff8 != 0 {
					return from, to, protocol, at + 8, false
				}
				protocol, at = h[0], at+8
			case unix.IPPROTO_ROUTING, unix.IPPROTO_HOPOPTS, unix.IPPROTO_DSTOPTS:
				protocol, at = h[0], at+8+int(h[1])*8
			default:
				return from, to, protocol, at, true
			}
		}
		return from, to, protocol, at, true
	}
	if kind == unix.ETH_P_ARP {
		at += arpLength
	}
	return from, to, 0, at, false
}

// gueHeader is behind GUE's header, and what its data packets carry. kind is 0 where there is none.
func gueHeader(frame []byte, at int) (next, kind int) {
	if len(frame) < at+gueLength || binary.BigEndian.Uint16(frame[at-udpLength+2:]) != peermessage.Port || frame[at]&0xe0 != 0 {
		return at, 0
	}
	next = at + gueLength + int(frame[at]&0x1f)*4
	switch frame[at+1] {
	case unix.IPPROTO_IPIP:
		return next, unix.ETH_P_IP
	case unix.IPPROTO_IPV6:
		return next, unix.ETH_P_IPV6
	}
	return at, 0
}

// quotedKind is what an ICMP error quotes; 0: it is none.
func quotedKind(frame []byte, at int, protocol uint8) int {
	switch {
	case len(frame) <= at:
		return 0
	case protocol == unix.IPPROTO_ICMPV6 && frame[at] < 128:
		return unix.ETH_P_IPV6
	case protocol == unix.IPPROTO_ICMP && (frame[at] == 3 || frame[at] == 11 || frame[at] == 12):
		return unix.ETH_P_IP
	}
	return 0
}

func tcpEnd(frame []byte, at int) int {
	if len(frame) < at+tcpLength {
		return at + tcpLength
	}
	return at + max(int(frame[at+12]>>4)*4, tcpLength)
}

// The headers of a frame in words.
package explain

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
)

const headersMost = 8

// headersOf are the headers of a frame, outermost first, as far as they can be read.
func headersOf(frame []byte) (headers []string) {
	if len(frame) < 14 {
		return nil
	}
	text := fmt.Sprintf("Ethernet %s > %s", net.HardwareAddr(frame[6:12]), net.HardwareAddr(frame[:6]))
	kind, rest := binary.BigEndian.Uint16(frame[12:]), frame[14:]
	if kind == unix.ETH_P_8021Q && len(rest) >= 4 {
		text += fmt.Sprintf(" vlan %d", binary.BigEndian.Uint16(rest)&0xfff)
		kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	headers = append(headers, text)
	next := map[uint16]byte{unix.ETH_P_IP: unix.IPPROTO_IPIP, unix.ETH_P_IPV6: unix.IPPROTO_IPV6}[kind]
	for next != 0 && len(headers) < headersMost {
		text, next, rest = header(next, rest)
		if text == "" {
			break
		}
		headers = append(headers, text)
	}
	return headers
}

// header reads one; next: which follows, 0: none that can be read.
func header(kind byte, b []byte) (text string, next byte, rest []byte) {
	switch {
	case kind == unix.IPPROTO_IPIP && len(b) >= 20 && int(b[0]&15)*4 <= len(b):
		return fmt.Sprintf("IPv4 %s > %s", netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))), b[9], b[int(b[0]&15)*4:]
	case kind == unix.IPPROTO_IPV6 && len(b) >= 40:
		return fmt.Sprintf("IPv6 %s > %s", netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))), b[6], b[40:]
	case kind == unix.IPPROTO_ROUTING && len(b) >= 8 && len(b) >= 8*(int(b[1])+1):
		return fmt.Sprintf("segment routing, %d to go", b[3]), b[0], b[8*(int(b[1])+1):]
	case kind == unix.IPPROTO_TCP && len(b) >= 20:
		return fmt.Sprintf("TCP %d > %d", binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])), 0, nil
	case kind == unix.IPPROTO_ICMP, kind == unix.IPPROTO_ICMPV6:
		return "ICMP", 0, nil
	case kind == unix.IPPROTO_UDP && len(b) >= 8:
		text := fmt.Sprintf("UDP %d > %d", binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]))
		if binary.BigEndian.Uint16(b[2:]) != peermessage.Port || len(b) < 12 {
			return text, 0, nil
		}
		return gue(text, b[8:])
	}
	return "", 0, nil
}

// gue reads a header of draft-ietf-intarea-gue, as far as it is here.
func gue(text string, b []byte) (string, byte, []byte) {
	length := 4 + 4*int(b[0]&31)
	if b[0]&0xe0 != 0 || length > len(b) {
		return text + ", a message", 0, nil
	}
	return text + ", GUE", b[1], b[length:]
}

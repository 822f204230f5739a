package wire

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// CompleteChecksum writes the checksum of TCP or UDP into an IP packet, and that of an IPv4 header, which the kernel leaves to devices.
// ok: the packet has its headers.
func CompleteChecksum(packet []byte) (ok bool) {
	const ipv4Header, ipv6Header = 20, 40
	var addresses, transport []byte
	var protocol byte
	switch {
	case len(packet) >= ipv4Header && packet[0] == 0x45:
		if binary.BigEndian.Uint16(packet[6:])&0x3fff != 0 { // a fragment: its checksum is that of the whole datagram
			return true
		}
		addresses, transport, protocol = packet[12:20], packet[ipv4Header:], packet[9]
		binary.BigEndian.PutUint16(packet[10:], 0)
		binary.BigEndian.PutUint16(packet[10:], fold(addWords(0, packet[:ipv4Header])))
	case len(packet) >= ipv6Header && packet[0]>>4 == 6:
		addresses, transport, protocol = packet[8:40], packet[ipv6Header:], packet[6]
	default:
		return false
	}
	at := map[byte]int{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6}[protocol]
	if at == 0 || len(transport) < at+2 {
		return false
	}
	binary.BigEndian.PutUint16(transport[at:], 0)
	check := fold(addWords(addWords(uint32(protocol)+uint32(len(transport)), addresses), transport))
	if check == 0 && protocol == unix.IPPROTO_UDP { // 0 means none
		check = 0xffff
	}
	binary.BigEndian.PutUint16(transport[at:], check)
	return true
}

// addWords adds 16-bit words (RFC 1071) of at most some kilobytes.
func addWords(sum uint32, words []byte) uint32 {
	for len(words) >= 2 {
		sum += uint32(binary.BigEndian.Uint16(words))
		words = words[2:]
	}
	if len(words) == 1 {
		sum += uint32(words[0]) << 8
	}
	return sum
}

// fold is the checksum of a sum of words.
func fold(sum uint32) uint16 {
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

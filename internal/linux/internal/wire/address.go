// Package wire converts between addresses and the structs of BPF programs, which bpf2go shows as words in network order.
package wire

import (
	"encoding/binary"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/plan"
)

// Words is an address as __be32[4]. The zero Addr is all zeros.
func Words(a netip.Addr) (words [4]uint32) {
	raw := plan.WireAddress(a)
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(raw[4*i:])
	}
	return words
}

// IPv4 is the address in a __be32.
func IPv4(word uint32) netip.Addr {
	var raw [4]byte
	binary.NativeEndian.PutUint32(raw[:], word)
	return netip.AddrFrom4(raw)
}

// IPv6 is the address in a __be32[4].
func IPv6(words [4]uint32) netip.Addr {
	var raw [16]byte
	for i, word := range words {
		binary.NativeEndian.PutUint32(raw[4*i:], word)
	}
	return netip.AddrFrom16(raw)
}

// AddrPort is the address and port in a __be32[4] and a __be16.
func AddrPort(words [4]uint32, port uint16, ipv6 bool) netip.AddrPort {
	if !ipv6 {
		return netip.AddrPortFrom(IPv4(words[0]), Port(port))
	}
	return netip.AddrPortFrom(IPv6(words), Port(port))
}

// Port converts a port to a __be16 and back.
func Port(port uint16) uint16 {
	var raw [2]byte
	binary.BigEndian.PutUint16(raw[:], port)
	return binary.NativeEndian.Uint16(raw[:])
}

// Package pathid computes what tunnel packets carry so that a router's error about one can be told from a forged one: RFC 5927 7.2 asks
// that something in the quote be hard to guess. bpf/lb/send/encapsulate.h writes the same.
//
// An error need only quote the outer IPv4 header and eight bytes: there it is the identification, 16 bits, which is free in packets that forbid
// fragmentation (RFC 6864). An ICMPv6 error quotes the inner headers, too: there it is the flow label, 20 bits, by which routers spread flows.
package pathid

import (
	"encoding/binary"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/siphash"
)

// Secret is what packets to an address carry, from the fleet's placement key, so that it outlives restarts.
func Secret(placement [16]byte, to netip.Addr) uint32 {
	address := to.As16()
	message := append(address[:], "path"...)
	return uint32(siphash.Sum13(binary.LittleEndian.Uint64(placement[:8]), binary.LittleEndian.Uint64(placement[8:]), message))
}

// Identification is that of IPv4 headers.
func Identification(secret uint32) uint16 { return uint16(secret) }

// Label is the IPv6 flow label of a flow's packets: keyed by a secret that nobody sees the effect of, another one for each flow.
func Label(secret uint32, entropy uint16) uint32 {
	return (secret ^ uint32(entropy)) * 0x85ebca6b >> 12
}

// Entropy is a cheap hash of the inner packet's addresses and ports, which are 0 where it has none.
func Entropy(client netip.AddrPort, servicePort uint16) uint16 {
	address := client.Addr().AsSlice()
	mix := binary.LittleEndian.Uint32(address)
	if len(address) == 16 {
		mix ^= binary.LittleEndian.Uint32(address[12:])
	}
	var ports [4]byte // as they lie in memory
	binary.BigEndian.PutUint16(ports[:], servicePort)
	binary.BigEndian.PutUint16(ports[2:], client.Port())
	return uint16((mix ^ binary.LittleEndian.Uint32(ports[:])) * 0x9e3779b1 >> 16)
}

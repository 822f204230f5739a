package conntable

import (
	"encoding/binary"
	"net/netip"
)

// Hash returns the hash that places a flow in the tables of a service, whose placement key is (k0, k1): cookie.Key. client is the
// address and port as they are on the wire (IPv4 or IPv6, unmapped first), servicePort the service's port that it talks to.
//
// It is a mixer by multiplication under a secret, for a few ns: nobody sees its output, and what a guess gains is a partition without
// room, which costs the connections there their statistics. With IPv4 it is one-to-one: no two flows of a service have one hash.
func Hash(k0, k1 uint64, client netip.AddrPort, servicePort uint16) uint64 {
	address := client.Addr().Unmap()
	wire := address.AsSlice()
	h := k0 ^ word(wire) ^ port(client.Port())<<32 ^ port(servicePort)<<48
	if address.Is6() {
		h = mix(h)
		h ^= word(wire[4:]) | word(wire[8:])<<32
		h = mix(h)
		h ^= word(wire[12:]) ^ 6
	}
	return mix(h ^ k1)
}

// word and port are bytes of the packet as a little-endian machine loads them.
func word(wire []byte) uint64 { return uint64(binary.LittleEndian.Uint32(wire)) }

func port(number uint16) uint64 { return uint64(number>>8 | number<<8) }

// mix is degski's 64-bit mixer: one-to-one, and each bit of x changes each bit of the result with a chance of one half.
func mix(x uint64) uint64 {
	const multiplier = 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= multiplier
	x ^= x >> 32
	x *= multiplier
	return x ^ x>>32
}

// Check returns what an entry remembers of the hash, besides the client's port, to tell its connection from others.
func Check(hash uint64) uint16 { return uint16(hash) }

// ClientWord returns what an entry has of an IPv6 client in place of the address.
func ClientWord(hash uint64) uint32 { return uint32(hash >> 16) }

// Assignment returns the place where a connection's entry is remembered until its server uses the index, and the word that says so.
func Assignment(hash uint64, entry uint32) (place uint32, word uint64) {
	return uint32(hash>>16) & (Assignments - 1), mix(hash)<<32 | uint64(entry)
}

// Package cookie computes what a connection carries to find its way home: Cheetah (NSDI'20) section III-A, "cookie = server id XOR
// hash of the 5-tuple under a secret". bpf/wire/cookie.h computes the same bytes; test/golden/cookie.json holds both to it.
//
// A cookie of c bits lies in the low bits of a TCP timestamp: bit c-1 is the parity of the key's epoch, the other c-1 bits are
// the server's id XOR the flow hash.
//
// Departs from Cheetah IV-A: the hash is SipHash-1-3 under a secret key instead of a CRC, as a CRC can be inverted by anyone,
// and the epoch bit lets keys rotate while connections of the last one live.
package cookie

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/siphash"
	"github.com/ballast-lb/ballast/internal/model"
)

// Key is a SipHash key as its two little-endian halves.
type Key struct{ K0, K1 uint64 }

// Load returns a 16-byte key from the configuration as SipHash takes it.
func Load(key [16]byte) Key {
	return Key{binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:])}
}

// ServiceKey derives a service's own key from a key of the fleet (an epoch's cookie key or the placement key), so that what is
// learned from one service tells nothing about another. vip may be IPv4 or IPv6; an IPv4 address counts as ::ffff:a.b.c.d.
func ServiceKey(fleet [16]byte, vip netip.Addr, protocol model.Protocol) Key {
	var message [18]byte
	address := vip.As16()
	copy(message[:], address[:])
	message[16] = byte(protocol)
	key := Load(fleet)
	k0 := siphash.Sum13(key.K0, key.K1, message[:])
	message[17] = 1
	return Key{k0, siphash.Sum13(key.K0, key.K1, message[:])}
}

// Keys of services with affinity quic, and with mptcp, and of replicas, for Derive.
const (
	ForConnectionIDs = "quic connection ids"  // of an epoch's cookie key
	ForTokens        = "quic tokens"          // of the placement key, and of one service
	ForResets        = "quic stateless reset" // of the placement key, and of one service and server
	ForSessionIDs    = "tls session ids"      // of an epoch's cookie key
	ForSYNCookies    = "syn cookies"          // of the placement key
	ForJoins         = "mptcp ports"          // of an epoch's cookie key
	ForPeers         = "messages of peers"    // of an epoch's cookie key, of the fleet
	ForEntries       = "replicated entries"   // of the placement key, of the fleet
)

// Derive makes another key from a key of the fleet, by HKDF (RFC 5869): servers may get it, and learn nothing of other keys. id is that of the server
// whose key it is; 0: of all.
func Derive(fleet [16]byte, purpose string, vip netip.Addr, id uint16, length int) []byte {
	derived, err := hkdf.Key(sha256.New, fleet[:], nil, fmt.Sprintf("ballast %s %s %d", purpose, vip.Unmap(), id), length)
	if err != nil {
		panic(err) // of a length that no hash has
	}
	return derived
}

// FlowHash returns the hash of a flow under a service key. client is the address and port of the client as it is on the wire
// (IPv4 or IPv6, unmapped first), servicePort the port of the service that it talks to, of which the last byte counts: 7 bytes
// are one block of SipHash, and that is what an IPv4 packet has time for.
func FlowHash(service Key, client netip.AddrPort, servicePort uint16) uint64 {
	var buffer [19]byte
	message := append(buffer[:0], client.Addr().Unmap().AsSlice()...)
	message = binary.BigEndian.AppendUint16(message, client.Port())
	message = append(message, byte(servicePort))
	return siphash.Sum13(service.K0, service.K1, message)
}

// Encode returns the cookie of a server id for a flow. bits is the width of the cookie (8-16), epoch that of the key under which
// hash was made; only its parity is carried. An id that does not fit bits-1 bits is cut off.
func Encode(bits uint8, epoch uint32, id uint16, hash uint64) uint16 {
	mask := idMask(bits)
	return uint16(epoch&1)<<(bits-1) | (id^uint16(hash))&mask
}

// Decode returns the id that a timestamp's low bits carry. The caller picks the key for hash by EpochBit, and decides whether a
// server has that id: every value decodes to some id.
func Decode(bits uint8, timestamp uint32, hash uint64) (id uint16) {
	return (uint16(timestamp) ^ uint16(hash)) & idMask(bits)
}

// Reader returns what reads the id of a server from the timestamps that it sends to a client in a connection to one of the service's ports at vip.
// known is false where no key of that epoch is. A table's index and node, which may stand above the id, are left out.
func Reader(keys *model.Keys, s *model.Service, vip netip.Addr) func(client netip.AddrPort, port uint16, timestamp uint32) (id uint16, known bool) {
	byParity := map[uint32]Key{}
	for epoch, key := range keys.Cookie {
		byParity[epoch&1] = ServiceKey(key, vip, s.Protocol)
	}
	bits, ids := s.CookieBits, uint16(1)<<s.IDBits()-1
	return func(client netip.AddrPort, port uint16, timestamp uint32) (uint16, bool) {
		key, known := byParity[EpochBit(bits, timestamp)]
		if !known {
			return 0, false
		}
		return Decode(bits, timestamp, FlowHash(key, client, port)) & ids, true
	}
}

// EpochBit returns the parity of the epoch whose key made the cookie in a timestamp's low bits.
func EpochBit(bits uint8, timestamp uint32) uint32 { return timestamp >> (bits - 1) & 1 }

// Slot places a flow without a cookie into a table: the high half of the placement hash, scaled to the number of slots without
// division (Lemire's multiply-shift).
func Slot(placementHash uint64, tableSlots uint32) uint32 {
	return uint32((placementHash >> 32) * uint64(tableSlots) >> 32)
}

func idMask(bits uint8) uint16 { return uint16(1)<<(bits-1) - 1 }

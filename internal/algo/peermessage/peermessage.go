// Package peermessage writes and reads what load balancers say to each other about a connection, with the packet that asks for it behind: Anolis
// ("Anolis: A Scalable, Fault-Tolerant Load Balancer for Stateful Network Functions", 4.3.1) in the private data of GUE
// (draft-ietf-intarea-gue). bpf/lb/packet/peer_message.h does the same; docs/design/connection.md has an example.
package peermessage

import (
	"encoding/binary"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/siphash"
)

// Port is that of GUE.
const Port = 6080

// Length of a message, in bytes; and of the GUE header in front of it.
const (
	Length    = 24
	GUELength = 4
)

// Kind is what a message is.
type Kind uint8

// All kinds of message.
const (
	WhoOwns Kind = iota + 1 // forwarder to tail
	Write                   // down the chain, from the head
	Owns                    // tail to forwarder
	Ping                    // no packet behind; answered by Pong to the port that it came from
	Pong
)

// Flags of a message.
const (
	parity   = 1  // of the epoch of the key that it is authenticated with
	New      = 2  // an entry was made for this packet
	Lookup   = 4  // makes no entry
	Outbound = 8  // the packet is from a network function: its connection is seen the other way round
	Known    = 16 // the owner is whose it is, and not proposed
	Recorded = 32 // what is proposed is whose it is, by the forwarder's own record
)

// privatePeer is the type of our private data.
const privatePeer = 2

// Message is one. The zero value is none.
type Message struct {
	Kind      Kind
	Flags     uint8
	Hops      uint8
	Forwarder uint16 // node that has the packet's answer to come; of Ping and Pong: the one that asks
	Last      uint16 // of Write: node of the chain that sent it, 0: nobody. Of Pong: who answers
	Owner     uint16 // ids of servers
	Proposed  uint16
	Chain     uint32 // version since which the connection's chain is what it is
}

// Key is a SipHash key as its two little-endian halves, and the epoch that it is of.
type Key struct {
	K0, K1 uint64
	Epoch  uint32
}

// Append appends a GUE header and the message to text, for the node `to` and about the connection of a key (FlowKey; 0: none).
func (m *Message) Append(text []byte, key Key, connection uint64, to uint16, ipv6 bool) []byte {
	protocol := byte(4)
	if ipv6 {
		protocol = 41
	}
	text = append(text, Length/4, protocol, 0, 0)
	at := len(text)
	text = append(text, privatePeer, byte(m.Kind), m.Flags&^parity|byte(key.Epoch&1), m.Hops)
	for _, field := range [...]uint16{m.Forwarder, m.Last, m.Owner, m.Proposed} {
		text = binary.BigEndian.AppendUint16(text, field)
	}
	text = binary.BigEndian.AppendUint32(text, m.Chain)
	return binary.LittleEndian.AppendUint64(text, mac(text[at:], key, connection, to))
}

// mac is of the fields of a message, of its connection and of its receiver.
func mac(fields []byte, key Key, connection uint64, to uint16) uint64 {
	text := append(make([]byte, 0, 26), fields[:16]...)
	text = binary.LittleEndian.AppendUint64(text, connection)
	return siphash.Sum24(key.K0, key.K1, binary.LittleEndian.AppendUint16(text, to))
}

// Parse reads a GUE header and a message. ok is false where they are none of ours.
func Parse(text []byte) (m Message, ok bool) {
	if len(text) < GUELength+Length || text[0] != Length/4 || text[1] != 4 && text[1] != 41 || text[2]|text[3] != 0 || text[4] != privatePeer {
		return m, false
	}
	b := text[GUELength:]
	return Message{Kind: Kind(b[1]), Flags: b[2] &^ parity, Hops: b[3], Forwarder: binary.BigEndian.Uint16(b[4:]), Last: binary.BigEndian.Uint16(b[6:]),
		Owner: binary.BigEndian.Uint16(b[8:]), Proposed: binary.BigEndian.Uint16(b[10:]), Chain: binary.BigEndian.Uint32(b[12:])}, true
}

// IsGenuine reports whether a node of the fleet has sent the message to the node `to`, about that connection. text is what Parse has read; key
// returns that of a parity, false: there is none.
func IsGenuine(text []byte, key func(parity uint32) (Key, bool), connection uint64, to uint16) bool {
	b := text[GUELength:]
	k, known := key(uint32(b[2] & parity))
	return known && binary.LittleEndian.Uint64(b[16:]) == mac(b, k, connection, to)
}

// FlowKey is the key of a connection in the tables of replicas: SipHash-1-3 over the addresses and ports of client and service, and the protocol. It is
// 2 or above.
func FlowKey(k0, k1 uint64, client, service netip.AddrPort, protocol uint8) uint64 {
	text := append(client.Addr().Unmap().AsSlice(), service.Addr().Unmap().AsSlice()...)
	text = binary.BigEndian.AppendUint16(text, client.Port())
	text = append(binary.BigEndian.AppendUint16(text, service.Port()), protocol)
	if key := siphash.Sum13(k0, k1, text); key > 1 {
		return key
	}
	return siphash.Sum13(k0, k1, text) + 2
}

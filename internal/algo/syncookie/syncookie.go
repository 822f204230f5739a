// Package syncookie computes the sequence number and the timestamp with which a load balancer answers the SYN of a service with `session: tls`: it remembers
// nothing, and any load balancer and the server that is chosen later can tell that the client has answered, and with which options (Yuz IV-B; RFC 4987 3.6).
// bpf/wire/syn_cookie.h does the same.
//
//	sequence number = MAC + the client's sequence number (20 bits) | period (3) | MSS (3) | ECN | SACK | window scale (4)
//	timestamp       = hidden server id | cookie of id 0
//
// The client's sequence number is added, not hashed: of all segments within 2^20 bytes only the first is ever good. With a hash of it, one in a million of
// the others were, and began their connections with bytes from the middle.
//
// The timestamp is the ordinary one (package cookie) of a connection whose server is not known: in the place of the clock it has the server that the
// connection gets if its ClientHello names none. Servers go on from there, so that no timestamp ever steps back.
package syncookie

import (
	"encoding/binary"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/siphash"
)

// Options of TCP that a SYN has told, as far as a cookie keeps them.
type Options struct {
	MSS         uint16 // one of those of MSS; what was told is rounded down
	WindowScale uint8  // 0 to 14; NoWindowScale: none was told
	SACK, ECN   bool
}

// NoWindowScale says that windows are as they are.
const NoWindowScale = 15

// MSS are the maximum segment sizes that a cookie can keep: of IPv6's and IPv4's least MTU, of tunnels, of Ethernet, and of its jumbo frames.
var MSS = [8]uint16{536, 1220, 1300, 1360, 1400, 1440, 1460, 8960}

// Implementation constants.
const (
	lowBits      = 12
	periodShift  = 9
	mssShift     = 6
	ecn          = 1 << 5
	sack         = 1 << 4
	periodMask   = 7
	periodsOld   = 4 // how old a cookie may be
	periodsAhead = 1 // how far the clock of who made it may be ahead

	// PeriodSeconds is the unit of a cookie's age: it is good for 128 to 160 seconds, and clocks may differ by 32.
	PeriodSeconds = 32
)

// encode returns the low bits of a sequence number.
func (o Options) encode(period uint32) uint32 {
	low := period&periodMask<<periodShift | uint32(min(o.WindowScale, NoWindowScale))
	for i, mss := range MSS {
		if o.MSS >= mss {
			low = low&^(7<<mssShift) | uint32(i)<<mssShift
		}
	}
	if o.SACK {
		low |= sack
	}
	if o.ECN {
		low |= ecn
	}
	return low
}

// Flow is what a cookie is good for.
type Flow struct {
	Client      netip.AddrPort // as on the wire: IPv4 or IPv6
	ServicePort uint16
	Sequence    uint32 // of the client's SYN
	Timestamp   uint32 // of our answer; 0: the client has sent none
}

func (f Flow) mac(key cookie.Key, low uint32) uint32 {
	var buffer [30]byte
	message := append(buffer[:0], f.Client.Addr().Unmap().AsSlice()...)
	message = binary.BigEndian.AppendUint16(message, f.Client.Port())
	message = binary.BigEndian.AppendUint16(message, f.ServicePort)
	message = binary.BigEndian.AppendUint32(message, 0) // until version 0.1: f.Sequence
	message = binary.BigEndian.AppendUint32(message, f.Timestamp)
	message = binary.BigEndian.AppendUint16(message, uint16(low))
	return uint32(siphash.Sum24(key.K0, key.K1, message)>>(32+lowBits)) + f.Sequence
}

// Make returns the sequence number of the answer to a SYN. seconds: of the time of day.
func Make(key cookie.Key, f Flow, o Options, seconds uint64) uint32 {
	low := o.encode(uint32(seconds / PeriodSeconds))
	return f.mac(key, low)<<lowBits | low
}

// Read returns the options of a cookie. ok: it was made for the flow, lately.
func Read(key cookie.Key, f Flow, number uint32, seconds uint64) (o Options, ok bool) {
	low := number & (1<<lowBits - 1)
	age := (uint32(seconds/PeriodSeconds) - low>>periodShift) & periodMask
	if f.mac(key, low)<<lowBits|low != number || age > periodsOld && age <= periodMask-periodsAhead {
		return o, false
	}
	return Options{MSS[low>>mssShift&7], uint8(low & 15), low&sack != 0, low&ecn != 0}, true
}

// hiddenShift is where in a flow's hash the bits are that hide a server: those of its cookie are the lowest.
const hiddenShift = 32

// Timestamp returns the timestamp of the answer: fallback is the server that the connection gets if its ClientHello names none. bits and epoch are those of
// the service's cookies, hash that of the flow. Never 0.
func Timestamp(bits uint8, epoch uint32, fallback uint16, hash uint64) uint32 {
	hidden := (uint32(fallback) ^ uint32(hash>>hiddenShift)) << bits
	if wire := hidden | uint32(cookie.Encode(bits, epoch, 0, hash)); wire != 0 {
		return wire
	}
	return 1 << bits // names another server in one of 2^32 handshakes
}

// Fallback returns the server that such a timestamp names; ids have bits-1 bits.
func Fallback(bits uint8, timestamp uint32, hash uint64) uint16 {
	return uint16((timestamp>>bits ^ uint32(hash>>hiddenShift)) & (1<<(bits-1) - 1))
}

// Frames for the comparison of the fast path with the long way.
package lb

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// anyFastFrame is a frame that most probably has a usual shape, or lacks one or two things for it.
func anyFastFrame(w *world, random *rand.Rand) (frame []byte, name string) {
	s := &w.want.Services[random.IntN(len(w.want.Services))]
	for strings.HasSuffix(s.Name, "other") { // see goesFast
		s = &w.want.Services[random.IntN(len(w.want.Services))]
	}
	client, tcp := netip.AddrFrom4([4]byte{203, 0, 113, byte(random.IntN(256))}), 34
	vip := s.VIPs()[random.IntN(1+len(s.MoreVIPs))]
	if vip.Is6() {
		client, tcp = netip.AddrFrom16([16]byte{0x20, 1, 7: byte(random.IntN(256)), 15: byte(random.IntN(256))}), 54
	}
	from := flow{netip.AddrPortFrom(client, uint16(random.Uint32())), netip.AddrPortFrom(vip, s.Ports[random.IntN(len(s.Ports))])}
	if s.Protocol == model.ProtocolUDP && s.Affinity != model.AffinityQUIC {
		return plainDatagram(random, from, tcp), s.Name
	}
	if s.Affinity == model.AffinityQUIC {
		return anyDatagram(w, random, from, s, tcp), s.Name
	}
	id, epoch := s.Servers[random.IntN(len(s.Servers))].ID, 1+random.Uint32N(2)
	if random.IntN(8) == 0 {
		id = uint16(random.Uint32N(1 << 15))
	}
	flags, options := []byte{ack, psh | ack, ack | 32, 0}[random.IntN(4)], timestamps(random.Uint32(), w.cookieFor(s.Name, from, id, epoch))
	if s.Affinity == model.AffinityHash && random.IntN(2) == 0 {
		flags, options = byte(random.Uint32()), make([]byte, 4*random.IntN(10))
	}
	if random.IntN(4) == 0 {
		flags, options = syn, anySYNOptions(random)
	} else if random.IntN(3) == 0 {
		flags = []byte{ack, psh | ack, ack | fin, ack | rst, rst}[random.IntN(5)]
		options = [][]byte{nil, {1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2}, slices.Concat(options, []byte{1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2}), options}[random.IntN(4)]
	}
	frame = from.frame(from.tcp(flags, options, make([]byte, random.IntN(80))))
	length, protocol := 16, 23
	if tcp == 34 {
		frame[15] = byte(random.Uint32()) // type of service
		frame[22] = byte(random.Uint32()) // time to live
		frame[20] = byte(random.IntN(2)) << 6
	} else {
		length, protocol = 18, 20
		binary.BigEndian.PutUint32(frame[14:], 6<<28|random.Uint32()>>4) // traffic class, flow label
		frame[21] = byte(random.Uint32())
	}
	spoils := []func(){
		func() { frame[random.IntN(14)] ^= 1 << random.IntN(8) },                           // the way to us
		func() { frame[14] ^= 1 << random.IntN(8) },                                        // IP options
		func() { frame[20+random.IntN(2)] ^= 1 << random.IntN(8) },                         // fragments
		func() { frame[protocol] = []byte{17, 1, 4, 44}[random.IntN(4)] },                  // another protocol
		func() { binary.BigEndian.PutUint16(frame[length:], uint16(random.Uint32N(200))) }, // another length
		func() { frame[length] = 0xff },                                                    // longer than is possible
		func() { frame[tcp-4+random.IntN(4)] ^= 1 << random.IntN(8) },                      // another address
		func() { frame[tcp+12] = byte(random.Uint32()) },                                   // length of the TCP header
		func() { frame[tcp+13] = byte(random.Uint32()) },                                   // flags
		func() { frame[tcp+20+random.IntN(4)] ^= 1 << random.IntN(8) },                     // options
		func() { binary.BigEndian.PutUint32(frame[tcp+28:], 0) },                           // no echo
		func() { frame[tcp+28+random.IntN(4)] ^= 1 << random.IntN(8) },                     // a bad cookie
		func() { frame[tcp+2+random.IntN(2)] ^= 1 << random.IntN(8) },                      // another port
		func() { frame = frame[:14+random.IntN(len(frame)-14)] },                           // cut short
		func() { frame = append(frame, make([]byte, random.IntN(20))...) },                 // padding
		func() { frame = slices.Insert(frame, 12, 0x81, 0, 0, 9) },                         // VLAN
	}
	if random.IntN(2) == 0 && len(frame) > tcp+32 {
		spoils[random.IntN(len(spoils))]()
	}
	return frame, s.Name
}

// plainDatagram is one of any length, or most of one.
func plainDatagram(random *rand.Rand, from flow, udp int) []byte {
	frame := from.datagram(make([]byte, random.IntN(80)))
	spoils := []func(){
		func() { frame[random.IntN(udp)] ^= 1 << random.IntN(8) },
		func() { frame[udp+random.IntN(8)] ^= 1 << random.IntN(8) },
		func() { frame[udp+6], frame[udp+7] = 0, 0 }, // no checksum
		func() { frame = frame[:14+random.IntN(len(frame)-14)] },
		func() { frame = append(frame, make([]byte, random.IntN(20))...) },
		func() { frame = slices.Insert(frame, 12, 0x81, 0, 0, 9) },
	}
	if random.IntN(2) == 0 {
		spoils[random.IntN(len(spoils))]()
	}
	return frame
}

// anyDatagram is a packet of QUIC, or most of one.
func anyDatagram(w *world, random *rand.Rand, from flow, s *plan.Service, udp int) []byte {
	server := []uint64{0, 4}[random.IntN(2)]
	if random.IntN(4) > 0 {
		server = uint64(s.Servers[random.IntN(len(s.Servers))].ID)
	}
	id := w.idOf(s.Name, server, []uint32{2, 2, 2, 1, 1, 3}[random.IntN(6)], byte(random.Uint32()))
	datagram := slices.Concat([]byte{byte(random.Uint32N(128))}, id, make([]byte, 10+random.IntN(60)))
	if random.IntN(3) == 0 { // of a first flight, or later
		drawn := []int{8, 8, 8, 9, 5, 17, 20, 24}[random.IntN(8)]
		datagram = slices.Concat([]byte{0xc0, 0, 0, 0, 1, byte(drawn)}, id, id, make([]byte, 10+random.IntN(60)))
		binary.BigEndian.PutUint32(datagram[12:], random.Uint32())
	}
	frame := from.datagram(datagram)
	spoils := []func(){
		func() { frame[random.IntN(udp)] ^= 1 << random.IntN(8) },
		func() { frame[udp+2+random.IntN(4)] ^= 1 << random.IntN(8) }, // port, length
		func() { frame[udp+9] = byte(random.Uint32()) },               // config
		func() { frame[udp+10+random.IntN(8)] ^= 1 << random.IntN(8) },
		func() { frame[udp+8] ^= 0x80 },
		func() { frame = frame[:14+random.IntN(len(frame)-14)] },
		func() { frame = append(frame, make([]byte, random.IntN(20))...) },
		func() { frame = slices.Insert(frame, 12, 0x81, 0, 0, 9) },
	}
	if random.IntN(2) == 0 {
		spoils[random.IntN(len(spoils))]()
	}
	return frame
}

// anySYNOptions are in an order that some stack has, with a timestamp or, now and then, without.
func anySYNOptions(random *rand.Rand) []byte {
	orders := [][]byte{synOptions(), {2, 4, 5, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2}, {2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2, 8, 10, 0, 1, 2, 3, 0, 0, 0, 0}, {2, 4, 5, 0xb4, 1, 1, 8, 10, 0, 1, 2, 3, 0, 0, 0, 0},
		timestamps(random.Uint32(), 0), {2, 4, 5, 0xb4, 4, 2, 1, 3, 3, 7}, nil}
	return orders[random.IntN(len(orders))]
}

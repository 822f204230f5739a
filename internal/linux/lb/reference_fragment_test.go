// Reference of bpf/lb/send/fragment.h: packets that are too big for the path to their server and have no Don't Fragment.
package lb

import (
	"encoding/binary"
	"slices"

	"github.com/ballast-lb/ballast/internal/plan"
)

// goesInFragments reports whether a packet may be cut to the MTU.
func goesInFragments(p *refPacket, d refDecision, mtu int) bool {
	data := (mtu - 20) / 8 * 8
	return p.mayFragment && p.protocol != 1 && (len(d.stops) == 0 || p.fragment != whole) && p.length <= 9216 && data >= 48 && p.length-20 <= 8*data
}

// order is what XDP tells lb_release of a frame that goes in fragments.
type order struct {
	number, id uint16
	front      int // bytes before the packet's own IP header
}

func readOrder(frame []byte) order {
	return order{binary.NativeEndian.Uint16(frame[6:]), binary.NativeEndian.Uint16(frame[8:]), int(binary.NativeEndian.Uint16(frame[10:]))}
}

// undone is the frame as it would go to the server by the path if it did fit.
func (o order) undone(frame []byte, path plan.Path) []byte {
	frame = slices.Clone(frame)
	copy(frame[6:], path.SourceMAC[:])
	kind := uint16(0x8100)
	if path.VLAN == 0 {
		kind = uint16(etherType(frame[14]>>4 == 6))
	}
	binary.BigEndian.PutUint16(frame[12:], kind)
	return frame
}

// cut is RFC 791's fragmentation of an IPv4 packet without options: what lies behind each of its fragments' front, of which all have the same.
func cut(ip []byte, mtu int) (list [][]byte) {
	word, payload := binary.BigEndian.Uint16(ip[6:]), ip[20:binary.BigEndian.Uint16(ip[2:])]
	for at, data := 0, (mtu-20)/8*8; at < len(payload); at += data {
		piece := slices.Concat(ip[:20], payload[at:min(len(payload), at+data)])
		flags := word + uint16(at/8)
		if at+data < len(payload) {
			flags |= 0x2000
		}
		binary.BigEndian.PutUint16(piece[2:], uint16(len(piece)))
		binary.BigEndian.PutUint16(piece[6:], flags)
		setIPv4Checksum(piece)
		list = append(list, piece)
	}
	return list
}

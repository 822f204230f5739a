// Reference of bpf/lb/send/encapsulate.h: outer headers.
package lb

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/algo/pathid"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// stopsLength is the length of stops in a GUE header, which has room for two at least.
func stopsLength(count int, ipv6 bool) int {
	if ipv6 {
		return 4 + max(2, count)*16
	}
	return 4 + max(2, count)*4
}

// hasSegments reports whether stops travel in a segment routing header: of IPv6 addresses only.
func hasSegments(s *plan.Service, server *model.Server, stops []uint16) bool {
	return len(stops) > 0 && s.Forward == model.ForwardSRv6 && server.Address.Is6()
}

func outerLength(s *plan.Service, server *model.Server, stops []uint16) int {
	ip := 20
	if server.Address.Is6() {
		ip = 40
	}
	switch {
	case hasSegments(s, server, stops):
		return ip + 8 + 16*(1+len(stops))
	case len(stops) > 0:
		return ip + 8 + 4 + stopsLength(len(stops), server.Address.Is6())
	case s.Forward == model.ForwardGUE:
		return ip + 8 + 4
	case s.Forward == model.ForwardIPIP || s.Forward == model.ForwardSRv6:
		return ip
	}
	return 0
}

func (r *reference) outerIP(path plan.Path, server *model.Server, protocol layers.IPProtocol, tos byte, inner []byte, entropy uint16) []byte {
	secret := pathid.Secret(r.want.Keys.Placement, server.Address)
	if server.Address.Is6() {
		return serialize(&layers.IPv6{Version: 6, TrafficClass: tos, FlowLabel: pathid.Label(secret, entropy), HopLimit: 64, NextHeader: protocol,
			SrcIP: path.Source.AsSlice(), DstIP: server.Address.AsSlice()}, gopacket.Payload(inner))
	}
	return serialize(&layers.IPv4{Version: 4, TOS: tos, TTL: 64, Id: pathid.Identification(secret), Protocol: protocol, Flags: layers.IPv4DontFragment,
		SrcIP: path.Source.AsSlice(), DstIP: server.Address.AsSlice()}, gopacket.Payload(inner))
}

// srv6 is what follows the outer IPv6 header: the segment routing header of RFC 8754 2, and inner.
func (r *reference) srv6(s *plan.Service, server *model.Server, stops []uint16, next byte, protocol byte, inner []byte) []byte {
	last := byte(len(stops))
	out := []byte{protocol, 2 * (last + 1), 4, last - next, last, 0, 0, 0}
	var visited []netip.Addr // in their order
	for _, id := range append([]uint16{server.ID}, stops...) {
		if stop := serverIn(s, id); stop != nil && stop.Address.Is6() {
			server = stop
		}
		visited = append(visited, server.Address)
	}
	for _, address := range slices.Backward(visited) {
		out = append(out, address.AsSlice()...)
	}
	return append(out, inner...)
}

// gue is the UDP datagram that carries inner, with the further stops. One that is not in the first server's family repeats the one before.
func (r *reference) gue(s *plan.Service, server *model.Server, stops []uint16, next byte, protocol byte, inner []byte, entropy uint16) []byte {
	var private []byte
	if len(stops) > 0 {
		var addresses []byte
		last := server.Address
		for _, id := range stops {
			if stop := serverIn(s, id); stop != nil && stop.Address.Is6() == server.Address.Is6() {
				last = stop.Address
			}
			addresses = append(addresses, last.AsSlice()...)
		}
		private = make([]byte, stopsLength(len(stops), server.Address.Is6()))
		copy(private, []byte{1, next, byte(len(stops)), 0})
		copy(private[4:], addresses)
	}
	out := binary.BigEndian.AppendUint16(nil, 0xc000|entropy&0x3fff)
	out = binary.BigEndian.AppendUint16(out, 6080)
	out = binary.BigEndian.AppendUint16(out, uint16(8+4+len(private)+len(inner)))
	out = append(out, 0, 0, byte(len(private)/4), protocol, 0, 0)
	return slices.Concat(out, private, inner)
}

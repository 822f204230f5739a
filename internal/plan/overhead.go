package plan

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/model"
)

// Specification constants: lengths of headers (RFC 791, 8200, 768, 9293; GUE, docs/design/connection.md).
const (
	ipv4Header  = 20
	ipv6Header  = 40
	udpHeader   = 8
	tcpHeader   = 20
	gueHeader   = 4
	stopsHeader = 4 // of the stops of the second chance
	srhHeader   = 8 // RFC 8754
	leastStops  = 2 // that there is room for
	mostStops   = 5
)

// ClientHeaders returns how many bytes a client's TCP segments of a family have before the data, without options.
func ClientHeaders(ipv6 bool) int {
	if ipv6 {
		return ipv6Header + tcpHeader
	}
	return ipv4Header + tcpHeader
}

// PeerOverhead returns how many bytes a load balancer puts around a packet that it asks another one about.
func PeerOverhead(other netip.Addr) int {
	if other.Is6() {
		return ipv6Header + udpHeader + gueHeader + peermessage.Length
	}
	return ipv4Header + udpHeader + gueHeader + peermessage.Length
}

// Overhead returns the most bytes that a load balancer puts around a packet to a server of this address.
func Overhead(s *model.Service, server netip.Addr) int {
	outer, address := ipv4Header, 4
	if server.Is6() {
		outer, address = ipv6Header, 16
	}
	gue, stops := outer+udpHeader+gueHeader, leastStops // the two owners before
	if s.Dispatch == model.DispatchChoices {
		stops = max(stops, min(mostStops, int(s.Choices.Candidates)*int(s.Choices.History)-1))
	}
	switch {
	case s.Fallback == model.FallbackSecondChance && s.Forward == model.ForwardSRv6:
		return outer + srhHeader + (1+stops)*address
	case s.Fallback == model.FallbackSecondChance && s.Return == model.ReturnDirect:
		return gue + stopsHeader + stops*address
	case s.Forward == model.ForwardGUE:
		return gue
	case s.Forward == model.ForwardIPIP || s.Forward == model.ForwardSRv6:
		return outer
	}
	return 0
}

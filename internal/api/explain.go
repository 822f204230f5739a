// A packet that somebody asks about.
package api

import (
	"context"
	"fmt"
	"net/netip"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// MadeUpPayload is how many bytes a made-up packet carries at most.
const MadeUpPayload = 1460

// MadeUp is a packet that no client has sent. Client and VIP are of one family.
type MadeUp struct {
	Client, VIP     netip.AddrPort
	Protocol        model.Protocol
	Flags           byte // of TCP
	Timestamps      bool // TCP: there is the option
	Timestamp, Echo uint32
	Payload         []byte
}

// MadeUpFromProto refuses what cannot be a packet.
func MadeUpFromProto(m *ballastv1.MadeUpPacket) (p MadeUp, err error) {
	if p.Client, err = endpoint("client", m.GetClient()); err != nil {
		return p, err
	}
	if p.VIP, err = endpoint("VIP", m.GetVip()); err != nil {
		return p, err
	}
	if p.Client.Addr().Is4() != p.VIP.Addr().Is4() {
		return p, BadRequest("%s and %s are of two families: no packet goes from one to the other", p.Client, p.VIP)
	}
	switch m.Protocol {
	case "", model.ProtocolTCP.String():
		p.Protocol = model.ProtocolTCP
	case model.ProtocolUDP.String():
		p.Protocol = model.ProtocolUDP
	default:
		return p, BadRequest("protocol %q: use tcp or udp", m.Protocol)
	}
	if p.Protocol == model.ProtocolUDP && (m.TcpFlags != 0 || m.Tsval != nil || m.Tsecr != nil) {
		return p, BadRequest("a UDP packet has neither flags nor timestamps: leave them out")
	}
	if m.TcpFlags > 0xff {
		return p, BadRequest("tcp_flags %#x: they are 8 bits", m.TcpFlags)
	}
	if len(m.Payload) > MadeUpPayload {
		return p, BadRequest("a payload of %d bytes: use %d or less", len(m.Payload), MadeUpPayload)
	}
	p.Flags, p.Timestamps, p.Timestamp, p.Echo, p.Payload = byte(m.TcpFlags), m.Tsval != nil || m.Tsecr != nil, m.GetTsval(), m.GetTsecr(), m.Payload
	return p, nil
}

func endpoint(name, text string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		return at, BadRequest("%s %q: give ADDRESS:PORT, of IPv6 [ADDRESS]:PORT", name, text)
	}
	if at.Addr().Zone() != "" {
		return at, BadRequest("%s %s: leave out the zone", name, text)
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
}

// ListExplanations asks load balancers what would become of a packet.
func (f *fleetAPI) ListExplanations(ctx context.Context, r *ballastv1.ListExplanationsRequest) (*ballastv1.ListExplanationsResponse, error) {
	if _, err := MadeUpFromProto(r.Packet); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("packet: %w", err))
	}
	explanations, err := f.desired.Explain(ctx, r.Packet)
	return &ballastv1.ListExplanationsResponse{Explanations: explanations}, refusal(err)
}

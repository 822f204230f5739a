// Reference of bpf/lb/walk/tier.h: two tiers of load balancers.
package lb

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// roomForNodes is what a node of the second tier may put around a packet that the first sends to it; 0: this is not the first tier.
func (r *reference) roomForNodes(s *plan.Service) (most int) {
	if !s.SendsToNodes(r.want.Tier.Tier) {
		return 0
	}
	configured := service(&r.want, s.Name)
	for i := range configured.Servers {
		var stops []uint16
		if configured.Fallback == model.FallbackSecondChance {
			stops = []uint16{1}
		}
		most = max(most, outerLength(configured, &configured.Servers[i], stops))
	}
	return most
}

// refTunnel is the outside of a frame that carries a packet.
type refTunnel struct {
	link        []byte // Ethernet header, but for its type, with its tag
	destination netip.Addr
	tos         byte
	inner       []byte
	ipv6        bool // the inner packet
}

// takeOff is what a node of the second tier makes of a frame before it looks for a service. Frames that are none of its tunnels stay.
func (r *reference) takeOff(frame []byte) ([]byte, lbVerdict) {
	t, malformed := parseTunnel(frame)
	switch {
	case !r.tunnel.IsValid() || t == nil || t.destination != r.tunnel:
		return frame, lbVerdictVERDICT_CONTINUE
	case malformed:
		return frame, lbVerdictDROPPED_MALFORMED
	case !r.isForVIP(t):
		return frame, lbVerdictVERDICT_CONTINUE
	}
	inner := slices.Clone(t.inner)
	if t.tos&3 == 3 && !markCongestion(inner, t.ipv6) {
		return frame, lbVerdictDROPPED_CONGESTED
	}
	return slices.Concat(t.link, binary.BigEndian.AppendUint16(nil, uint16(etherType(t.ipv6))), inner), lbVerdictVERDICT_CONTINUE
}

func (r *reference) isForVIP(t *refTunnel) bool {
	var address netip.Addr
	switch {
	case t.ipv6 && len(t.inner) >= 40:
		address = addressIn(t.inner[24:40])
	case !t.ipv6 && len(t.inner) >= 20:
		address = addressIn(t.inner[16:20])
	}
	_, isVIP := r.vipService(address, 0, 0)
	return isVIP
}

// parseTunnel reads IP in IP and GUE; nil: neither.
func parseTunnel(frame []byte) (t *refTunnel, malformed bool) {
	if len(frame) < 18 {
		return nil, false
	}
	t = &refTunnel{}
	l3, kind := 14, binary.BigEndian.Uint16(frame[12:])
	if kind == 0x8100 {
		l3, kind = 18, binary.BigEndian.Uint16(frame[16:])
	}
	t.link = frame[:l3-2]
	ip, protocol := frame[l3:], byte(0)
	switch {
	case kind == 0x0800 && len(ip) >= 20 && ip[0] == 0x45 && binary.BigEndian.Uint16(ip[6:])&0x3fff == 0:
		t.destination, t.tos, protocol, ip = addressIn(ip[16:20]), ip[1], ip[9], ip[20:]
	case kind == 0x86dd && len(ip) >= 40 && ip[0]>>4 == 6:
		t.destination, t.tos, protocol, ip = addressIn(ip[24:40]), ip[0]<<4|ip[1]>>4, ip[6], ip[40:]
	default:
		return nil, false
	}
	if protocol == 17 {
		if len(ip) < 8 || binary.BigEndian.Uint16(ip[2:]) != 6080 {
			return nil, false
		}
		if protocol, ip = parseGUE(ip[8:], t.destination.Is6()); ip == nil {
			return t, true
		}
	}
	t.inner, t.ipv6 = ip, protocol == 41
	if protocol != 4 && protocol != 41 {
		return nil, false
	}
	return t, false
}

// parseGUE returns what a GUE header carries; nil: it is not one that we know. Stops are left out: what has come here stays.
func parseGUE(b []byte, ipv6 bool) (protocol byte, inner []byte) {
	if len(b) < 4 || b[0]&0xe0 != 0 || b[1] != 4 && b[1] != 41 || b[2]|b[3] != 0 {
		return 0, nil
	}
	words := int(b[0] & 31)
	if words == 0 {
		return b[1], b[4:]
	}
	if len(b) < 8 || b[4] != 1 || b[6] > mostStops || 4*words != stopsLength(int(b[6]), ipv6) {
		return 0, nil
	}
	return b[1], b[min(4+4*words, len(b)):]
}

// markCongestion is RFC 6040 4.2 for congestion that was met outside. It reports whether the inner packet could be marked.
func markCongestion(ip []byte, ipv6 bool) bool {
	if ipv6 {
		if ip[1]>>4&3 == 0 {
			return false
		}
		ip[1] |= 3 << 4
		return true
	}
	if ip[1]&3 == 0 {
		return false
	}
	replaceBytes(ip[10:], ip[:2], []byte{ip[0], ip[1] | 3})
	return true
}

// asSteered is a service as this node steers it: one of the first tier takes the nodes of the second for its servers.
func (r *reference) asSteered(s plan.Service) plan.Service {
	if !s.SendsToNodes(r.want.Tier.Tier) {
		return s
	}
	s.Dispatch, s.Forward, s.Fallback = model.DispatchMaglev, model.ForwardIPIP, model.FallbackHash
	s.Servers, s.Removed, s.Down = nil, nil, nil
	for _, node := range r.want.Tier.Second {
		server := model.Server{Name: node.Name, ID: node.ID, Address: node.Address, State: node.State, Weight: 1}
		if r.want.Tier.Down[node.ID] {
			server.State = model.StateOff
		}
		s.Servers = append(s.Servers, server)
	}
	return s
}

// nodeOf is the node of the second tier that a cookie names; 0 and why not, when there is none.
func (r *reference) nodeOf(s *plan.Service, plain uint16) (id uint16, why lbVerdict) {
	node, _, _ := layoutOf(s).Split(plain)
	switch {
	case node == 0 && plain != 0:
		return 0, lbVerdictFORWARDED_NO_NODE
	case serverIn(s, node) == nil:
		return 0, lbVerdictFORWARDED_BAD_COOKIE
	}
	return node, lbVerdictFORWARDED_BY_COOKIE
}

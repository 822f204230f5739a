// Reference of bpf/lb/send/to_server.h: what leaves towards a server.
package lb

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/algo/pathid"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// expectSent is what must leave towards a server.
func (r *reference) expectSent(p *refPacket, s *plan.Service, d refDecision) expectation {
	e := expectation{verdict: d.verdict, service: s.Name, action: actionOf(d.verdict)}
	if len(d.ids) == 0 {
		return e
	}
	if d.learn != nil {
		e.learn = func(ids []uint16) {
			if ids == nil { // it was dropped on its way, and teaches all the same
				ids = d.ids
			}
			d.learn(ids)
		}
	}
	first, succeeds := targetIn(s, d.ids[0]), d.ids[0] >= firstPredecessor
	if succeeds {
		s = asPredecessorTakes(s)
	}
	path := r.want.Paths[first.Address]
	if path.Ifindex == 0 {
		e.verdict, e.action = lbVerdictDROPPED_NO_NEXT_HOP, xdpDrop
		return e
	}
	mtu := int(path.MTU) - max(outerLength(s, first, d.stops), r.roomForNodes(s))
	fits := p.length <= mtu || (p.v6() && p.length <= 1280)
	if !fits && !goesInFragments(p, d, mtu) {
		return r.expectTooBig(p, e, mtu)
	}
	if succeeds && r.goesRound(p, path) {
		e.verdict, e.action = lbVerdictDROPPED_PREDECESSOR_LOOP, xdpDrop
		return e
	}
	if succeeds {
		p = p.withFewHops()
	}
	if path.Ifindex != testIfindex {
		e.action = xdpRedirect
	}
	if s.Return == model.ReturnThrough && d.verdict == lbVerdictFORWARDED_BY_COOKIE && s.Affinity.Cookies() {
		_, _, echo := findTimestamp(p.options)
		restored, ok := r.restored[echo]
		if !ok {
			e.verdict, e.action = lbVerdictDROPPED_NO_CLOCK, xdpDrop
			return e
		}
		d.echo = &restored
	}
	if d.echo != nil {
		p = p.rewritten(func(option []byte) { binary.BigEndian.PutUint32(option[6:], *d.echo) })
	}
	if d.verdict == lbVerdictFORWARDED_STRIPPED {
		p = p.rewritten(func(option []byte) { copy(option, bytes.Repeat([]byte{1}, 10)) })
	}
	e.ids, e.stops = d.ids, d.stops
	e.frame = func(id uint16) []byte { return r.sentFrame(p, s, targetIn(s, id), d.stops, d.next) }
	if !fits {
		e.verdict, e.action = lbVerdictFORWARDED_IN_FRAGMENTS, xdpPass
		e.front = len(e.frame(d.ids[0])) - len(p.ip)
	}
	return e
}

// rewritten is the packet with its timestamp option changed and its checksum with it: one that was wrong stays wrong.
func (p *refPacket) rewritten(change func(option []byte)) *refPacket {
	q := *p
	q.ip = slices.Clone(p.ip)
	at := p.l4 + 20
	for q.ip[at] != 8 {
		at += max(1, int(q.ip[at+1])*min(1, int(q.ip[at]>>1)))
	}
	from, to := at-(at-p.l4)%2, at+10+(at-p.l4)%2 // whole words of the checksum
	changed := slices.Clone(q.ip[from:to])
	change(changed[at-from:][:10])
	replaceBytes(q.ip[p.l4+16:], q.ip[from:to], changed)
	return &q
}

func (p *refPacket) l2() []byte { return p.frame[:p.l3] }

func turned(l2 []byte) []byte {
	out := slices.Clone(l2)
	copy(out[0:6], l2[6:12])
	copy(out[6:12], l2[0:6])
	return out
}

// sentFrame is the frame that must reach a server.
func (r *reference) sentFrame(p *refPacket, s *plan.Service, server *model.Server, stops []uint16, next byte) []byte {
	path := r.want.Paths[server.Address]
	entropy := pathid.Entropy(netip.AddrPortFrom(p.source, p.sport), p.dport)
	inner, protocol, padding := p.ip[:p.length], layers.IPProtocolIPv4, p.ip[p.length:]
	if p.v6() {
		protocol = layers.IPProtocolIPv6
	}
	kind := etherType(p.v6())
	switch {
	case hasSegments(s, server, stops):
		inner = r.outerIP(path, server, layers.IPProtocolIPv6Routing, p.tos, r.srv6(s, server, stops, next, byte(protocol), inner), entropy)
		kind = layers.EthernetTypeIPv6
	case len(stops) > 0 || s.Forward == model.ForwardGUE:
		inner = r.gue(s, server, stops, next, byte(protocol), inner, entropy)
		protocol = layers.IPProtocolUDP
		fallthrough
	case s.Forward == model.ForwardIPIP || s.Forward == model.ForwardSRv6:
		inner = r.outerIP(path, server, protocol, p.tos, inner, entropy)
		kind = etherType(server.Address.Is6())
	case s.Forward == model.ForwardNAT && (p.protocol == 1 || p.protocol == 58):
		inner = nattedError(p, server)
	case s.Forward == model.ForwardNAT:
		inner = natted(p, server)
	}
	frame := append(slices.Clone(path.DestinationMAC[:]), path.SourceMAC[:]...)
	if path.VLAN != 0 {
		frame = binary.BigEndian.AppendUint16(append(frame, 0x81, 0), path.VLAN)
	}
	return slices.Concat(binary.BigEndian.AppendUint16(frame, uint16(kind)), inner, padding)
}

func etherType(ipv6 bool) layers.EthernetType {
	if ipv6 {
		return layers.EthernetTypeIPv6
	}
	return layers.EthernetTypeIPv4
}

// Reference of bpf/lb/walk/return.h: answers on their way to the client.
package lb

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// returner is the service by NAT and the server that a packet claims to be an answer of, by its source alone.
func (r *reference) returner(p *refPacket) (s *plan.Service, id uint16) {
	if p.fragment == laterFragment {
		known := r.fragments[refFragment{p.source, p.destination, p.fragmentID, p.protocol}]
		if s = r.steeredService(known.service); s == nil || s.Return != model.ReturnThrough {
			return nil, 0
		}
		return s, known.ids[0]
	}
	if isICMP(p) {
		quote := quoted(p)
		if quote == nil || quote.destination != p.destination {
			return nil, 0
		}
		return r.returner(quote)
	}
	for i := range r.steered {
		s := &r.steered[i]
		if s.Return != model.ReturnThrough || s.Forward != model.ForwardNAT || byte(s.Protocol) != p.protocol {
			continue
		}
		for _, server := range s.Servers {
			port := server.Port
			if port == 0 {
				port = s.Ports[0]
			}
			if server.Address == p.source && port == p.sport {
				return s, server.ID
			}
		}
	}
	return nil, 0
}

// expectOther is what must become of what is for no service: a server's answer by way of this node is made the service's. Nothing else comes of
// it: anybody may have sent it.
func (r *reference) expectOther(p *refPacket) expectation {
	s, id := r.returner(p)
	_, toVIP := r.vipService(p.destination, 0, 0)
	switch {
	case s == nil:
		return expectation{verdict: lbVerdictPASSED_NO_SERVICE, action: xdpPass}
	case p.destination == r.want.Paths[serverIn(s, id).Address].Source:
		return expectation{verdict: lbVerdictPASSED_PROBE, action: xdpPass}
	case toVIP:
		return expectation{verdict: lbVerdictPASSED_NO_SERVICE, action: xdpPass}
	}
	e := expectation{verdict: lbVerdictRETURNED_UNMARKED, service: s.Name, action: xdpPass}
	if p.fragment == firstFragment {
		r.fragments[refFragment{p.source, p.destination, p.fragmentID, p.protocol}] = refPlace{s.Name, []uint16{id}}
	}
	if isICMP(p) {
		e.frame = func(uint16) []byte { return slices.Concat(p.l2(), nattedErrorBack(p, s), p.ip[p.length:]) }
		return e
	}
	if search, value, _ := findTimestamp(p.options); search == optionFound {
		e.verdict = lbVerdictRETURNED
		hash := cookie.FlowHash(cookie.ServiceKey(r.want.Keys.Cookie[r.want.Keys.Current], s.VIP, s.Protocol), netip.AddrPortFrom(p.destination, p.dport), s.Ports[0])
		wire := value<<s.CookieBits | uint32(cookie.Encode(s.CookieBits, r.want.Keys.Current, id, hash))
		if wire == 0 {
			wire = 1 << s.CookieBits
		}
		p = p.rewritten(func(option []byte) { binary.BigEndian.PutUint32(option[2:], wire) })
	}
	e.frame = func(uint16) []byte { return slices.Concat(p.l2(), nattedBack(p, s), p.ip[p.length:]) }
	return e
}

func isICMP(p *refPacket) bool { return p.protocol == 1 || p.protocol == 58 }

// nattedErrorBack is an ICMP error as the client knows its packets: to the service's address and port. Only the server's own address is hidden.
func nattedErrorBack(p *refPacket, s *plan.Service) []byte {
	ip := slices.Clone(p.ip[:p.length])
	address, check, quote := s.VIP.AsSlice(), ip[p.l4+2:], ip[p.l4+8:]
	outer, inner, ports := ip[12:16], quote[16:20], quote[22:]
	outerCheck := ip[10:]
	if p.v6() {
		outer, inner, ports, outerCheck = ip[8:24], quote[24:40], quote[42:], check
	}
	if slices.Equal(outer, inner) {
		replaceBytes(outerCheck, outer, address)
	}
	if p.v6() {
		replaceBytes(check, inner, address)
	} else {
		replaced := slices.Clone(quote[10:12])
		replaceBytes(replaced, slices.Clone(inner), address)
		replaceBytes(check, inner, address)
		replaceBytes(check, quote[10:12], replaced)
	}
	replaceBytes(check, ports, binary.BigEndian.AppendUint16(nil, s.Ports[0]))
	return ip
}

// nattedBack is an answer with the service's address and port in place of the server's.
func nattedBack(p *refPacket, s *plan.Service) []byte {
	ip := slices.Clone(p.ip[:p.length])
	at, check := ip[12:16], []byte(nil)
	if p.v6() {
		at = ip[8:24]
	}
	if p.fragment != laterFragment {
		check = p.checksum(ip)
		replaceBytes(check, ip[p.l4:], binary.BigEndian.AppendUint16(nil, s.Ports[0]))
	}
	address := s.VIP.AsSlice()
	if !p.v6() {
		replaceBytes(ip[10:], slices.Clone(at), address)
	}
	replaceBytes(check, at, address)
	p.neverNone(check)
	return ip
}

package lb

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/algo/pathid"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// quoteLength is how much of a packet that is too big its sender gets back (bpf/send/answer.h).
const quoteLength = 128

// stopsLength is the length of the second chance's addresses in a GUE header.
func stopsLength(ipv6 bool) int {
	if ipv6 {
		return 4 + 2*16
	}
	return 4 + 2*4
}

// mayBeAnswered reports whether the source of a packet is one host, and another than this one.
func (w *world) mayBeAnswered(p *refPacket) bool {
	a := p.source
	_, isVIP := w.vipService(a, 0, 0)
	for _, prefix := range []string{"0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3", "::/96", "::ffff:0:0/96", "ff00::/8"} {
		if prefix := netip.MustParsePrefix(prefix); prefix.Addr().BitLen() == a.BitLen() && prefix.Masked().Addr() == netip.PrefixFrom(a, prefix.Bits()).Masked().Addr() {
			return false
		}
	}
	return !isVIP
}

// expectICMP is what must become of an ICMP message to a VIP.
func (w *world) expectICMP(p *refPacket) expectation {
	body := p.ip[p.l4:p.length]
	if p.fragment != whole {
		return expectation{verdict: lbVerdictPASSED_UNSUPPORTED, action: xdpPass}
	}
	echo, errors := byte(8), []byte{3, 11, 12}
	if p.v6() {
		echo, errors = 128, []byte{1, 2, 3, 4}
	}
	if body[0] == echo && body[1] == 0 {
		if !w.mayBeAnswered(p) {
			return expectation{verdict: lbVerdictDROPPED_IMPOSSIBLE_SOURCE, action: xdpDrop}
		}
		return expectation{verdict: lbVerdictANSWERED_ECHO, action: xdpTX, frame: func(uint16) []byte { return echoReply(p) }}
	}
	quote := parseQuote(p, p.ip[p.l4+8:])
	if !slices.Contains(errors, body[0]) || quote == nil {
		return expectation{verdict: lbVerdictPASSED_UNSUPPORTED, action: xdpPass}
	}
	s, _ := w.vipService(quote.destination, quote.dport, quote.protocol)
	if s == nil {
		return expectation{verdict: lbVerdictPASSED_NO_SERVICE, action: xdpPass}
	}
	d := w.ladder(s, quote, true)
	if d.verdict == lbVerdictFORWARDED_BY_COOKIE || d.verdict == lbVerdictFORWARDED_BY_LOCAL_TABLE {
		d.verdict = lbVerdictFORWARDED_ICMP_BY_COOKIE
	} else if len(d.ids) > 0 {
		d.verdict = lbVerdictFORWARDED_ICMP_BY_FALLBACK
	}
	return w.expectSent(p, s, d)
}

// parseQuote reads the packet that an ICMP error quotes, server to client, with the two sides swapped. nil: cannot be steered by.
func parseQuote(p *refPacket, b []byte) *refPacket {
	q := &refPacket{ip: b, flags: 0x10}
	switch {
	case p.v6() && len(b) >= 48 && b[0]>>4 == 6:
		q.source, q.destination, q.protocol, q.l4 = addressIn(b[24:40]), addressIn(b[8:24]), b[6], 40
	case !p.v6() && len(b) >= 28 && b[0] == 0x45 && binary.BigEndian.Uint16(b[6:])&0x1fff == 0:
		q.source, q.destination, q.protocol, q.l4 = addressIn(b[16:20]), addressIn(b[12:16]), b[9], 20
	default:
		return nil
	}
	if q.protocol != 6 && q.protocol != 17 {
		return nil
	}
	b = b[q.l4:]
	q.dport, q.sport = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	if q.protocol == 6 && len(b) >= 20 {
		switch header := int(b[12]>>4) * 4; {
		case header > len(b):
			q.options = []byte{8} // cut short: unreadable
		case header >= 20:
			q.options = b[20:header]
		}
	}
	return q
}

// expectSent is what must leave towards a server.
func (w *world) expectSent(p *refPacket, s *plan.Service, d refDecision) expectation {
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
	first := serverIn(s, d.ids[0])
	path := w.want.Paths[first.Address]
	if path.Ifindex == 0 {
		e.verdict, e.action = lbVerdictDROPPED_NO_NEXT_HOP, xdpDrop
		return e
	}
	if mtu := int(path.MTU) - max(outerLength(s, first, d.stops), w.roomForNodes(s)); p.length > mtu && !(p.v6() && p.length <= 1280) {
		return w.expectTooBig(p, e, mtu)
	}
	if path.Ifindex != testIfindex {
		e.action = xdpRedirect
	}
	if s.Return == model.ReturnThrough && d.verdict == lbVerdictFORWARDED_BY_COOKIE {
		_, _, echo := findTimestamp(p.options)
		restored, ok := w.restored[echo]
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
	e.frame = func(id uint16) []byte { return w.sentFrame(p, s, serverIn(s, id), d.stops) }
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

func outerLength(s *plan.Service, server *model.Server, stops []uint16) int {
	ip := 20
	if server.Address.Is6() {
		ip = 40
	}
	switch {
	case len(stops) > 0:
		return ip + 8 + 4 + stopsLength(server.Address.Is6())
	case s.Forward == model.ForwardGUE:
		return ip + 8 + 4
	case s.Forward == model.ForwardIPIP:
		return ip
	}
	return 0
}

func (w *world) expectTooBig(p *refPacket, e expectation, mtu int) expectation {
	if p.protocol == 1 || p.protocol == 58 || p.fragment == laterFragment || p.length < quoteLength {
		e.verdict, e.action = lbVerdictDROPPED_TOO_BIG_QUIETLY, xdpDrop
		return e
	}
	if !w.mayBeAnswered(p) {
		e.verdict, e.action = lbVerdictDROPPED_IMPOSSIBLE_SOURCE, xdpDrop
		return e
	}
	if p.v6() {
		mtu = max(mtu, 1280)
	}
	e.verdict, e.action = lbVerdictANSWERED_TOO_BIG, xdpTX
	e.frame = func(uint16) []byte { return tooBigReply(p, mtu) }
	return e
}

func (p *refPacket) l2() []byte { return p.frame[:p.l3] }

func turned(l2 []byte) []byte {
	out := slices.Clone(l2)
	copy(out[0:6], l2[6:12])
	copy(out[6:12], l2[0:6])
	return out
}

// echoReply is the request with both ends swapped and the type turned.
func echoReply(p *refPacket) []byte {
	ip := slices.Clone(p.ip)
	if p.v6() {
		copy(ip[8:24], p.ip[24:40])
		copy(ip[24:40], p.ip[8:24])
		ip[7] = 64
		replaceBytes(ip[p.l4+2:], ip[p.l4:], []byte{129, 0})
	} else {
		copy(ip[12:16], p.ip[16:20])
		copy(ip[16:20], p.ip[12:16])
		ip[8] = 64
		setIPv4Checksum(ip)
		replaceBytes(ip[p.l4+2:], ip[p.l4:], []byte{0, 0})
	}
	return append(turned(p.l2()), ip...)
}

// tooBigReply is what RFC 792 and RFC 4443 ask for, from the VIP.
func tooBigReply(p *refPacket, mtu int) []byte {
	quote := p.ip[:quoteLength]
	if p.v6() {
		ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolICMPv6, SrcIP: p.destination.AsSlice(), DstIP: p.source.AsSlice()}
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(2, 0)}
		mustSet(icmp.SetNetworkLayerForChecksum(ip))
		body := append(binary.BigEndian.AppendUint32(nil, uint32(mtu)), quote...)
		return append(turned(p.l2()), serialize(ip, icmp, gopacket.Payload(body))...)
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolICMPv4, SrcIP: p.destination.AsSlice(), DstIP: p.source.AsSlice()}
	icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4), Seq: uint16(mtu)}
	return append(turned(p.l2()), serialize(ip, icmp, gopacket.Payload(quote))...)
}

// sentFrame is the frame that must reach a server.
func (w *world) sentFrame(p *refPacket, s *plan.Service, server *model.Server, stops []uint16) []byte {
	path := w.want.Paths[server.Address]
	entropy := pathid.Entropy(netip.AddrPortFrom(p.source, p.sport), p.dport)
	inner, protocol, padding := p.ip[:p.length], layers.IPProtocolIPv4, p.ip[p.length:]
	if p.v6() {
		protocol = layers.IPProtocolIPv6
	}
	kind := etherType(p.v6())
	switch {
	case len(stops) > 0 || s.Forward == model.ForwardGUE:
		inner = w.gue(s, server, stops, byte(protocol), inner, entropy)
		protocol = layers.IPProtocolUDP
		fallthrough
	case s.Forward == model.ForwardIPIP:
		inner = w.outerIP(path, server, protocol, p.tos, inner, entropy)
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

func (w *world) outerIP(path plan.Path, server *model.Server, protocol layers.IPProtocol, tos byte, inner []byte, entropy uint16) []byte {
	secret := pathid.Secret(w.want.Keys.Placement, server.Address)
	if server.Address.Is6() {
		return serialize(&layers.IPv6{Version: 6, TrafficClass: tos, FlowLabel: pathid.Label(secret, entropy), HopLimit: 64, NextHeader: protocol,
			SrcIP: path.Source.AsSlice(), DstIP: server.Address.AsSlice()}, gopacket.Payload(inner))
	}
	return serialize(&layers.IPv4{Version: 4, TOS: tos, TTL: 64, Id: pathid.Identification(secret), Protocol: protocol, Flags: layers.IPv4DontFragment,
		SrcIP: path.Source.AsSlice(), DstIP: server.Address.AsSlice()}, gopacket.Payload(inner))
}

// gue is the UDP datagram that carries inner, with the further stops that are in the first server's family.
func (w *world) gue(s *plan.Service, server *model.Server, stops []uint16, protocol byte, inner []byte, entropy uint16) []byte {
	var private []byte
	if len(stops) > 0 {
		var addresses []byte
		count := byte(0)
		for _, id := range stops {
			if stop := serverIn(s, id); stop != nil && stop.Address.Is6() == server.Address.Is6() {
				addresses = append(addresses, stop.Address.AsSlice()...)
				count++
			}
		}
		private = make([]byte, stopsLength(server.Address.Is6()))
		copy(private, []byte{1, 0, count, 0})
		copy(private[4:], addresses)
	}
	out := binary.BigEndian.AppendUint16(nil, 0xc000|entropy&0x3fff)
	out = binary.BigEndian.AppendUint16(out, 6080)
	out = binary.BigEndian.AppendUint16(out, uint16(8+4+len(private)+len(inner)))
	out = append(out, 0, 0, byte(len(private)/4), protocol, 0, 0)
	return slices.Concat(out, private, inner)
}

// nattedError is an ICMP error as the server knows its packets: from its own address and port.
func nattedError(p *refPacket, server *model.Server) []byte {
	ip := slices.Clone(p.ip[:p.length])
	address, check, quote := server.Address.AsSlice(), ip[p.l4+2:], ip[p.l4+8:]
	source, ports := quote[12:16], quote[20:]
	if p.v6() {
		source, ports = quote[8:24], quote[40:]
		replaceBytes(check, ip[24:40], address)
	} else {
		replaceBytes(ip[10:], ip[16:20], address)
		replaced := slices.Clone(quote[10:12])
		replaceBytes(replaced, source, address)
		copy(source, p.ip[p.l4+20:])
		replaceBytes(check, quote[10:], replaced)
	}
	replaceBytes(check, source, address)
	if server.Port != 0 {
		replaceBytes(check, ports, binary.BigEndian.AppendUint16(nil, server.Port))
	}
	return ip
}

// natted is the packet with the server's address, and port if it has one of its own, as its destination.
func natted(p *refPacket, server *model.Server) []byte {
	ip := slices.Clone(p.ip[:p.length])
	address := server.Address.AsSlice()
	at, check := ip[16:20], []byte(nil)
	if p.v6() {
		at = ip[24:40]
	}
	if p.fragment != laterFragment {
		check = ip[p.l4+map[byte]int{6: 16, 17: 6}[p.protocol]:]
	}
	if p.protocol == 17 && check != nil && check[0]|check[1] == 0 {
		check = nil
	}
	if server.Port != 0 && p.fragment != laterFragment {
		replaceBytes(check, ip[p.l4+2:], binary.BigEndian.AppendUint16(nil, server.Port))
	}
	if !p.v6() {
		replaceBytes(ip[10:], slices.Clone(at), address)
	}
	replaceBytes(check, at, address)
	if p.protocol == 17 && check != nil && check[0]|check[1] == 0 {
		check[0], check[1] = 0xff, 0xff // RFC 768: 0 means "none"
	}
	return ip
}

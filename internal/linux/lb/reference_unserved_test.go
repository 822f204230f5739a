// Reference of bpf/lb/walk/unserved.h: what is for a VIP and none of its services.
package lb

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// expectUnserved is what becomes of a packet that is passed on otherwise. ok: it is refused, or would be.
func (r *reference) expectUnserved(p *refPacket, passed *expectation) (e expectation, ok bool) {
	if passed.verdict != lbVerdictPASSED_NO_SERVICE && passed.verdict != lbVerdictPASSED_UNSUPPORTED || !r.want.Rejects || r.relayed {
		return e, false
	}
	if _, isVIP := r.vipService(p.destination, 0, 0); !isVIP || isICMP(p) || p.fragment == laterFragment || !p.v6() && p.ip[0] != 0x45 {
		return e, false
	}
	var answer func() []byte
	switch {
	case p.protocol == 6 && p.fragment == whole && !p.reset():
		answer = func() []byte { return resetOf(p) }
	case p.protocol == 6:
	case p.protocol == 17 && p.v6():
		answer = func() []byte { return icmpError(p, 1, 4, 0) }
	case p.protocol == 17:
		answer = func() []byte { return icmpError(p, 3, 3, 0) }
	case !p.v6():
		answer = func() []byte { return icmpError(p, 3, 2, 0) }
	}
	switch {
	case answer == nil:
		return e, false
	case !r.mayBeAnswered(p):
		return expectation{verdict: lbVerdictDROPPED_IMPOSSIBLE_SOURCE, action: xdpDrop}, true
	}
	return expectation{verdict: lbVerdictANSWERED_UNSERVED, action: xdpTX, frame: func(uint16) []byte { return answer() }}, true
}

// resetOf is what RFC 9293 3.10.7.1 has a host without the connection send.
func resetOf(p *refPacket) []byte {
	segment := p.ip[p.l4:p.length]
	sequence, acknowledged, flags := binary.BigEndian.Uint32(segment[8:]), uint32(0), byte(rst)
	if p.flags&ack == 0 {
		length := uint32(len(segment)) - uint32(segment[12]>>4)*4 + uint32(p.flags>>1&1) + uint32(p.flags&1)
		sequence, acknowledged, flags = 0, binary.BigEndian.Uint32(segment[4:])+length, rst|ack
	}
	b := binary.BigEndian.AppendUint16(nil, p.dport)
	b = binary.BigEndian.AppendUint16(b, p.sport)
	b = binary.BigEndian.AppendUint32(b, sequence)
	b = binary.BigEndian.AppendUint32(b, acknowledged)
	b = append(b, 5<<4, flags, 0, 0, 0, 0, 0, 0)
	setTransportChecksum(b, 16, p.destination, p.source, 6)
	ip := ipPacket(p.destination, p.source, 6, b)
	if p.v6() {
		copy(ip, []byte{0x60, 0, 0, 0}) // no class, no label
		ip[7] = 64
	} else {
		ip[1], ip[4], ip[5], ip[8] = 0, 0, 0, 64
		setIPv4Checksum(ip)
	}
	return slices.Concat(turned(p.l2()), ip)
}

// hosts are sources that one host has, and others.
var hosts = map[string]bool{"223.255.255.254": true, "224.0.0.1": false, "255.255.255.255": false, "127.0.0.1": false, "0.0.0.0": false, "fe80::1": true, "::": false,
	"::1": false, "ff02::1": false, vip4.String(): false, vip6.String(): false}

func sourcesOf(vip netip.Addr) map[netip.Addr]bool {
	sources := map[netip.Addr]bool{}
	for text, one := range hosts {
		if address := netip.MustParseAddr(text); address.Is6() == vip.Is6() {
			sources[address] = one
		}
	}
	return sources
}

// Reference of bpf/lb/send/answer.h: what this node answers.
package lb

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// quoteLength is how much of a packet that is too big its sender gets back (bpf/lb/send/answer.h).
const quoteLength = 128

// mayBeAnswered reports whether the source of a packet is one host, and another than this one.
func (r *reference) mayBeAnswered(p *refPacket) bool {
	a := p.source
	_, isVIP := r.vipService(a, 0, 0)
	for _, prefix := range []string{"0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3", "::/96", "::ffff:0:0/96", "ff00::/8"} {
		if prefix := netip.MustParsePrefix(prefix); prefix.Addr().BitLen() == a.BitLen() && prefix.Masked().Addr() == netip.PrefixFrom(a, prefix.Bits()).Masked().Addr() {
			return false
		}
	}
	return !isVIP
}

func (r *reference) expectTooBig(p *refPacket, e expectation, mtu int) expectation {
	if p.protocol == 1 || p.protocol == 58 || p.fragment == laterFragment || p.length < quoteLength {
		e.verdict, e.action = lbVerdictDROPPED_TOO_BIG_QUIETLY, xdpDrop
		return e
	}
	if !r.mayBeAnswered(p) {
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
	if p.v6() {
		return icmpError(p, 2, 0, mtu)
	}
	return icmpError(p, 3, 4, mtu)
}

// icmpError is an error about a packet, from the VIP, which quotes as much of it as fits.
func icmpError(p *refPacket, kind, code byte, rest int) []byte {
	quote := p.ip[:min(quoteLength, p.length)]
	if p.v6() {
		ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolICMPv6, SrcIP: p.destination.AsSlice(), DstIP: p.source.AsSlice()}
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, code)}
		mustSet(icmp.SetNetworkLayerForChecksum(ip))
		body := append(binary.BigEndian.AppendUint32(nil, uint32(rest)), quote...)
		return append(turned(p.l2()), serialize(ip, icmp, gopacket.Payload(body))...)
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolICMPv4, SrcIP: p.destination.AsSlice(), DstIP: p.source.AsSlice()}
	icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, code), Seq: uint16(rest)}
	return append(turned(p.l2()), serialize(ip, icmp, gopacket.Payload(quote))...)
}

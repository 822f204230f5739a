// Reference of bpf/wire/parse.h: what a frame is.
package lb

import (
	"encoding/binary"
	"net/netip"
)

// refPacket is a packet as the reference reads it. A quoted packet is seen from the client, too.
type refPacket struct {
	frame               []byte
	ip                  []byte // from the IP header to the end of the frame
	l3, l4              int    // offset of ip in the frame, of the transport header in ip
	length              int    // of the IP packet
	source, destination netip.Addr
	protocol, tos       byte
	fragment            refFragmentKind
	fragmentID          uint32
	mayFragment         bool // IPv4 without Don't Fragment
	sport, dport        uint16
	flags               byte
	options             []byte // of TCP; nil when the header is cut short
}

type refFragmentKind int

const (
	whole refFragmentKind = iota
	firstFragment
	laterFragment
)

func (p *refPacket) v6() bool    { return p.source.Is6() }
func (p *refPacket) syn() bool   { return p.protocol == 6 && p.flags&0x12 == 2 }
func (p *refPacket) reset() bool { return p.flags&4 != 0 }
func (p *refPacket) fin() bool   { return p.flags&1 != 0 }

func addressIn(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// parseRef reads a frame; verdict is VERDICT_CONTINUE when it could.
func parseRef(frame []byte) (*refPacket, lbVerdict) {
	if len(frame) < 14 {
		return nil, lbVerdictPASSED_NOT_IP
	}
	l3, kind := 14, binary.BigEndian.Uint16(frame[12:])
	if kind == 0x8100 || kind == 0x88a8 {
		if len(frame) < 18 {
			return nil, lbVerdictPASSED_NOT_IP
		}
		l3, kind = 18, binary.BigEndian.Uint16(frame[16:])
	}
	p := &refPacket{frame: frame, ip: frame[l3:], l3: l3}
	verdict := lbVerdictPASSED_NOT_IP
	switch kind {
	case 0x0800:
		verdict = p.parseIPv4()
	case 0x86dd:
		verdict = p.parseIPv6()
	}
	if verdict != lbVerdictVERDICT_CONTINUE {
		return p, verdict
	}
	if p.length > len(p.ip) || p.l4 > p.length {
		return p, lbVerdictDROPPED_MALFORMED
	}
	if p.fragment == laterFragment {
		return p, lbVerdictVERDICT_CONTINUE
	}
	return p, p.parseTransport()
}

func (p *refPacket) parseIPv4() lbVerdict {
	b := p.ip
	if len(b) < 20 || b[0]>>4 != 4 || b[0]&15 < 5 {
		return lbVerdictDROPPED_MALFORMED
	}
	p.source, p.destination = addressIn(b[12:16]), addressIn(b[16:20])
	if b[0]&15 > 5 {
		return lbVerdictPASSED_UNSUPPORTED
	}
	p.tos, p.protocol, p.l4 = b[1], b[9], 20
	p.length, p.mayFragment = int(binary.BigEndian.Uint16(b[2:])), b[6]&0x40 == 0
	if at := binary.BigEndian.Uint16(b[6:]) & 0x3fff; at != 0 {
		p.fragmentID = uint32(binary.BigEndian.Uint16(b[4:]))
		p.fragment = firstFragment
		if at&0x1fff != 0 {
			p.fragment = laterFragment
		}
	}
	return lbVerdictVERDICT_CONTINUE
}

func (p *refPacket) parseIPv6() lbVerdict {
	b := p.ip
	if len(b) < 40 || b[0]>>4 != 6 {
		return lbVerdictDROPPED_MALFORMED
	}
	p.source, p.destination = addressIn(b[8:24]), addressIn(b[24:40])
	p.tos, p.protocol, p.l4 = b[0]<<4|b[1]>>4, b[6], 40
	p.length = 40 + int(binary.BigEndian.Uint16(b[4:]))
	if p.length > 65535 {
		return lbVerdictDROPPED_MALFORMED
	}
	if p.protocol == 44 {
		if len(b) < 48 {
			return lbVerdictDROPPED_MALFORMED
		}
		p.protocol, p.l4 = b[40], 48
		p.fragmentID = binary.BigEndian.Uint32(b[44:])
		p.fragment = firstFragment
		if binary.BigEndian.Uint16(b[42:])>>3 != 0 {
			p.fragment = laterFragment
		}
	}
	return lbVerdictVERDICT_CONTINUE
}

// parseTransport reads the ports, which must lie inside both the IP packet and the frame.
func (p *refPacket) parseTransport() lbVerdict {
	b := p.ip[p.l4:p.length]
	switch {
	case p.protocol == 6:
		if len(b) < 20 || int(b[12]>>4)*4 < 20 || int(b[12]>>4)*4 > len(b) {
			return lbVerdictDROPPED_MALFORMED
		}
		p.flags = b[13]
		p.options = b[20 : int(b[12]>>4)*4]
	case p.protocol == 17, p.protocol == 1 && !p.v6(), p.protocol == 58 && p.v6():
		if len(b) < 8 {
			return lbVerdictDROPPED_MALFORMED
		}
		if p.protocol != 17 {
			return lbVerdictVERDICT_CONTINUE
		}
	default:
		return lbVerdictPASSED_UNSUPPORTED
	}
	p.sport, p.dport = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	return lbVerdictVERDICT_CONTINUE
}

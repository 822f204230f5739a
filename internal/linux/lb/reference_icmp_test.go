// Reference of bpf/lb/walk/icmp.h: messages to a VIP.
package lb

import (
	"encoding/binary"
	"slices"
)

// expectICMP is what must become of an ICMP message to a VIP.
func (r *reference) expectICMP(p *refPacket) expectation {
	body := p.ip[p.l4:p.length]
	if p.fragment != whole {
		return expectation{verdict: lbVerdictPASSED_UNSUPPORTED, action: xdpPass}
	}
	echo := byte(8)
	if p.v6() {
		echo = 128
	}
	if body[0] == echo && body[1] == 0 {
		if !r.mayBeAnswered(p) {
			return expectation{verdict: lbVerdictDROPPED_IMPOSSIBLE_SOURCE, action: xdpDrop}
		}
		return expectation{verdict: lbVerdictANSWERED_ECHO, action: xdpTX, frame: func(uint16) []byte { return echoReply(p) }}
	}
	quote := quoted(p)
	if quote == nil {
		return expectation{verdict: lbVerdictPASSED_UNSUPPORTED, action: xdpPass}
	}
	s, _ := r.vipService(quote.destination, quote.dport, quote.protocol)
	if s == nil {
		return expectation{verdict: lbVerdictPASSED_NO_SERVICE, action: xdpPass}
	}
	d := r.ladder(s, quote, true)
	if d.verdict == lbVerdictFORWARDED_BY_COOKIE || d.verdict == lbVerdictFORWARDED_BY_OLDER_KEY || d.verdict == lbVerdictFORWARDED_BY_LOCAL_TABLE || d.verdict == lbVerdictFORWARDED_BY_HISTORY ||
		d.verdict == lbVerdictFORWARDED_BY_PORT {
		d.verdict = lbVerdictFORWARDED_ICMP_BY_COOKIE
	} else if len(d.ids) > 0 && d.verdict != lbVerdictFORWARDED_TO_PREDECESSOR {
		d.verdict = lbVerdictFORWARDED_ICMP_BY_FALLBACK
	}
	return r.expectSent(p, s, d)
}

// quoted is the packet that an ICMP error is about; nil: it is no error, or one that cannot be steered by.
func quoted(p *refPacket) *refPacket {
	errors := []byte{3, 11, 12}
	if p.v6() {
		errors = []byte{1, 2, 3, 4}
	}
	if p.fragment != whole || len(p.ip) < p.l4+8 || !slices.Contains(errors, p.ip[p.l4]) {
		return nil
	}
	return parseQuote(p, p.ip[p.l4+8:])
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

package lb

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// The reference says what the load balancer must do with a frame. It is written from the documents, byte by byte and without
// regard to speed, and shares nothing with the program but the arithmetic of internal/algo.

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

type refFragment struct {
	source, destination netip.Addr
	id                  uint32
	protocol            byte
}

type refPlace struct {
	service string
	ids     []uint16 // several: one of them, and nothing has left to tell which
}

type refConnection struct {
	service     string
	client      netip.AddrPort
	servicePort uint16
}

// expectation is what must become of a frame.
type expectation struct {
	verdict lbVerdict
	service string
	action  uint32
	ids     []uint16               // servers that it may go to
	stops   []uint16               // of the second chance
	frame   func(id uint16) []byte // what leaves; nil: nothing, or the frame as it came
	learn   func(ids []uint16)     // what the frame teaches about later ones, once it is known where it went; nil: nothing
}

func (p *refPacket) v6() bool    { return p.source.Is6() }
func (p *refPacket) syn() bool   { return p.protocol == 6 && p.flags&0x12 == 2 }
func (p *refPacket) reset() bool { return p.flags&4 != 0 }
func (p *refPacket) fin() bool   { return p.flags&1 != 0 }

func connectionOf(s *plan.Service, p *refPacket) refConnection {
	return refConnection{s.Name, netip.AddrPortFrom(p.source, p.sport), p.dport}
}

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
	p.length = int(binary.BigEndian.Uint16(b[2:]))
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

type optionSearch int

const (
	optionAbsent optionSearch = iota
	optionFound
	optionMalformed
)

// findTimestamp walks the options. TCP-AO hides what follows it.
func findTimestamp(options []byte) (search optionSearch, value, echo uint32) {
	for i := 0; i < len(options); {
		switch kind := options[i]; {
		case kind == 0:
			return optionAbsent, 0, 0
		case kind == 1:
			i++
		case i+1 >= len(options) || options[i+1] < 2 || i+int(options[i+1]) > len(options):
			return optionMalformed, 0, 0
		case kind == 29:
			return optionAbsent, 0, 0
		case kind == 8 && options[i+1] != 10:
			return optionMalformed, 0, 0
		case kind == 8:
			return optionFound, binary.BigEndian.Uint32(options[i+2:]), binary.BigEndian.Uint32(options[i+6:])
		default:
			i += int(options[i+1])
		}
	}
	return optionAbsent, 0, 0
}

// vipService is the service at a destination; isVIP: the address is one of ours.
func (w *world) vipService(address netip.Addr, port uint16, protocol byte) (s *plan.Service, isVIP bool) {
	for i := range w.steered {
		candidate := &w.steered[i]
		if candidate.VIP != address {
			continue
		}
		isVIP = true
		if byte(candidate.Protocol) == protocol && slices.Contains(candidate.Ports, port) {
			s = candidate
		}
	}
	return s, isVIP
}

func (w *world) flowHash(key [16]byte, s *plan.Service, p *refPacket) uint64 {
	return cookie.FlowHash(cookie.ServiceKey(key, s.VIP, s.Protocol), netip.AddrPortFrom(p.source, p.sport), p.dport)
}

// plainOf is what a timestamp's cookie says, if one of the keys has made it.
func (w *world) plainOf(s *plan.Service, p *refPacket, timestamp uint32) (plain uint16, ok bool) {
	for epoch, key := range w.want.Keys.Cookie {
		if epoch&1 == cookie.EpochBit(s.CookieBits, timestamp) {
			return cookie.Decode(s.CookieBits, timestamp, w.flowHash(key, s, p)), true
		}
	}
	return 0, false
}

// byCookie is where a timestamp says that its packet goes, and what its cookie says besides.
func (w *world) byCookie(s *plan.Service, p *refPacket, timestamp uint32) (d refDecision, plain uint16) {
	plain, ok := w.plainOf(s, p, timestamp)
	_, _, id := layoutOf(s).Split(plain)
	why := lbVerdictFORWARDED_BAD_COOKIE
	if ok && s.SendsToNodes(w.want.Tier.Tier) {
		id, why = w.nodeOf(s, plain)
	}
	if !ok || serverIn(s, id) == nil {
		return w.place(s, p, why), 0
	}
	return refDecision{verdict: lbVerdictFORWARDED_BY_COOKIE, ids: []uint16{id}}, plain
}

// byPlacement is the owner of the flow's slot and, for packets of older connections, the owners before.
func (w *world) byPlacement(s *plan.Service, p *refPacket) (id uint16, stops []uint16) {
	slot := w.slots[s.Name][cookie.Slot(w.flowHash(w.want.Keys.Placement, s, p), s.TableSlots)]
	chain := []uint16{slot.Owner}
	if s.Fallback == model.FallbackSecondChance && p.protocol == 6 && !p.syn() {
		chain = append(chain, slot.Previous[:]...)
	}
	chain = slices.DeleteFunc(chain, func(id uint16) bool { return id == 0 })
	if len(chain) == 0 {
		return 0, nil
	}
	return chain[0], chain[1:]
}

// byDispatch are the servers that a new connection may get: those that take part and that there is a way to.
func (w *world) byDispatch(s *plan.Service) (ids []uint16) {
	for _, share := range takeNew(s) {
		if !s.NoCookie[share.ID] && w.want.Paths[serverIn(s, share.ID).Address].Ifindex != 0 {
			ids = append(ids, share.ID)
		}
	}
	return ids
}

// refDecision is where a packet of a service goes, and why.
type refDecision struct {
	verdict    lbVerdict
	ids, stops []uint16
	echo       *uint32            // what the server must read as TSecr, where it is another one
	learn      func(ids []uint16) // as of expectation
}

// place is where a packet goes that nothing else is known of.
func (w *world) place(s *plan.Service, p *refPacket, why lbVerdict) refDecision {
	id, stops := w.byPlacement(s, p)
	if id == 0 {
		return refDecision{verdict: lbVerdictDROPPED_NO_SERVER}
	}
	return refDecision{verdict: why, ids: []uint16{id}, stops: stops}
}

// ladder decides where a packet of a service goes: the reference of bpf/steer/ladder.h.
func (w *world) ladder(s *plan.Service, p *refPacket, quoted bool) refDecision {
	switch {
	case s.Affinity == model.AffinityHash:
		return w.place(s, p, lbVerdictFORWARDED_BY_HASH)
	case s.Affinity == model.AffinityLocal:
		return w.ladderLocal(s, p, quoted)
	}
	connection := connectionOf(s, p)
	search, value, echo := findTimestamp(p.options)
	if quoted {
		echo = value
	}
	switch {
	case search == optionMalformed:
		return w.place(s, p, lbVerdictFORWARDED_BAD_OPTIONS)
	case search == optionAbsent && p.reset():
		if id := w.closing[connection]; serverIn(s, id) != nil {
			return refDecision{verdict: lbVerdictFORWARDED_BY_CLOSING, ids: []uint16{id}}
		}
		return w.place(s, p, lbVerdictFORWARDED_RESET)
	case search == optionAbsent:
		return w.place(s, p, lbVerdictFORWARDED_NO_TIMESTAMP)
	case p.syn():
		return w.ladderNew(s, p)
	case echo == 0:
		return w.place(s, p, lbVerdictFORWARDED_NO_ECHO)
	}
	d, plain := w.byCookie(s, p, echo)
	if d.verdict != lbVerdictFORWARDED_BY_COOKIE || quoted {
		return d
	}
	if p.reset() || p.fin() {
		w.closing[connection] = d.ids[0]
	}
	if s.Affinity == model.AffinityTable && !s.SendsToNodes(w.want.Tier.Tier) {
		return w.byTable(s, p, plain, echo)
	}
	return d
}

func (w *world) ladderNew(s *plan.Service, p *refPacket) refDecision {
	placed := w.place(s, p, lbVerdictFORWARDED_NEW)
	if len(placed.ids) > 0 && s.NoCookie[placed.ids[0]] {
		return refDecision{verdict: lbVerdictFORWARDED_STRIPPED, ids: placed.ids}
	}
	if s.Dispatch.Placed() {
		return placed
	}
	if ids := w.byDispatch(s); len(ids) > 0 {
		return refDecision{verdict: lbVerdictFORWARDED_NEW, ids: ids}
	}
	return refDecision{verdict: lbVerdictDROPPED_NO_SERVER}
}

// ladderLocal is the ladder of affinity local-table: the table knows, or the packet is dispatched anew.
func (w *world) ladderLocal(s *plan.Service, p *refPacket, quoted bool) refDecision {
	connection := connectionOf(s, p)
	if id := w.local[connection]; serverIn(s, id) != nil {
		if p.reset() && !quoted {
			delete(w.local, connection)
		}
		return refDecision{verdict: lbVerdictFORWARDED_BY_LOCAL_TABLE, ids: []uint16{id}}
	}
	if quoted || p.protocol == 6 && !p.syn() {
		return w.place(s, p, lbVerdictFORWARDED_UNKNOWN)
	}
	d := w.ladderNew(s, p)
	d.learn = func(ids []uint16) { w.local[connection] = ids[0] }
	return d
}

// expect says what must become of a frame now, and remembers what later frames depend on.
func (w *world) expect(frame []byte) expectation {
	p, verdict := parseRef(frame)
	e := expectation{verdict: verdict, action: actionOf(verdict)}
	if verdict == lbVerdictVERDICT_CONTINUE {
		e = w.expectPacket(p)
	}
	if w.forwards && p != nil && (e.verdict == lbVerdictPASSED_NO_SERVICE || e.verdict == lbVerdictPASSED_UNSUPPORTED) {
		if _, isVIP := w.vipService(p.destination, 0, 0); isVIP {
			e = expectation{verdict: lbVerdictDROPPED_NO_SERVICE, action: xdpDrop}
		}
	}
	return e
}

func actionOf(verdict lbVerdict) uint32 {
	switch {
	case verdict >= lbVerdictDROPPED_MALFORMED:
		return xdpDrop
	case verdict >= lbVerdictFORWARDED_NEW && verdict < lbVerdictRETURNED, verdict == lbVerdictANSWERED_ECHO, verdict == lbVerdictANSWERED_TOO_BIG:
		return xdpTX
	}
	return xdpPass
}

func (w *world) expectPacket(p *refPacket) expectation {
	pass := func(verdict lbVerdict) expectation { return expectation{verdict: verdict, action: actionOf(verdict)} }
	s, isVIP := w.vipService(p.destination, p.dport, p.protocol)
	switch {
	case p.protocol == 1 || p.protocol == 58:
		if !isVIP {
			return pass(lbVerdictPASSED_NO_SERVICE)
		}
		return w.expectICMP(p)
	case p.fragment == laterFragment:
		if !isVIP {
			return w.expectOther(p)
		}
		known, ok := w.fragments[refFragment{p.source, p.destination, p.fragmentID, p.protocol}]
		s = w.steeredService(known.service)
		if !ok || s == nil {
			return pass(lbVerdictDROPPED_UNKNOWN_FRAGMENT)
		}
		ids := slices.DeleteFunc(slices.Clone(known.ids), func(id uint16) bool { return serverIn(s, id) == nil })
		if len(ids) == 0 {
			return expectation{verdict: lbVerdictDROPPED_NO_SERVER, service: s.Name, action: xdpDrop}
		}
		return w.expectSent(p, s, refDecision{verdict: lbVerdictFORWARDED_FRAGMENT, ids: ids})
	case s == nil:
		return w.expectOther(p)
	}
	d := w.ladder(s, p, false)
	if taught := d.learn; len(d.ids) > 0 && p.fragment == firstFragment {
		scrubbed := d.verdict == lbVerdictFORWARDED_BY_SCRUBBER
		d.learn = func(ids []uint16) {
			if scrubbed { // the others go straight to the server
				ids = d.stops[:1]
			}
			w.fragments[refFragment{p.source, p.destination, p.fragmentID, p.protocol}] = refPlace{s.Name, ids}
			if taught != nil {
				taught(ids)
			}
		}
	}
	return w.expectSent(p, s, d)
}

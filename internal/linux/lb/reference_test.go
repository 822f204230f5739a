// Reference of bpf/lb.bpf.c: what must become of a frame, and what it teaches about later ones. A header has a file of its name.
//
// The reference is written from the documents, byte by byte and without regard to speed, and shares nothing with the program but the
// arithmetic of internal/algo.
package lb

import (
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/plan"
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

func connectionOf(s *plan.Service, p *refPacket) refConnection {
	return refConnection{s.Name, netip.AddrPortFrom(p.source, p.sport), p.dport}
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

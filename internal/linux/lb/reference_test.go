// Reference of bpf/lb.bpf.c: what must become of a frame, and what it teaches about later ones. A header has a file of its name.
//
// The reference is written from the documents, byte by byte and without regard to speed, and shares nothing with the program but the
// arithmetic of internal/algo. It knows neither the program nor the test that asks it.
package lb

import (
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/history"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// reference is what the reference knows of a node: what it should do, and what frames have taught it.
type reference struct {
	want    plan.Want
	slots   map[string][]history.Column // as the algorithms alone would have them
	columns map[string]int              // of a slot

	steered []plan.Service // what is wanted, as a node of this tier steers it
	// forwards: test runs come in at a host that is a router, with routes to VIPs.
	forwards bool
	tunnel   netip.Addr // second tier: whose tunnels end here
	relayed  bool       // the frame has come in such a tunnel

	fragments   map[refFragment]refPlace
	connections refTables // affinity table
	suspects    map[string][]netip.Prefix
	closing     map[refConnection]uint16
	local       map[refConnection]uint16 // affinity local-table
	ended       map[refConnection]bool   // of those: their clients have sent a FIN
	starting    map[uint16]refStarting   // affinity quic
	restored    map[uint32]uint32        // return: through: what a server must see for what the client echoes; other echoes: no clock
}

func newReference() reference {
	return reference{columns: map[string]int{}, slots: map[string][]history.Column{}, fragments: map[refFragment]refPlace{}, closing: map[refConnection]uint16{},
		local: map[refConnection]uint16{}, ended: map[refConnection]bool{}, starting: map[uint16]refStarting{}, connections: newRefTables(), suspects: map[string][]netip.Prefix{}}
}

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
	front   int                    // in fragments: bytes before the packet's own header
	frame   func(id uint16) []byte // what leaves; nil: nothing, or the frame as it came
	learn   func(ids []uint16)     // what the frame teaches about later ones, once it is known where it went; nil: nothing
}

func connectionOf(s *plan.Service, p *refPacket) refConnection {
	return refConnection{s.Name, netip.AddrPortFrom(p.source, p.sport), p.dport}
}

// service returns what is wanted of a service, for changes inside update.
func service(want *plan.Want, name string) *plan.Service {
	for i := range want.Services {
		if want.Services[i].Name == name {
			return &want.Services[i]
		}
	}
	return nil
}

// steeredService is the service of that name as this node steers it.
func (r *reference) steeredService(name string) *plan.Service {
	for i := range r.steered {
		if r.steered[i].Name == name {
			return &r.steered[i]
		}
	}
	return nil
}

// serverIn is the server of that id that may get packets.
func serverIn(s *plan.Service, id uint16) *model.Server {
	for _, list := range [][]model.Server{s.Servers, s.Removed} {
		for i := range list {
			if list[i].ID == id && list[i].State != model.StateOff {
				return &list[i]
			}
		}
	}
	return nil
}

// takeNew are the servers that may be given new connections.
func takeNew(s *plan.Service) []model.Share {
	return slices.DeleteFunc(s.Shares(), func(share model.Share) bool { return s.Down[share.ID] })
}

// vipService is the service at a destination; isVIP: the address is one of ours.
func (r *reference) vipService(address netip.Addr, port uint16, protocol byte) (s *plan.Service, isVIP bool) {
	for i := range r.steered {
		candidate := &r.steered[i]
		if !candidate.HasVIP(address) {
			continue
		}
		isVIP = true
		named := slices.Contains(candidate.Ports, port) || r.joinedAt(candidate, port) != 0
		if byte(candidate.Protocol) == protocol && (named || port != 0 && candidate.HasPort(port) && (s == nil || candidate.PortRanges[0] != model.AllPorts)) {
			s = candidate
		}
	}
	if s != nil && s.VIP != address {
		s = atVIP(s, address)
	}
	return s, isVIP
}

// atVIP is a service as packets to a further address of its see it: keys follow from the address.
func atVIP(s *plan.Service, address netip.Addr) *plan.Service {
	at := *s
	at.VIP = address
	at.MoreVIPs = slices.DeleteFunc(s.VIPs(), func(vip netip.Addr) bool { return vip == address })
	return &at
}

// joinedAt is the server whose subflows join at a port of the service; 0: none.
func (r *reference) joinedAt(s *plan.Service, port uint16) (id uint16) {
	if !s.MPTCP.Joins(port) {
		return 0
	}
	for epoch := range r.want.Keys.Cookie {
		ports := plan.JoinPorts(&r.want.Keys, &s.Service, epoch)
		for id := uint16(1); id <= s.MPTCP.PerEpoch(); id++ {
			if ports(id) == port && serverIn(s, id) != nil {
				return id
			}
		}
	}
	return 0
}

// expect says what must become of a frame now, and remembers what later frames depend on.
func (r *reference) expect(frame []byte) expectation {
	p, verdict := parseRef(frame)
	e := expectation{verdict: verdict, action: actionOf(verdict)}
	if verdict == lbVerdictVERDICT_CONTINUE {
		e = r.expectPacket(p)
	}
	if refused, ok := r.expectUnserved(p, &e); ok {
		return refused
	}
	if r.forwards && p != nil && (e.verdict == lbVerdictPASSED_NO_SERVICE || e.verdict == lbVerdictPASSED_UNSUPPORTED) {
		if _, isVIP := r.vipService(p.destination, 0, 0); isVIP {
			e = expectation{verdict: lbVerdictDROPPED_NO_SERVICE, action: xdpDrop}
		}
	}
	return e
}

func actionOf(verdict lbVerdict) uint32 {
	switch {
	case verdict >= lbVerdictDROPPED_MALFORMED:
		return xdpDrop
	case verdict >= lbVerdictFORWARDED_NEW && verdict < lbVerdictRETURNED, verdict == lbVerdictANSWERED_ECHO, verdict == lbVerdictANSWERED_TOO_BIG, verdict == lbVerdictANSWERED_UNSERVED:
		return xdpTX
	}
	return xdpPass
}

func (r *reference) expectPacket(p *refPacket) expectation {
	pass := func(verdict lbVerdict) expectation { return expectation{verdict: verdict, action: actionOf(verdict)} }
	s, isVIP := r.vipService(p.destination, p.dport, p.protocol)
	switch {
	case isICMP(p):
		if !isVIP {
			return r.expectOther(p)
		}
		return r.expectICMP(p)
	case p.fragment == laterFragment:
		if !isVIP {
			return r.expectOther(p)
		}
		known, ok := r.fragments[refFragment{p.source, p.destination, p.fragmentID, p.protocol}]
		s = r.steeredService(known.service)
		if !ok || s == nil {
			return pass(lbVerdictDROPPED_UNKNOWN_FRAGMENT)
		}
		ids := slices.DeleteFunc(slices.Clone(known.ids), func(id uint16) bool { return targetIn(s, id) == nil })
		if len(ids) == 0 {
			return expectation{verdict: lbVerdictDROPPED_NO_SERVER, service: s.Name, action: xdpDrop}
		}
		return r.expectSent(p, s, refDecision{verdict: lbVerdictFORWARDED_FRAGMENT, ids: ids})
	case s == nil:
		return r.expectOther(p)
	}
	d := r.ladder(s, p, false)
	if taught := d.learn; len(d.ids) > 0 && p.fragment == firstFragment {
		scrubbed := d.verdict == lbVerdictFORWARDED_BY_SCRUBBER
		d.learn = func(ids []uint16) {
			if scrubbed { // the others go straight to the server
				ids = d.stops[:1]
			}
			r.fragments[refFragment{p.source, p.destination, p.fragmentID, p.protocol}] = refPlace{s.Name, ids}
			if taught != nil {
				taught(ids)
			}
		}
	}
	return r.expectSent(p, s, d)
}

// Reference of bpf/lb/affinity/cookie.h: who a cookie names.
package lb

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func (r *reference) flowHash(key [16]byte, s *plan.Service, p *refPacket) uint64 {
	return cookie.FlowHash(cookie.ServiceKey(key, s.VIP, s.Protocol), netip.AddrPortFrom(p.source, p.sport), p.dport)
}

// plainOf is what a timestamp's cookie says, if one of the keys has made it.
func (r *reference) plainOf(s *plan.Service, p *refPacket, timestamp uint32) (plain uint16, ok bool) {
	for epoch, key := range r.want.Keys.Cookie {
		if epoch&1 == cookie.EpochBit(s.CookieBits, timestamp) {
			return cookie.Decode(s.CookieBits, timestamp, r.flowHash(key, s, p)), true
		}
	}
	return 0, false
}

// byCookie is where a timestamp says that its packet goes, and what its cookie says besides.
func (r *reference) byCookie(s *plan.Service, p *refPacket, timestamp uint32) (d refDecision, plain uint16) {
	plain, ok := r.plainOf(s, p, timestamp)
	_, _, id := layoutOf(s).Split(plain)
	why := lbVerdictFORWARDED_BAD_COOKIE
	if ok && s.SendsToNodes(r.want.Tier.Tier) {
		id, why = r.nodeOf(s, plain)
	}
	if !ok || serverIn(s, id) == nil {
		return r.place(s, p, why), 0
	}
	return refDecision{verdict: lbVerdictFORWARDED_BY_COOKIE, ids: []uint16{id}}, plain
}

// layoutOf says what the bits of a service's cookies are.
func layoutOf(s *plan.Service) conntable.Layout {
	layout := conntable.Layout{IDBits: s.IDBits()}
	if s.Affinity == model.AffinityTable {
		layout.NodeBits, layout.IndexBits = s.Table.NodeBits, s.Table.IndexBits
	}
	return layout
}

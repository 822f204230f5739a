// Reference of bpf/lb/ladder/ladder.h: the order in which the server of a packet is found.
package lb

import (
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// byDispatch are the servers that a new connection may get: those that take part and that there is a way to.
func (r *reference) byDispatch(s *plan.Service) (ids []uint16) {
	for _, share := range takeNew(s) {
		if !s.NoCookie[share.ID] && r.want.Paths[serverIn(s, share.ID).Address].Ifindex != 0 {
			ids = append(ids, share.ID)
		}
	}
	return ids
}

// refDecision is where a packet of a service goes, and why.
type refDecision struct {
	verdict    lbVerdict
	ids, stops []uint16
	next       byte               // index of the stop after the server
	echo       *uint32            // what the server must read as TSecr, where it is another one
	learn      func(ids []uint16) // as of expectation
}

// ladder decides where a packet of a service goes: the reference of bpf/lb/ladder/ladder.h.
func (r *reference) ladder(s *plan.Service, p *refPacket, quoted bool) refDecision {
	d := r.succeeds(s, p, r.ladderOfAll(s, p, quoted), quoted)
	if len(s.Allow) == 0 || slices.ContainsFunc(s.Allow, func(prefix netip.Prefix) bool { return prefix.Contains(p.source) }) {
		return d
	}
	long := s.Affinity == model.AffinityQUIC && p.ip[p.l4+8]&0x80 != 0
	switch d.verdict {
	case lbVerdictFORWARDED_BY_COOKIE, lbVerdictFORWARDED_BY_OLDER_KEY:
		if !long {
			return d
		}
	case lbVerdictFORWARDED_TO_PREDECESSOR:
		if p.protocol == 6 && !p.syn() {
			return d
		}
	case lbVerdictFORWARDED_BY_TABLE, lbVerdictFORWARDED_ADDED, lbVerdictFORWARDED_BY_SCRUBBER, lbVerdictDROPPED_OVER_LIMIT, lbVerdictFORWARDED_BY_LOCAL_TABLE,
		lbVerdictFORWARDED_BY_CLOSING, lbVerdictFORWARDED_STARTING:
		return d
	}
	return refDecision{verdict: lbVerdictDROPPED_NOT_ALLOWED}
}

// ladderOfAll is the same where everybody may begin connections.
func (r *reference) ladderOfAll(s *plan.Service, p *refPacket, quoted bool) refDecision {
	id := r.joinedAt(s, p.dport)
	switch {
	case id != 0:
		return refDecision{verdict: lbVerdictFORWARDED_BY_PORT, ids: []uint16{id}}
	case s.Affinity == model.AffinityHash:
		return r.place(s, p, lbVerdictFORWARDED_BY_HASH)
	case s.Affinity == model.AffinityLocal:
		return r.ladderLocal(s, p, quoted)
	case s.Affinity == model.AffinityQUIC:
		return r.ladderQUIC(s, p, quoted)
	}
	connection := connectionOf(s, p)
	search, value, echo := findTimestamp(p.options)
	if quoted {
		echo = value
	}
	switch {
	case search == optionMalformed:
		return r.place(s, p, lbVerdictFORWARDED_BAD_OPTIONS)
	case search == optionAbsent && p.reset():
		if s.Affinity == model.AffinityHistory { // nothing is kept of its connections
			return r.place(s, p, lbVerdictFORWARDED_RESET)
		}
		if id := r.closing[connection]; serverIn(s, id) != nil {
			return refDecision{verdict: lbVerdictFORWARDED_BY_CLOSING, ids: []uint16{id}}
		}
		return r.place(s, p, lbVerdictFORWARDED_RESET)
	case search == optionAbsent:
		return r.place(s, p, lbVerdictFORWARDED_NO_TIMESTAMP)
	case p.syn():
		return r.ladderNew(s, p)
	case echo == 0:
		return r.place(s, p, lbVerdictFORWARDED_NO_ECHO)
	}
	if s.Affinity == model.AffinityHistory {
		return r.byHistory(s, p, echo)
	}
	d, plain := r.byCookie(s, p, echo)
	if d.verdict != lbVerdictFORWARDED_BY_COOKIE || quoted {
		return d
	}
	if p.reset() || p.fin() {
		r.closing[connection] = d.ids[0]
	}
	if s.Affinity == model.AffinityTable && !s.SendsToNodes(r.want.Tier.Tier) {
		return r.byTable(s, p, plain, echo)
	}
	return d
}

func (r *reference) ladderNew(s *plan.Service, p *refPacket) refDecision {
	if s.Dispatch == model.DispatchChoices {
		return r.offered(s, p)
	}
	placed := r.place(s, p, lbVerdictFORWARDED_NEW)
	if len(placed.ids) > 0 && s.NoCookie[placed.ids[0]] {
		return refDecision{verdict: lbVerdictFORWARDED_STRIPPED, ids: placed.ids}
	}
	if s.Dispatch.Placed() {
		return placed
	}
	if ids := r.byDispatch(s); len(ids) > 0 {
		return refDecision{verdict: lbVerdictFORWARDED_NEW, ids: ids}
	}
	return refDecision{verdict: lbVerdictDROPPED_NO_SERVER}
}

// Reference of bpf/lb/ladder/predecessor.h and bpf/lb/send/predecessor.h: what did not begin here, and how it leaves.
package lb

import (
	"bytes"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Ids of predecessors, and the hops that are left to a packet there.
const (
	firstPredecessor = 0xfff0
	predecessorHops  = 8
)

// targetIn is the server of that id that may get packets, or a predecessor as one.
func targetIn(s *plan.Service, id uint16) *model.Server {
	if at := int(id) - firstPredecessor; at >= 0 && at < len(s.Predecessor.Addresses) {
		address := s.Predecessor.Addresses[at]
		return &model.Server{Name: address.String(), Address: address, ID: id}
	}
	return serverIn(s, id)
}

// succeeds decides what does not stay here of what a rung has left to placement, for the reason d.verdict.
func (r *reference) succeeds(s *plan.Service, p *refPacket, d refDecision, quoted bool) refDecision {
	if !s.Predecessor.Exists() || s.SendsToNodes(r.want.Tier.Tier) {
		return d
	}
	hash, share, leaves := r.placementHash(s, p), uint64(s.Predecessor.Share.Permille()), false
	switch d.verdict {
	case lbVerdictFORWARDED_BY_COOKIE, lbVerdictFORWARDED_BY_LOCAL_TABLE, lbVerdictFORWARDED_BY_CLOSING, lbVerdictFORWARDED_BY_PORT,
		lbVerdictFORWARDED_BY_TABLE, lbVerdictFORWARDED_ADDED, lbVerdictFORWARDED_TABLE_FULL, lbVerdictFORWARDED_BY_SCRUBBER, lbVerdictDROPPED_OVER_LIMIT:
		return d
	case lbVerdictFORWARDED_BAD_COOKIE, lbVerdictFORWARDED_UNKNOWN:
		leaves = true
	case lbVerdictFORWARDED_NEW:
		leaves = hash&0xffffffff*1000>>32 >= share
	default:
		leaves = p.protocol == 6 && p.syn() && share < 1000
	}
	id, local := uint16(firstPredecessor+(hash>>32&0xffff)*uint64(len(s.Predecessor.Addresses))>>16), s.Affinity == model.AffinityLocal
	connection := connectionOf(s, p)
	known := r.knownLocal(s, p, quoted)
	if local && known >= firstPredecessor && targetIn(s, known) != nil {
		id, leaves = known, true
	}
	if !leaves {
		return d
	}
	to := refDecision{verdict: lbVerdictFORWARDED_TO_PREDECESSOR, ids: []uint16{id}}
	if local && !quoted && (known == id || p.protocol != 6 || p.syn()) {
		to.learn = func(ids []uint16) {
			if known == id {
				r.endLocal(connection, p)
			} else {
				r.addLocal(connection, ids[0])
			}
		}
	}
	return to
}

// goesRound reports whether what is for a predecessor came from there, or may not go on.
func (r *reference) goesRound(p *refPacket, path plan.Path) bool {
	return path.OnLink && bytes.Equal(p.frame[6:12], path.DestinationMAC[:]) || p.ip[p.hopsAt()] <= 1
}

func (p *refPacket) hopsAt() int {
	if p.v6() {
		return 7
	}
	return 8
}

// withFewHops is the packet as it leaves for a predecessor.
func (p *refPacket) withFewHops() *refPacket {
	q := *p
	q.ip = slices.Clone(p.ip)
	at := p.hopsAt()
	hops := min(p.ip[at]-1, predecessorHops)
	if p.v6() {
		q.ip[at] = hops
	} else {
		replaceBytes(q.ip[10:], q.ip[at:at+2], []byte{hops, q.ip[at+1]})
		q.ip[at] = hops
	}
	return &q
}

// asPredecessorTakes is the service by the way of its predecessor.
func asPredecessorTakes(s *plan.Service) *plan.Service {
	at := *s
	at.Forward = s.Predecessor.Forward
	return &at
}

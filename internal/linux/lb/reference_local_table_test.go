// Reference of bpf/lb/affinity/local_table.h: what this node sent where.
package lb

import (
	"github.com/ballast-lb/ballast/internal/plan"
)

// ladderLocal is the ladder of affinity local-table: the table knows, or the packet is dispatched anew.
func (r *reference) ladderLocal(s *plan.Service, p *refPacket, quoted bool) refDecision {
	connection := connectionOf(s, p)
	if id := r.local[connection]; serverIn(s, id) != nil {
		if p.reset() && !quoted {
			delete(r.local, connection)
		}
		return refDecision{verdict: lbVerdictFORWARDED_BY_LOCAL_TABLE, ids: []uint16{id}}
	}
	if quoted || p.protocol == 6 && !p.syn() {
		return r.place(s, p, lbVerdictFORWARDED_UNKNOWN)
	}
	d := r.ladderNew(s, p)
	d.learn = func(ids []uint16) { r.local[connection] = ids[0] }
	return d
}

// Reference of bpf/affinity/local_table.h: what this node sent where.
package lb

import (
	"github.com/ballast-lb/ballast/internal/plan"
)

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

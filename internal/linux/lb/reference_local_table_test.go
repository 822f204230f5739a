// Reference of bpf/lb/affinity/local_table.h: what this node sent where.
package lb

import (
	"github.com/ballast-lb/ballast/internal/plan"
)

// knownLocal is whom the table has for the packet's connection; 0: nobody. With a predecessor, a SYN after the client's FIN begins another.
func (r *reference) knownLocal(s *plan.Service, p *refPacket, quoted bool) uint16 {
	connection := connectionOf(s, p)
	moves := s.Predecessor.Exists() && !s.SendsToNodes(r.want.Tier.Tier)
	if moves && !quoted && p.protocol == 6 && p.syn() && r.ended[connection] {
		return 0
	}
	return r.local[connection]
}

// endLocal notes the end of a connection that the table knows.
func (r *reference) endLocal(connection refConnection, p *refPacket) {
	if p.reset() {
		delete(r.local, connection)
		delete(r.ended, connection)
	} else if p.protocol == 6 && p.fin() {
		r.ended[connection] = true
	}
}

// addLocal has the table know a connection from now on.
func (r *reference) addLocal(connection refConnection, id uint16) {
	r.local[connection] = id
	delete(r.ended, connection)
}

// ladderLocal is the ladder of affinity local-table: the table knows, or the packet is dispatched anew.
func (r *reference) ladderLocal(s *plan.Service, p *refPacket, quoted bool) refDecision {
	connection := connectionOf(s, p)
	if id := r.knownLocal(s, p, quoted); serverIn(s, id) != nil {
		if !quoted {
			r.endLocal(connection, p)
		}
		return refDecision{verdict: lbVerdictFORWARDED_BY_LOCAL_TABLE, ids: []uint16{id}}
	}
	if quoted || p.protocol == 6 && !p.syn() {
		return r.place(s, p, lbVerdictFORWARDED_UNKNOWN)
	}
	d := r.ladderNew(s, p)
	d.learn = func(ids []uint16) { r.addLocal(connection, ids[0]) }
	return d
}

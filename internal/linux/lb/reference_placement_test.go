// Reference of bpf/lb/affinity/placement.h and history.h: who owns a flow's slot, and who did before.
package lb

import (
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/candidates"
	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/history"
	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/algo/modulo"
	"github.com/ballast-lb/ballast/internal/algo/places"
	"github.com/ballast-lb/ballast/internal/algo/wcmp"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

const mostStops = 5 // that a packet carries

func shapeOf(s *plan.Service) history.Shape {
	if s.Dispatch == model.DispatchChoices {
		return history.Shape{Columns: int(s.Choices.Candidates), Depth: int(s.Choices.History)}
	}
	return history.Shape{Columns: 1, Depth: 3}
}

// fillSlots makes the table of a service follow who may be given new connections.
func (r *reference) fillSlots(s *plan.Service) {
	shape := shapeOf(s)
	table := maglev.Table
	switch s.Dispatch {
	case model.DispatchHash:
		table = modulo.Table
	case model.DispatchWCMP:
		table = wcmp.Table
	case model.DispatchChoices:
		table = func(slots uint32, shares []model.Share) []uint16 {
			return candidates.Columns(slots, shape.Columns, shares)
		}
	}
	if s.BySource() {
		table = byAddress(s, table)
	}
	owners := table(s.TableSlots, takeNew(s))
	before := r.slots[s.Name]
	if before == nil {
		undrained := slices.DeleteFunc(s.SharesBeforeDrain(), func(share model.Share) bool { return serverIn(s, share.ID) == nil })
		r.slots[s.Name], r.columns[s.Name] = history.First(owners, table(s.TableSlots, undrained), shape), shape.Columns
		return
	}
	r.slots[s.Name] = history.Push(before, r.columns[s.Name], owners, shape, func(id uint16) bool { return serverIn(s, id) != nil })
	r.columns[s.Name] = shape.Columns
}

// byAddress is a table in which servers stand for their addresses, and not for their ids.
func byAddress(s *plan.Service, table func(uint32, []model.Share) []uint16) func(uint32, []model.Share) []uint16 {
	return func(slots uint32, shares []model.Share) []uint16 {
		named, ids := []model.Share{}, map[uint16]uint16{}
		for _, share := range shares {
			name := places.Of([]netip.Addr{serverIn(s, share.ID).Address})[0] // no two of a test's servers have the same
			named, ids[name] = append(named, model.Share{ID: name, Weight: share.Weight}), share.ID
		}
		owners := table(slots, named)
		for i := range owners {
			owners[i] = ids[owners[i]]
		}
		return owners
	}
}

// placementHash is what places a flow.
func (r *reference) placementHash(s *plan.Service, p *refPacket) uint64 {
	if !s.BySource() {
		return r.flowHash(r.want.Keys.Placement, s, p)
	}
	bits := s.Placement.IPv4Prefix
	if p.source.Is6() {
		bits = s.Placement.IPv6Prefix
	}
	source := netip.PrefixFrom(p.source, int(bits)).Masked().Addr()
	return cookie.FlowHash(cookie.ServiceKey(r.want.Keys.Placement, s.VIP, 0), netip.AddrPortFrom(source, 0), 0)
}

// slotOf are the columns of the flow's slot.
func (r *reference) slotOf(s *plan.Service, p *refPacket) []history.Column {
	columns := shapeOf(s).Columns
	return r.slots[s.Name][int(cookie.Slot(r.placementHash(s, p), s.TableSlots))*columns:][:columns]
}

func nobody(id uint16) bool { return id == 0 }

// place is where a packet goes that nothing else is known of: to the owner of the flow's slot and, for packets of older connections, to who else
// may have it.
func (r *reference) place(s *plan.Service, p *refPacket, why lbVerdict) refDecision {
	slot := r.slotOf(s, p)
	chain := []uint16{slot[0].Owners[0]}
	if s.Fallback == model.FallbackSecondChance && p.protocol == 6 && !p.syn() {
		chain = nil
		for cell := range len(slot) * history.Depth {
			column, rank := cell%len(slot), cell/len(slot)
			if why == lbVerdictFORWARDED_NO_TIMESTAMP { // the first candidate alone has been asked to accept such a connection
				column, rank = cell/history.Depth, cell%history.Depth
			}
			chain = append(chain, slot[column].Owners[rank])
		}
	}
	return placed(why, chain)
}

func placed(why lbVerdict, chain []uint16) refDecision {
	chain = slices.DeleteFunc(chain, nobody)
	if len(chain) == 0 {
		return refDecision{verdict: lbVerdictDROPPED_NO_SERVER}
	}
	return refDecision{verdict: why, ids: chain[:1], stops: chain[1:min(len(chain), 1+mostStops)]}
}

// byHistory is who owns the column that the packet names, and who did before.
func (r *reference) byHistory(s *plan.Service, p *refPacket, echo uint32) refDecision {
	column, slot := int(echo&3), r.slotOf(s, p)
	if column >= len(slot) {
		return r.place(s, p, lbVerdictFORWARDED_BAD_COOKIE)
	}
	d := placed(lbVerdictFORWARDED_BY_HISTORY, slices.Clone(slot[column].Owners[:]))
	if len(d.ids) == 0 { // nobody ever
		return r.place(s, p, lbVerdictFORWARDED_BY_HISTORY)
	}
	return d
}

// offered is a new connection's way through its candidates: from the first that can be reached, and each in its place.
func (r *reference) offered(s *plan.Service, p *refPacket) refDecision {
	var chain []uint16
	for _, column := range r.slotOf(s, p) {
		chain = append(chain, column.Owners[0])
	}
	for len(chain) > 1 && nobody(chain[len(chain)-1]) {
		chain = chain[:len(chain)-1]
	}
	for i, id := range chain {
		if server := serverIn(s, id); server != nil && r.want.Paths[server.Address].Ifindex != 0 {
			return refDecision{verdict: lbVerdictFORWARDED_NEW, ids: []uint16{id}, stops: chain[1:], next: byte(i)}
		}
	}
	return r.place(s, p, lbVerdictFORWARDED_NEW)
}

// Reference of bpf/affinity/placement.h: who owns a flow's slot, and who did before.
package lb

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/history"
	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/algo/modulo"
	"github.com/ballast-lb/ballast/internal/algo/wcmp"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// fillSlots makes the table of a service follow who may be given new connections.
func (r *reference) fillSlots(s *plan.Service) {
	table := maglev.Table
	switch s.Dispatch {
	case model.DispatchHash:
		table = modulo.Table
	case model.DispatchWCMP:
		table = wcmp.Table
	}
	owners := table(s.TableSlots, takeNew(s))
	before := r.slots[s.Name]
	if before == nil {
		undrained := slices.DeleteFunc(s.SharesBeforeDrain(), func(share model.Share) bool { return serverIn(s, share.ID) == nil })
		r.slots[s.Name] = history.First(owners, table(s.TableSlots, undrained))
		return
	}
	r.slots[s.Name] = history.Push(before, owners, func(id uint16) bool { return serverIn(s, id) != nil })
}

// byPlacement is the owner of the flow's slot and, for packets of older connections, the owners before.
func (r *reference) byPlacement(s *plan.Service, p *refPacket) (id uint16, stops []uint16) {
	slot := r.slots[s.Name][cookie.Slot(r.flowHash(r.want.Keys.Placement, s, p), s.TableSlots)]
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

// place is where a packet goes that nothing else is known of.
func (r *reference) place(s *plan.Service, p *refPacket, why lbVerdict) refDecision {
	id, stops := r.byPlacement(s, p)
	if id == 0 {
		return refDecision{verdict: lbVerdictDROPPED_NO_SERVER}
	}
	return refDecision{verdict: why, ids: []uint16{id}, stops: stops}
}

// Reference of bpf/affinity/placement.h: who owns a flow's slot, and who did before.
package lb

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// byPlacement is the owner of the flow's slot and, for packets of older connections, the owners before.
func (w *world) byPlacement(s *plan.Service, p *refPacket) (id uint16, stops []uint16) {
	slot := w.slots[s.Name][cookie.Slot(w.flowHash(w.want.Keys.Placement, s, p), s.TableSlots)]
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
func (w *world) place(s *plan.Service, p *refPacket, why lbVerdict) refDecision {
	id, stops := w.byPlacement(s, p)
	if id == 0 {
		return refDecision{verdict: lbVerdictDROPPED_NO_SERVER}
	}
	return refDecision{verdict: why, ids: []uint16{id}, stops: stops}
}

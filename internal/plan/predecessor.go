package plan

import (
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// predecessors are who has what did not begin here. Its rows lie beside those of the servers, where no cookie leads.
type predecessors struct {
	rows []ServerRow
	at   []uint32 // rows of the table, once published
	ids  span
}

// predecessorRow is what a row says of a predecessor and of the way to it.
func predecessorRow(want *Want, p *model.Predecessor, address netip.Addr) ServerRow {
	row := wayTo(want, address)
	row.Flags |= ServerPredecessor | uint16(p.Forward)<<serverForwardShift
	path := want.Paths[address]
	if path.OnLink {
		row.Flags |= ServerOnLink
	}
	if path.Here {
		row.Flags &^= ServerNextHop
	}
	return row
}

// succeed says in the row what begins here and what does not. The first of two tiers leaves that to the second, which has the cookies' ids.
func (img *image) succeed(want *Want, s *Service, first bool) {
	p := &s.Predecessor
	if !p.Exists() || first {
		return
	}
	img.row.Flags |= ServiceGuarded // the fast path leaves it what begins
	img.row.Predecessors, img.row.Share = uint8(len(p.Addresses)), p.Share.Permille()
	for _, address := range p.Addresses {
		img.predecessors = append(img.predecessors, predecessorRow(want, p, address))
	}
}

// publishPredecessors makes a range of ids name the rows of predecessors: a new one, if there are others than before.
func (u *update) publishPredecessors(p *published, img image) (moved bool, err error) {
	t, have := u.tables, &p.predecessors
	if slices.Equal(have.rows, img.predecessors) {
		return false, nil
	}
	before := *have
	*have = predecessors{rows: img.predecessors}
	if len(have.rows) == len(before.rows) {
		have.ids = before.ids
	} else if have.ids, err = t.ids.take(uint32(len(have.rows))); err != nil {
		return false, err
	}
	for i, row := range have.rows {
		fresh, err := t.serverRows.take(1)
		if err != nil {
			return false, err
		}
		have.at = append(have.at, fresh.base)
		u.add(WriteServer{fresh.base, row})
		u.add(PointID{have.ids.base + uint32(i), fresh.base})
	}
	u.dropPredecessors(&before, before.ids != have.ids)
	return before.ids != have.ids, nil
}

// dropPredecessors gives up their rows, and their range if no row of the service names it any more.
func (u *update) dropPredecessors(p *predecessors, all bool) {
	for _, row := range p.at {
		u.tables.serverRows.give(span{row, 1})
	}
	if all {
		u.tables.ids.give(p.ids)
	}
}

// restorePredecessors finds out which ones are published. ok: nobody else has their rows.
func (t *Tables) restorePredecessors(r Reader, p *published, row ServiceRow) (ok bool) {
	have := &p.predecessors
	have.ids = span{row.PredecessorsBase, uint32(row.Predecessors)}
	if !t.ids.reserve(have.ids) {
		return false
	}
	for i := range have.ids.count {
		at := r.ServerRow(have.ids.base + i)
		if at == 0 || !t.serverRows.reserve(span{at, 1}) {
			return false
		}
		have.at = append(have.at, at)
		have.rows = append(have.rows, r.Server(at))
	}
	return true
}

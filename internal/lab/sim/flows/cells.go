package flows

// Implementation constants.
const (
	maxAge      = 1 << 30 // flows between the oldest living one and the newest, at most
	longAgo     = 1 << 31 // age of changes that matter to no living flow
	noChange    = 0       // end of a list of changes
	firstChange = 1
)

// owners tells who owns every cell of a table, and who did when a living flow arrived. Time is counted in flows: a change has the number of
// the first flow that arrives after it.
type owners struct {
	cells   []cell
	moved   []uint64 // by cell, 1 bit: it has changed lately. It fits into a cache where cells do not
	latest  []uint32 // by cell: place of its latest change in changes; noChange: none that matters
	changes []change
	free    uint32 // first free place of changes, linked by older; noChange: none
}

// cell is what most flows need: one memory access tells them that nothing has changed since they came.
type cell struct {
	owner   uint32
	changed uint32 // low bits of the number of the first flow after the latest change
}

// change is one of a cell's changes of owner.
type change struct {
	flow   uint32 // low bits of the number of the first flow after it
	before uint32 // owner until then
	older  uint32 // place of the change before; noChange: none
	order  uint32 // among all changes of the world
}

// step is one change of owner during a flow's life.
type step struct {
	age   uint32 // flows that have arrived since
	owner uint32 // from then on
	order uint32 // among all changes of the world
}

func newOwners(first []uint32) owners {
	o := owners{cells: make([]cell, len(first)), latest: make([]uint32, len(first)), changes: make([]change, firstChange)}
	o.moved = make([]uint64, len(first)/64+1)
	for i, owner := range first {
		o.cells[i] = cell{owner: owner, changed: longAgo}
	}
	return o
}

// place makes an owner that of a cell, for flows from now on. order is larger than that of the call before.
func (o *owners) place(at int, owner uint32, now uint64, order uint32) {
	c := &o.cells[at]
	if c.owner == owner {
		return
	}
	place := o.free
	if place == noChange {
		place = uint32(len(o.changes))
		o.changes = append(o.changes, change{})
	} else {
		o.free = o.changes[place].older
	}
	o.changes[place] = change{flow: uint32(now), before: c.owner, older: o.latest[at], order: order}
	o.latest[at] = place
	*c = cell{owner: owner, changed: uint32(now)}
	o.moved[at/64] |= 1 << (at % 64)
}

// movedLately returns 0 when no living flow has seen the cell change; else 1.
func (o *owners) movedLately(at uint32) int { return int(o.moved[at/64] >> (at % 64) & 1) }

// changedSince reports whether a cell's owner has changed in the life of a flow of that age.
func (o *owners) changedSince(at uint32, age uint32, now uint64) bool {
	return uint32(now)-o.cells[at].changed < age
}

// since returns the owner that a cell had when a flow of that age arrived, and the changes since, the latest first. steps is reused.
func (o *owners) since(at uint32, age uint32, now uint64, steps []step) (first uint32, since []step) {
	first, since = o.cells[at].owner, steps[:0]
	for place := o.latest[at]; place != noChange; place = o.changes[place].older {
		c := &o.changes[place]
		since = append(since, step{age: uint32(now) - c.flow, owner: first, order: c.order})
		if since[len(since)-1].age >= age {
			return first, since[:len(since)-1]
		}
		first = c.before
	}
	return first, since
}

// forget frees changes after which at least so many flows have arrived, which no living flow has seen, and keeps the numbers of flows
// comparable. It must be called at least once every maxAge flows.
func (o *owners) forget(now uint64, age uint32) {
	for at := range o.cells {
		c := &o.cells[at]
		if uint32(now)-c.changed < age {
			o.shorten(&o.latest[at], now, age)
			continue
		}
		c.changed = uint32(now) - longAgo
		o.moved[at/64] &^= 1 << (at % 64)
		o.release(&o.latest[at])
	}
}

// shorten cuts a list behind the last change that is young enough.
func (o *owners) shorten(link *uint32, now uint64, age uint32) {
	for *link != noChange && uint32(now)-o.changes[*link].flow < age {
		link = &o.changes[*link].older
	}
	o.release(link)
}

// release frees a list from a link on.
func (o *owners) release(link *uint32) {
	for place := *link; place != noChange; {
		older := o.changes[place].older
		o.changes[place].older, o.free = o.free, place
		place = older
	}
	*link = noChange
}

// rank returns the place of a server in the history of a cell, as of the latest of the steps: 1 for the owner, 2 for the last other owner before
// it. server owned the cell when the flow arrived. Ranks above MaxDepth are not told apart.
func rank(server uint32, steps []step) int {
	place := 1
	for i, s := range steps {
		if s.owner == server {
			break
		}
		seen := false
		for _, later := range steps[:i] {
			seen = seen || later.owner == s.owner
		}
		if !seen {
			place++
		}
		if place > MaxDepth {
			break
		}
	}
	return place
}

package beyond

// hashed is a load balancer without a memory: every packet goes to the owner of its slot.
type hashed struct {
	talks *talks
	fates []fate
}

func (h *hashed) until(int64) {}

func (h *hashed) syn(n uint32, _ int64) { h.fates = put(h.fates, n, 0) }

func (h *hashed) packet(n uint32, _ int64, _ bool) {
	if c := &h.talks.list[n]; h.talks.pool[c.slot] != c.owner {
		h.fates[n] |= wentWrong
	}
}

func (h *hashed) fate(n uint32) fate { return h.fates[n] }

// put sets what belongs to a number, of which there may be one more than before.
func put[T any](list []T, n uint32, value T) []T {
	if int(n) == len(list) {
		return append(list, value)
	}
	list[n] = value
	return list
}

// local is a load balancer with a table of its own, which pushes out what has been silent for long: `affinity: local-table`, and what
// others do (bpf/lb/affinity/local_table.h). A flow that it does not know goes to the owner of its slot, and stays unknown.
type local struct {
	talks  *talks
	table  recency
	attack *flood
	places []uint32 // by connection: of its entry
	owners []uint32 // by place: connection; nobody
	fates  []fate
}

const nobody = ^uint32(0)

// recency decides which place is given to who comes.
type recency interface {
	take() (place uint32) // for a new entry, in place of another one if need be
	touch(place uint32)
}

func newLocal(t *talks, table recency, places int, attack *flood) *local {
	l := &local{talks: t, table: table, attack: attack, owners: make([]uint32, places)}
	for place := range l.owners {
		l.owners[place] = nobody
	}
	return l
}

func (l *local) until(now int64) {
	for l.attack.next() <= now {
		l.attack.past()
		l.remember(nobody)
	}
}

// remember makes an entry and returns its place.
func (l *local) remember(n uint32) uint32 {
	place := l.table.take()
	if old := l.owners[place]; old != nobody {
		l.places[old] = nobody
		l.fates[old] |= lostPlace
	}
	l.owners[place] = n
	return place
}

func (l *local) syn(n uint32, _ int64) {
	l.fates = put(l.fates, n, 0)
	l.places = put(l.places, n, nobody)
	l.places[n] = l.remember(n)
}

func (l *local) packet(n uint32, _ int64, last bool) {
	c, place := &l.talks.list[n], l.places[n]
	switch {
	case place == nobody && l.talks.pool[c.slot] != c.owner:
		l.fates[n] |= wentWrong
	case place != nobody:
		l.table.touch(place)
		if last { // the entry stays until it is pushed out
			l.owners[place] = nobody
		}
	}
}

func (l *local) fate(n uint32) fate { return l.fates[n] }

// chains are rings of places, doubly linked; the numbers from places on are the rings' heads.
type chains []link

type link struct{ next, previous uint32 }

func newChains(places, rings int) chains {
	c := make(chains, places+rings)
	for i := range c {
		c[i] = link{uint32(i), uint32(i)}
	}
	return c
}

func (c chains) remove(place uint32) {
	l := c[place]
	c[l.previous].next, c[l.next].previous = l.next, l.previous
}

// last returns the last place of a ring, or the head of an empty one.
func (c chains) last(head uint32) uint32 { return c[head].previous }

// push puts a place first in a ring.
func (c chains) push(place, head uint32) {
	first := c[head].next
	c[place] = link{first, head}
	c[head].next, c[first].previous = place, place
}

// exactLRU keeps the order of the last packets of all entries, as textbooks have it.
type exactLRU struct {
	chains
	head uint32
}

func newExactLRU(places int) *exactLRU {
	l := &exactLRU{newChains(places, 1), uint32(places)}
	for place := range uint32(places) {
		l.push(place, l.head)
	}
	return l
}

func (l *exactLRU) touch(place uint32) {
	l.remove(place)
	l.push(place, l.head)
}

func (l *exactLRU) take() uint32 {
	oldest := l.last(l.head)
	l.touch(oldest)
	return oldest
}

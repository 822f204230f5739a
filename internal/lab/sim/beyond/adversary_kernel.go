package beyond

// kernelLRU is how Linux's BPF_MAP_TYPE_LRU_HASH chooses what to push out (kernel/bpf/bpf_lru_list.c), as one CPU uses it: a bit for "has been
// read", a list of entries that were once found read, and one of those that were not. What is read keeps to the first, so that a flood of entries
// that nobody reads wears out the second. It is what Katran has, and our `affinity: local-table`. Given the same packets, the map of Linux 6.18
// pushed out as many connections within half a percent of all.
//
// Departs from the kernel: what is ready to be given away still counts as its connection's until it is, 128 places at most.
type kernelLRU struct {
	chains
	read    []bool
	active  []bool   // by place: which list it is on
	count   [2]int   // of inactive and active places
	fresh   []uint32 // nobody has used them yet
	ready   []uint32 // to be given away
	pending []uint32 // given away since the last refill
	hand    uint32   // where the next look at the inactive ones begins
}

// Specification constant (bpf_lru_list.c: LOCAL_FREE_TARGET, LOCAL_NR_SCANS).
const kernelBatch = 128

func newKernelLRU(places int) *kernelLRU {
	l := &kernelLRU{chains: newChains(places, 2), read: make([]bool, places), active: make([]bool, places)}
	for place := range uint32(places) {
		l.fresh = append(l.fresh, place)
	}
	l.hand = l.head(false)
	return l
}

func (l *kernelLRU) head(active bool) uint32 {
	if active {
		return uint32(len(l.read)) + 1
	}
	return uint32(len(l.read))
}

func (l *kernelLRU) touch(place uint32) { l.read[place] = true }

func (l *kernelLRU) take() uint32 {
	if len(l.ready) == 0 {
		l.refill()
	}
	place := l.ready[len(l.ready)-1]
	l.ready = l.ready[:len(l.ready)-1]
	l.read[place] = false
	l.pending = append(l.pending, place)
	return place
}

func (l *kernelLRU) refill() {
	for _, place := range l.pending {
		l.enter(place, l.read[place])
	}
	l.pending = l.pending[:0]
	if l.count[0] < l.count[1] {
		l.rotateActive()
	}
	l.rotateInactive()
	for len(l.ready) < kernelBatch && len(l.fresh) > 0 {
		l.ready = append(l.ready, l.fresh[len(l.fresh)-1])
		l.fresh = l.fresh[:len(l.fresh)-1]
	}
	if len(l.ready) < kernelBatch {
		l.shrink()
	}
}

func (l *kernelLRU) enter(place uint32, active bool) {
	l.push(place, l.head(active))
	l.active[place], l.read[place] = active, false
	l.count[number(active)]++
}

func (l *kernelLRU) leave(place uint32) {
	if l.hand == place {
		l.hand = l.chains[place].previous
	}
	l.remove(place)
	l.count[number(l.active[place])]--
}

func (l *kernelLRU) move(place uint32, active bool) {
	l.leave(place)
	l.enter(place, active)
}

// rotateActive lets those that nobody has read since the last time fall back among the inactive ones.
func (l *kernelLRU) rotateActive() {
	for range min(kernelBatch, l.count[1]) {
		place := l.last(l.head(true))
		l.move(place, l.read[place])
	}
}

// rotateInactive lifts those that were read.
func (l *kernelLRU) rotateInactive() {
	for range min(kernelBatch, l.count[0]) {
		if l.hand == l.head(false) {
			l.hand = l.chains[l.hand].previous
		}
		place := l.hand
		l.hand = l.chains[place].previous
		if l.read[place] {
			l.move(place, true)
		}
	}
}

// shrink pushes inactive ones out that nobody has read; if it finds none, any.
func (l *kernelLRU) shrink() {
	place := l.last(l.head(false))
	for range min(kernelBatch, l.count[0]) {
		before := l.chains[place].previous
		if l.read[place] {
			l.move(place, true)
		} else if l.give(place); len(l.ready) == kernelBatch {
			return
		}
		place = before
	}
	if len(l.ready) > 0 {
		return
	}
	l.give(l.last(l.head(l.count[0] == 0)))
}

func (l *kernelLRU) give(place uint32) {
	l.leave(place)
	l.ready = append(l.ready, place)
}

func number(active bool) int {
	if active {
		return 1
	}
	return 0
}

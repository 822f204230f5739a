// Package event is the queue that simulations run by: what happens next, in the order of time, and at one time in the order in which
// it was put in. It is a hierarchical timing wheel (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987) of
// records of 8 bytes.
package event

import (
	"fmt"
	"math/bits"
)

// Implementation constants.
const (
	digit    = 8  // bits of time that one wheel tells apart
	turnBits = 32 // of a record; the slots of the outermost ring are 2^32 ns long
	ringSize = 4096
)

// Queue holds events: times in nanoseconds from 0, and a payload that means something to the caller. Make one by New. In steady
// state it allocates nothing. It takes 8 bytes for each event beyond its smallest size of about 200 KB. Not safe for concurrent use.
type Queue struct {
	now    int64   // when the last event popped was
	cursor int64   // start of the open leaf: all before is past
	shift  uint    // log2 of the length of a leaf in ns
	leaf   []Event // of the open leaf, in order
	next   int     // first of leaf that has not been popped
	spare  []Event
	wheels []wheel // finest first; wheel i tells digit i of time, counted from the length of a leaf
	ring   ring
	far    []farEvent // beyond the ring, in the order in which they were put in
	store  store
	length int
}

// Event is what the queue keeps of an event: the low 32 bits of its time, then its payload.
type Event uint64

func newEvent(at int64, payload uint32) Event {
	return Event(uint64(uint32(at))<<turnBits | uint64(payload))
}

// Payload returns what was pushed.
func (e Event) Payload() uint32 { return uint32(e) }

func (e Event) low() uint32 { return uint32(e >> turnBits) }

// wheel has the events of one slot of the next coarser wheel, or of the ring, by the next digit of their time.
type wheel struct {
	slots [1 << digit]list
	used  [1 << digit / 64]uint64 // bit = slot is not empty
}

// ring has the events of the next ringSize * 2^32 ns (4.9 hours), by time / 2^32.
type ring struct {
	slots [ringSize]list
	used  [ringSize / 64]uint64
}

type farEvent struct {
	at      int64
	payload uint32
}

// New returns an empty queue. tickNS is about how far apart events are, in ns: what it is changes the speed and nothing else.
func New(tickNS int64) *Queue {
	q := &Queue{}
	for q.shift+digit < turnBits && int64(1)<<(q.shift+digit) <= tickNS {
		q.shift += digit
	}
	q.wheels = make([]wheel, (turnBits-q.shift)/digit)
	return q
}

// Len returns the number of events in the queue.
func (q *Queue) Len() int { return q.length }

// Push puts an event in. It panics when at is before the last event popped, or before the limit of the last PopBefore that found none, or of Drain.
func (q *Queue) Push(at int64, payload uint32) {
	if at < q.now {
		panic(fmt.Sprintf("event.Push: %d ns is before now, %d ns", at, q.now))
	}
	q.length++
	e := newEvent(at, payload)
	differing := bits.Len64(uint64(at^q.cursor) >> q.shift)
	if differing == 0 {
		q.insert(e)
		return
	}
	if i := (differing - 1) / digit; i < len(q.wheels) {
		q.wheels[i].append(&q.store, uint8(at>>(q.shift+uint(i)*digit)), e)
		return
	}
	if at>>turnBits-q.cursor>>turnBits >= ringSize {
		q.far = append(q.far, farEvent{at, payload})
		return
	}
	q.ring.append(&q.store, at, e)
}

// Pop takes the next event out. ok is false when there is none.
func (q *Queue) Pop() (at int64, payload uint32, ok bool) {
	for q.next == len(q.leaf) {
		if !q.advance(1<<63 - 1) {
			return 0, 0, false
		}
	}
	return q.take()
}

// PopBefore takes the next event out if its time is < limit. If not, ok is false, and the time is limit from then on.
func (q *Queue) PopBefore(limit int64) (at int64, payload uint32, ok bool) {
	for q.next == len(q.leaf) {
		if !q.advance(limit) {
			q.now = max(q.now, limit)
			return 0, 0, false
		}
	}
	if q.timeOf(q.leaf[q.next]) >= limit {
		q.now = max(q.now, limit)
		return 0, 0, false
	}
	return q.take()
}

func (q *Queue) take() (at int64, payload uint32, ok bool) {
	e := q.leaf[q.next]
	q.next++
	q.length--
	q.now = q.timeOf(e)
	return q.now, e.Payload(), true
}

// timeOf completes the time of an event of the open leaf.
func (q *Queue) timeOf(e Event) int64 { return q.cursor>>turnBits<<turnBits | int64(e.low()) }

// insert puts an event into the open leaf, behind those of the same time.
func (q *Queue) insert(e Event) {
	if q.next == len(q.leaf) {
		q.leaf, q.next = q.leaf[:0], 0
	} else if q.next > 1024 && q.next > len(q.leaf)/2 {
		q.leaf, q.next = q.leaf[:copy(q.leaf, q.leaf[q.next:])], 0
	}
	q.leaf = append(q.leaf, e)
	i := len(q.leaf) - 1
	for ; i > q.next && q.leaf[i-1].low() > e.low(); i-- {
		q.leaf[i] = q.leaf[i-1]
	}
	q.leaf[i] = e
}

// A place is where the next events are: a slot of a wheel, or of the ring.
type place struct {
	level int   // of the wheel; len(wheels): the ring
	start int64 // ns
	width uint  // log2 of its length in ns
}

// find returns the place of the events that come after those of the open leaf. ok is false when there are none.
func (q *Queue) find() (p place, ok bool) {
	for i := range q.wheels {
		if slot, ok := first(q.wheels[i].used[:], 0); ok {
			width := q.shift + uint(i)*digit
			return place{i, q.cursor>>(width+digit)<<(width+digit) | int64(slot)<<width, width}, true
		}
	}
	turn, ok := q.ring.nextAfter(q.cursor >> turnBits)
	if !ok {
		if len(q.far) == 0 {
			return place{}, false
		}
		turn = q.far[0].at >> turnBits
		for _, event := range q.far {
			turn = min(turn, event.at>>turnBits)
		}
	}
	return place{len(q.wheels), turn << turnBits, turnBits}, true
}

// enter moves the cursor to a place and takes its events out.
func (q *Queue) enter(p place) list {
	q.cursor = p.start
	if p.level == len(q.wheels) {
		q.approach()
		return q.ring.take(p.start >> turnBits)
	}
	return q.wheels[p.level].take(int(p.start >> p.width & (1<<digit - 1)))
}

// advance moves the cursor to the next place with events if that begins before limit: it opens a leaf, or spreads a slot over the next
// finer wheel. It returns false when there is no such place.
func (q *Queue) advance(limit int64) bool {
	p, ok := q.find()
	if !ok || p.start >= limit {
		return false
	}
	if full := q.enter(p); p.level == 0 {
		q.open(full)
	} else {
		q.spread(full, p.level-1)
	}
	return true
}

// approach moves the events that the ring now reaches into it. Whoever is pushed later comes behind them.
func (q *Queue) approach() {
	rest := q.far[:0]
	for _, event := range q.far {
		if event.at>>turnBits-q.cursor>>turnBits >= ringSize {
			rest = append(rest, event)
			continue
		}
		q.ring.append(&q.store, event.at, newEvent(event.at, event.payload))
	}
	q.far = rest
}

// open makes the events of a slot the open leaf.
func (q *Queue) open(full list) {
	q.leaf, q.next = q.leaf[:0], 0
	q.store.empty(full, func(part []Event) { q.leaf = append(q.leaf, part...) })
	q.sort()
}

// spread puts the events of a slot into the slots of a finer wheel.
func (q *Queue) spread(full list, finer int) {
	w, shift := &q.wheels[finer], q.shift+uint(finer)*digit
	q.store.empty(full, func(part []Event) {
		for _, e := range part {
			w.append(&q.store, uint8(e.low()>>shift), e)
		}
	})
}

func (w *wheel) append(s *store, slot uint8, e Event) {
	l := &w.slots[slot]
	if l.count%chunkEvents == 0 {
		w.used[slot/64] |= 1 << (slot % 64)
		s.extend(l)
	}
	l.tail[l.count%chunkEvents] = e
	l.count++
}

func (w *wheel) take(slot int) list {
	w.used[slot/64] &^= 1 << (slot % 64)
	l := w.slots[slot]
	w.slots[slot] = list{}
	return l
}

func (r *ring) append(s *store, at int64, e Event) {
	slot := uint64(at) >> turnBits % ringSize
	l := &r.slots[slot]
	if l.count%chunkEvents == 0 {
		r.used[slot/64] |= 1 << (slot % 64)
		s.extend(l)
	}
	l.tail[l.count%chunkEvents] = e
	l.count++
}

// take empties the slot of a time, given as time / 2^32.
func (r *ring) take(turn int64) list {
	slot := uint64(turn) % ringSize
	r.used[slot/64] &^= 1 << (slot % 64)
	l := r.slots[slot]
	r.slots[slot] = list{}
	return l
}

// nextAfter returns time / 2^32 of the first slot with events after now.
func (r *ring) nextAfter(now int64) (turn int64, ok bool) {
	from := int((now + 1) % ringSize)
	slot, ok := first(r.used[:], from)
	if !ok {
		slot, ok = first(r.used[:], 0)
	}
	return now + 1 + int64((slot-from+ringSize)%ringSize), ok
}

// first returns the first bit that is set, from a place on.
func first(words []uint64, from int) (bit int, ok bool) {
	for i := from / 64; i < len(words); i++ {
		word := words[i]
		if i == from/64 {
			word &= ^uint64(0) << (from % 64)
		}
		if word != 0 {
			return i*64 + bits.TrailingZeros64(word), true
		}
	}
	return 0, false
}

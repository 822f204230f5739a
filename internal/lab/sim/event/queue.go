// Package event is the queue that simulations run by: what happens next, in the order of time, and at one time in the order in which
// it was put in. It is a hierarchical timing wheel (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987) of
// records of 8 bytes.
package event

import (
	"fmt"
	"math/bits"
	"sort"
)

// Implementation constants.
const (
	timeBits = 32 // of a record
	turnBits = 28 // log2 of the length of a slot of the ring in ns
	maxLeaf  = 24 // log2 of the longest leaf in ns
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
	wheels []wheel    // finest first; the last one is the ring
	level  [65]uint8  // by how many of the low bits of its time tell an event from the cursor: the wheel it belongs to
	base   int64      // time / 2^28 where the ring begins: at most half of it is past
	far    []farEvent // beyond the ring, in the order in which they were put in
	store  store
	length int
}

// Event is what the queue keeps of an event: the low 32 bits of its time, then its payload.
type Event uint64

func newEvent(at int64, payload uint32) Event {
	return Event(uint64(uint32(at))<<timeBits | uint64(payload))
}

// Payload returns what was pushed.
func (e Event) Payload() uint32 { return uint32(e) }

func (e Event) low() uint32 { return uint32(e >> timeBits) }

type farEvent struct {
	at      int64
	payload uint32
}

// New returns an empty queue. tickNS is about how far apart events are, in ns: what it is changes the speed and nothing else.
func New(tickNS int64) *Queue {
	q := &Queue{}
	for q.shift < maxLeaf && tickNS>>(q.shift+1) > 0 {
		q.shift++
	}
	q.wheels = newWheels(q.shift)
	for level, w := range q.wheels {
		for bit := int(w.shift); bit < len(q.level)-1; bit++ {
			q.level[bit+1] = uint8(level)
		}
	}
	return q
}

// Len returns the number of events in the queue.
func (q *Queue) Len() int { return q.length }

// Push puts an event in. It panics when at is before the last event popped, or before the limit of the last PopBefore or Next that found none, or of Drain.
func (q *Queue) Push(at int64, payload uint32) {
	if at < q.now {
		panic(fmt.Sprintf("event.Push: %d ns is before now, %d ns", at, q.now))
	}
	q.length++
	e := newEvent(at, payload)
	differing := bits.Len64(uint64(at ^ q.cursor))
	if differing <= int(q.shift) {
		q.insert(e)
		return
	}
	if at>>turnBits-q.base >= ringSize {
		q.far = append(q.far, farEvent{at, payload})
		return
	}
	q.wheels[q.level[differing]].append(&q.store, at, e) // no more branches: nobody could foretell them
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
	if !q.anyBefore(limit) {
		return 0, 0, false
	}
	return q.take()
}

// Next takes the next events out whose times are < limit, in order, as many as are at hand. When it returns none there is none, and the time is
// limit from then on. What it returns is valid until the queue is used again.
func (q *Queue) Next(limit int64) []Event {
	if !q.anyBefore(limit) {
		return nil
	}
	ready := q.ready(limit)
	q.next += len(ready)
	q.length -= len(ready)
	q.now = q.At(ready[len(ready)-1])
	return ready
}

// At returns the time of an event that was among those that Next returned last.
func (q *Queue) At(e Event) int64 { return q.cursor>>timeBits<<timeBits | int64(e.low()) }

// anyBefore opens the next leaf if need be and reports whether there is an event before limit. If not, the time is limit from then on.
func (q *Queue) anyBefore(limit int64) bool {
	for q.next == len(q.leaf) {
		if !q.advance(limit) {
			q.now = max(q.now, limit)
			return false
		}
	}
	if q.At(q.leaf[q.next]) >= limit {
		q.now = max(q.now, limit)
		return false
	}
	return true
}

// ready returns the events of the open leaf that have not been popped and are before limit.
func (q *Queue) ready(limit int64) []Event {
	rest := q.leaf[q.next:]
	if n := len(rest); n == 0 || q.At(rest[n-1]) < limit {
		return rest
	}
	return rest[:sort.Search(len(rest), func(i int) bool { return q.At(rest[i]) >= limit })]
}

func (q *Queue) take() (at int64, payload uint32, ok bool) {
	e := q.leaf[q.next]
	q.next++
	q.length--
	q.now = q.At(e)
	return q.now, e.Payload(), true
}

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

// A place is where the next events are: a slot of a wheel.
type place struct {
	level int
	start int64 // ns
	width uint  // log2 of its length in ns
}

// find returns the place of the events that come after those of the open leaf. ok is false when there are none.
func (q *Queue) find() (p place, ok bool) {
	ring := len(q.wheels) - 1
	for i := range q.wheels[:ring] {
		if at, ok := q.wheels[i].firstOf(q.cursor); ok {
			return place{i, at, q.wheels[i].shift}, true
		}
	}
	turn, ok := q.wheels[ring].nextTurn(q.cursor >> turnBits)
	if !ok {
		if len(q.far) == 0 {
			return place{}, false
		}
		turn = q.far[0].at >> turnBits
		for _, event := range q.far {
			turn = min(turn, event.at>>turnBits)
		}
	}
	return place{ring, turn << turnBits, turnBits}, true
}

// enter moves the cursor to a place and takes its events out.
func (q *Queue) enter(p place) list {
	q.cursor = p.start
	if turn := p.start >> turnBits; turn-q.base >= ringSize/2 {
		q.approach(turn)
	}
	return q.wheels[p.level].take(p.start)
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

// approach has the ring begin at a turn, and moves the events that it then reaches into it. Whoever is pushed later comes behind them.
func (q *Queue) approach(turn int64) {
	q.base = turn
	rest := q.far[:0]
	for _, event := range q.far {
		if event.at>>turnBits-turn >= ringSize {
			rest = append(rest, event)
			continue
		}
		q.wheels[len(q.wheels)-1].append(&q.store, event.at, newEvent(event.at, event.payload))
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
	w := &q.wheels[finer]
	q.store.empty(full, func(part []Event) {
		for _, e := range part {
			w.append(&q.store, int64(e.low()), e)
		}
	})
}

package event

import "math/bits"

// Implementation constants.
const (
	maxDigit = 9    // bits of time that one wheel tells apart, at most
	ringSize = 4096 // slots
)

// wheel has the events of one slot of the next coarser wheel by the next digit of their time. The coarsest, the ring, has those of the next
// ringSize * 2^28 ns (18 minutes), by time / 2^28.
type wheel struct {
	shift uint     // log2 of the length of a slot in ns
	slots []list   // 2^digit of them
	used  []uint64 // bit = slot is not empty
}

// newWheels returns wheels that tell leaves apart, by digits that are about alike, and the ring.
func newWheels(leafShift uint) []wheel {
	wheels := make([]wheel, (turnBits-leafShift+maxDigit-1)/maxDigit+1)
	shift := leafShift
	for i := range wheels[:len(wheels)-1] {
		digit := (turnBits - shift) / uint(len(wheels)-1-i)
		wheels[i] = newWheel(shift, 1<<digit)
		shift += digit
	}
	wheels[len(wheels)-1] = newWheel(turnBits, ringSize)
	return wheels
}

func newWheel(shift uint, slots int) wheel {
	return wheel{shift: shift, slots: make([]list, slots), used: make([]uint64, (slots+63)/64)}
}

// append puts in an event. Of its time, at, those bits are enough that the wheel tells apart.
func (w *wheel) append(s *store, at int64, e Event) {
	slot := int(at>>w.shift) & (len(w.slots) - 1)
	l := &w.slots[slot]
	if l.count%chunkEvents == 0 {
		w.extend(s, slot)
	}
	l.tail[l.count%chunkEvents] = e
	l.count++
}

func (w *wheel) extend(s *store, slot int) {
	w.used[slot/64] |= 1 << (slot % 64)
	s.extend(&w.slots[slot])
}

// take empties the slot of a time.
func (w *wheel) take(at int64) list {
	slot := int(at>>w.shift) & (len(w.slots) - 1)
	w.used[slot/64] &^= 1 << (slot % 64)
	l := w.slots[slot]
	w.slots[slot] = list{}
	return l
}

// firstOf returns the start of the first slot with events, in ns. at is a time of this turn of the wheel.
func (w *wheel) firstOf(at int64) (start int64, ok bool) {
	slot, ok := first(w.used, 0)
	turn := int64(len(w.slots)) << w.shift
	return at&^(turn-1) | int64(slot)<<w.shift, ok
}

// nextTurn returns time / 2^28 of the first slot of the ring with events after now.
func (w *wheel) nextTurn(now int64) (turn int64, ok bool) {
	from := int((now + 1) % ringSize)
	slot, ok := first(w.used, from)
	if !ok {
		slot, ok = first(w.used, 0)
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

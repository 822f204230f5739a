// Nodes that come and go: whatever one says of itself, and however often, the others get few versions of the ring by it.
package replica

import "time"

// Implementation constants.
const (
	waitMax  = 5 * time.Minute  // that a node is kept off the ring because it came and went
	calmTime = 10 * time.Minute // after which that is forgotten
)

// restless is what a node has done lately. Each time that it has failed, or has lost its entries, doubles for how long it must be heard before it comes onto the
// ring again, and before it may lose its entries again without being taken off.
type restless struct {
	times       int       // that it has failed or lost its entries
	last        time.Time // of these
	restarted   time.Time // when it lost its entries last, and stayed on the ring
	moved       time.Time // when its address changed last
	incarnation uint64    // that it said last
}

// of returns what a node has done lately.
func (m *Membership) of(number uint16) *restless {
	if m.unrest[number] == nil {
		m.unrest[number] = &restless{}
	}
	return m.unrest[number]
}

// note counts that a node has failed or lost its entries.
func (r *restless) note(now time.Time) {
	if r.times++; now.Sub(r.last) >= calmTime {
		r.times = 1
	}
	r.last = now
}

// wait is for how long it must be heard.
func (r *restless) wait() time.Duration {
	wait := returnTime
	for n := 1; n < r.times && wait < waitMax; n++ {
		wait *= 2
	}
	return min(wait, waitMax)
}

// mayRestart reports whether it may have lost its entries and stay on the ring, and notes that it does.
func (r *restless) mayRestart(now time.Time) bool {
	if !r.restarted.IsZero() && now.Sub(r.restarted) < r.wait() {
		return false
	}
	r.restarted = now
	return true
}

// mayMove reports whether it may have another address, and notes that it has.
func (r *restless) mayMove(now time.Time) bool {
	if !r.moved.IsZero() && now.Sub(r.moved) < returnTime {
		return false
	}
	r.moved = now
	return true
}

// hold has nodes that lose their entries wait anew, on the ring or off it.
func (m *Membership) hold(now time.Time, said map[uint16]*Report) {
	for number, r := range said {
		if known := m.of(number); r.fresh() && known.incarnation != r.Incarnation {
			if known.incarnation != 0 {
				delete(m.heard, number)
			}
			known.incarnation = r.Incarnation
		}
	}
	for number, r := range m.unrest {
		if _, on := m.Members.Current().Find(number); !on && now.Sub(r.last) >= calmTime && said[number] == nil {
			delete(m.unrest, number)
		}
	}
}

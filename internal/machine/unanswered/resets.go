package unanswered

import "time"

// ResetMemory is how long resets are a problem after the last one: where nobody connects it is not known whether they go on.
const ResetMemory = 2 * time.Minute

// Implementation constants.
const (
	fewestResets = 3 // in a window, that mean anything
	resetShare   = 4 // one in so many of the connections that were taken over
)

// TakenOver are totals of connections that load balancers have begun, and of those the kernel reset at once.
type TakenOver struct{ Taken, Reset uint64 }

// Resets judges whether the kernel resets the connections that it is given.
type Resets struct {
	seen []takenSample // oldest first; the first one is at most a window old
	last time.Time     // when a reset was counted last, while they are a problem; zero: they are none
}

type takenSample struct {
	at time.Time
	TakenOver
}

// Look is to be called about once a second. It reports whether connections are reset. A few resets in
// a window make it a problem; as many connections in a window without one end it, or the time.
func (r *Resets) Look(now time.Time, total TakenOver) bool {
	if end := len(r.seen) - 1; end >= 0 && (now.Sub(r.seen[end].at) > gap || total.Taken < r.seen[end].Taken || total.Reset < r.seen[end].Reset) {
		r.seen = nil
	}
	news := len(r.seen) > 0 && total.Reset > r.seen[len(r.seen)-1].Reset
	r.seen = append(r.seen, takenSample{now, total})
	for now.Sub(r.seen[0].at) > Window {
		r.seen = r.seen[1:]
	}
	taken, reset := total.Taken-r.seen[0].Taken, total.Reset-r.seen[0].Reset
	switch {
	case reset >= fewestResets && reset*resetShare >= taken, news && !r.last.IsZero():
		if news {
			r.last = now
		}
	case !r.last.IsZero() && (reset == 0 && taken >= fewestResets || now.Sub(r.last) > ResetMemory):
		r.last = time.Time{}
	}
	return !r.last.IsZero()
}

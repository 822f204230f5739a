package flows

import (
	"math"

	"github.com/ballast-lb/ballast/internal/lab/sim/event"
)

// batch is how many connections are drawn, looked up or taken out together, so that the memory answers for all of them at once.
const batch = 128

// arrivals are connections that are about to begin.
type arrivals struct {
	at, ends [batch]int64 // ns
	payloads [batch]uint32
}

// draw draws the next connections that begin before limit, and returns how many. Apart means: not those that begin after one of them ends.
func (w *World) draw(limit int64, apart bool) int {
	n, soonest := 0, int64(math.MaxInt64)
	for n < batch && w.next < float64(limit) {
		at := int64(w.next)
		if at > soonest {
			break
		}
		end := at + int64(w.lives.At(w.lifeOf.Float64At(w.flow+uint64(n))))
		if apart {
			soonest = min(soonest, end)
		}
		w.drawn.at[n], w.drawn.ends[n] = at, end
		w.next += w.gaps.Exp(w.gap)
		n++
	}
	return n
}

// pushDrawn puts the ends of connections that were drawn and have begun into the queue.
func (w *World) pushDrawn(n int) {
	for i, end := range w.drawn.ends[:n] {
		w.queue.Push(end, w.drawn.payloads[i])
	}
	w.live += int64(n)
	w.stats.Arrived += int64(n)
}

// runEvents lets everything happen before a time, one event after the other. Connections are drawn some at a time up to the first that ends,
// which leaves the order as it is.
func (w *World) runEvents(until int64) {
	for w.next < float64(until) {
		n := w.draw(until, true)
		begun, last := 0, w.drawn.at[n-1]
		for ends := w.queue.Next(last); len(ends) > 0; ends = w.queue.Next(last) {
			begun = w.endAmong(ends, begun)
		}
		for ; begun < n; begun++ {
			w.admitDrawn(begun)
		}
		w.pushDrawn(n)
	}
	for ends := w.queue.Next(until); len(ends) > 0; ends = w.queue.Next(until) {
		for _, e := range ends {
			w.now = w.queue.At(e)
			w.settle(w.steer.end(e.Payload()))
		}
	}
}

// endAmong lets connections end, and before each those begin that do so until then, of those that were drawn. The last one that was drawn begins
// after all of them. It is given and returns how many have begun.
func (w *World) endAmong(ends []event.Event, begun int) int {
	if s, ok := w.steer.(*choiceSteerer); ok && s.follower == nil && !w.config.Imbalance {
		return s.endAmong(ends, begun)
	}
	for _, e := range ends {
		at := w.queue.At(e)
		for ; w.drawn.at[begun] <= at; begun++ {
			w.admitDrawn(begun)
		}
		w.now = at
		w.settle(w.steer.end(e.Payload()))
	}
	return begun
}

// admitDrawn lets a connection begin that was drawn.
func (w *World) admitDrawn(i int) {
	w.now = w.drawn.at[i]
	var server uint32
	server, w.drawn.payloads[i] = w.steer.arrive(w.flow)
	w.flow++
	w.load(server, 1)
}

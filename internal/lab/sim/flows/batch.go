package flows

import "github.com/ballast-lb/ballast/internal/lab/sim/event"

// Implementation constants of worlds in which the order of arrivals and ends does not matter.
const (
	window     = 1 << 18 // arrivals until those that end are taken out
	windowStep = 1 << 24 // ns: the queue is faster when windows end at multiples of this
)

// batcher is a steerer to whom the order of arrivals and ends between two changes makes no difference.
type batcher interface {
	steerer
	// arriveAll takes flows in, counts their loads if loads are counted, and sets what the queue keeps of each.
	arriveAll(first uint64, payloads []uint32)
	// endAll lets up to batch connections end.
	endAll(events []event.Event)
}

// inBatches returns the steerer of a world in which arrivals and ends need not take turns; else nil.
func (w *World) inBatches() batcher {
	if w.config.Imbalance {
		return nil
	}
	switch s := w.steer.(type) {
	case *tableSteerer:
		if s.choices == 1 {
			return s
		}
	case *choiceSteerer:
		if s.oblivious != nil {
			return s
		}
	}
	return nil
}

// runBatches is runEvents for such a world.
func (w *World) runBatches(s batcher, until int64) {
	end := func(events []event.Event) {
		for ; len(events) > batch; events = events[batch:] {
			s.endAll(events[:batch])
		}
		s.endAll(events)
	}
	for w.now < until {
		limit := until
		if w.next < float64(until) {
			step := int64(min(window*w.gap, second)) + 1
			if step > windowStep {
				step -= (w.now + step) % windowStep
			}
			limit = min(limit, w.now+step)
		}
		for w.next < float64(limit) {
			w.admitBatch(s, w.draw(limit, false))
		}
		w.queue.Drain(limit, end)
		w.now = limit
	}
}

// fillBatches is what Fill does, for as many connections.
func (w *World) fillBatches(s batcher, connections int64, remaining func(flow uint64) int64) {
	for connections > 0 {
		n := int(min(connections, batch))
		for i := range n {
			w.drawn.ends[i] = w.now + remaining(w.flow+uint64(i))
		}
		w.admitBatch(s, n)
		connections -= int64(n)
	}
}

// admitBatch lets connections begin that were drawn.
func (w *World) admitBatch(s batcher, n int) {
	s.arriveAll(w.flow, w.drawn.payloads[:n])
	w.pushDrawn(n)
	w.flow += uint64(n)
}

// wantLoads counts the loads of a world that has not counted them so far, because nobody asked: that saves half of the accesses to memory.
func (w *World) wantLoads() {
	if w.counting {
		return
	}
	w.counting = true
	w.queue.Each(func(events []event.Event) {
		for _, e := range events {
			server, _, _ := w.steer.end(e.Payload())
			w.loads[server]++
		}
	})
}

// arriveAll implements batcher.
func (s *tableSteerer) arriveAll(first uint64, payloads []uint32) {
	s.forgetAtTimes()
	for i := range payloads {
		payloads[i] = s.payload(first+uint64(i), 0)
	}
	if !s.world.counting {
		return
	}
	var owners [batch]uint32
	for i := range payloads {
		owners[i] = s.owners.cells[s.cell(first+uint64(i), 0)].owner
	}
	for _, server := range owners[:len(payloads)] {
		s.world.loads[server]++
	}
}

// endAll implements batcher.
func (s *tableSteerer) endAll(events []event.Event) {
	if !s.world.counting {
		s.endUncounted(events)
		return
	}
	var at, ages [batch]uint32
	var cells [batch]cell
	w := s.world
	for i, e := range events {
		ages[i] = s.age(e.Payload())
		at[i] = s.cell(w.flow-uint64(ages[i]), 0)
	}
	for i := range events {
		cells[i] = s.owners.cells[at[i]]
	}
	now, judged := uint32(w.flow), 0
	for i, c := range cells[:len(events)] {
		if now-c.changed < ages[i] || s.failed {
			w.settle(s.judge(w.flow-uint64(ages[i]), ages[i], at[i]))
			judged++
		} else {
			w.loads[c.owner]--
		}
	}
	w.survive(len(events) - judged)
}

// endUncounted is endAll where nobody asks whose connections they were: cells that have not moved need no look.
func (s *tableSteerer) endUncounted(events []event.Event) {
	var at, ages [batch]uint32
	n, w := 0, s.world
	for _, e := range events {
		age := s.age(e.Payload())
		cell := s.cell(w.flow-uint64(age), 0)
		at[n%batch], ages[n%batch] = cell, age
		n += s.owners.movedLately(cell)
	}
	for i := range n {
		w.settle(s.judge(w.flow-uint64(ages[i]), ages[i], at[i]))
	}
	w.survive(len(events) - n)
}

// survive counts connections that end and that nothing has happened to.
func (w *World) survive(connections int) {
	w.stats.Depths[1] += int64(connections)
	w.live -= int64(connections)
}

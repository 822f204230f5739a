package flows

import "github.com/ballast-lb/ballast/internal/sim/event"

// Implementation constants of worlds in which the order of arrivals and ends does not matter.
const (
	batch      = 128     // connections that go through the table together, so that the memory answers for all of them at once
	window     = 1 << 18 // arrivals until those that end are taken out
	windowStep = 1 << 24 // ns: the queue is faster when windows end at multiples of this
)

// runBatches is runEvents for tables that do not ask for loads.
func (w *World) runBatches(s *tableSteerer, until int64) {
	end := func(events []event.Event) {
		for ; len(events) > batch; events = events[batch:] {
			w.endBatch(s, events[:batch])
		}
		w.endBatch(s, events)
	}
	for w.now < until {
		limit := until
		if w.next < float64(until) {
			if w.now-s.forgotAt > s.longest {
				s.forget()
			}
			step := int64(min(window*w.gap, second)) + 1
			if step > windowStep {
				step -= (w.now + step) % windowStep
			}
			limit = min(limit, w.now+step)
		}
		for w.next < float64(limit) {
			w.admitBatch(s, float64(limit))
		}
		w.queue.Drain(limit, end)
		w.now = limit
	}
}

// admitBatch lets the next connections begin that do so before limit.
func (w *World) admitBatch(s *tableSteerer, limit float64) {
	var cells [batch]uint32
	n := 0
	for ; n < batch && w.next < limit; n++ {
		life := w.lives.At(w.lifeOf.Float64At(w.flow))
		cells[n] = w.begin(s, int64(w.next)+int64(life))
		w.next += w.gaps.Exp(w.gap)
	}
	w.count(s, cells[:n])
}

// fillBatches is what Fill does, for as many connections.
func (w *World) fillBatches(s *tableSteerer, connections int64, remaining func() int64) {
	var cells [batch]uint32
	for connections > 0 {
		n := int(min(connections, batch))
		for i := range n {
			cells[i] = w.begin(s, w.now+remaining())
		}
		w.count(s, cells[:n])
		connections -= int64(n)
	}
}

// begin takes the next connection in and returns its cell.
func (w *World) begin(s *tableSteerer, ends int64) (cell uint32) {
	w.queue.Push(ends, s.payload(w.flow, 0))
	cell = s.cell(w.flow, 0)
	w.flow++
	return cell
}

// count counts connections that have begun.
func (w *World) count(s *tableSteerer, cells []uint32) {
	w.live += int64(len(cells))
	w.stats.Arrived += int64(len(cells))
	if !w.counting {
		return
	}
	for i, at := range cells {
		cells[i] = s.owners.cells[at].owner
	}
	for _, server := range cells {
		w.loads[server]++
	}
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

// endBatch lets up to batch connections end.
func (w *World) endBatch(s *tableSteerer, events []event.Event) {
	if !w.counting {
		w.endUncounted(s, events)
		return
	}
	var at, ages [batch]uint32
	var cells [batch]cell
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

// endUncounted is endBatch where nobody asks whose connections they were: cells that have not moved need no look.
func (w *World) endUncounted(s *tableSteerer, events []event.Event) {
	var at, ages [batch]uint32
	n := 0
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

// survive counts connections that end and whose cells have not changed in their lives.
func (w *World) survive(connections int) {
	w.stats.Depths[1] += int64(connections)
	w.live -= int64(connections)
}

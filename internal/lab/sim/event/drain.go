package event

// Drain takes all events out whose times are < limit and gives them to take, in pieces, in no order that means anything: it is faster than
// PopBefore for who does not ask what came first. The time is limit from then on. take must not use the queue, nor keep what it is given.
func (q *Queue) Drain(limit int64, take func(events []Event)) {
	for {
		if ready := q.ready(limit); len(ready) > 0 {
			take(ready)
			q.next += len(ready)
			q.length -= len(ready)
		}
		if q.next < len(q.leaf) {
			break
		}
		p, ok := q.find()
		if !ok || p.start >= limit {
			break
		}
		if p.start+int64(1)<<p.width > limit {
			q.advance(limit)
			continue
		}
		full := q.enter(p)
		q.length -= int(full.count)
		q.store.empty(full, take)
	}
	q.now = max(q.now, limit)
}

// Each gives all events to look, in pieces, in no order that means anything. look must not use the queue, nor keep or change what it is given.
func (q *Queue) Each(look func(events []Event)) {
	look(q.leaf[q.next:])
	for i := range q.wheels {
		for slot := range q.wheels[i].slots {
			q.store.each(&q.wheels[i].slots[slot], look)
		}
	}
	for _, event := range q.far {
		look([]Event{newEvent(event.at, event.payload)})
	}
}

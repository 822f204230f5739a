package unanswered

import (
	"slices"
	"time"
)

// patience is how long connections may wait while an accept queue does not become shorter.
const patience = 10 * time.Second

const (
	fewestLooks = 4                // in that time
	forgotten   = 30 * time.Second // without a look: what the queue did meanwhile is not known
)

// Queues judges accept queues. The kernel completes handshakes for an application that hangs, until its queue is full: to a check by TCP
// it looks well.
type Queues struct{ waiting map[string]queue }

type queue struct {
	length      uint32
	since, last time.Time
	looks       int
}

// Look returns, by name, whose queue has had connections in it for as long as patience and has never been seen shorter than before.
// lengths are of all there are.
func (q *Queues) Look(now time.Time, lengths map[string]uint32) (stuck []string) {
	waiting := map[string]queue{}
	for name, length := range lengths {
		if length == 0 {
			continue
		}
		before, there := q.waiting[name]
		if !there || length < before.length || now.Sub(before.last) > forgotten {
			before = queue{since: now}
		}
		waiting[name] = queue{length: length, since: before.since, last: now, looks: before.looks + 1}
		if now.Sub(before.since) >= patience && before.looks+1 >= fewestLooks {
			stuck = append(stuck, name)
		}
	}
	q.waiting = waiting
	slices.Sort(stuck)
	return stuck
}

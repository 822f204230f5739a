// Package unanswered tells by what a server's programs count whether the server answers SYNs. Health checks come from near: they do not
// notice that answers to clients find no route, or that a firewall drops what clients send. It is pure: time is an argument.
package unanswered

import "time"

// Window is the time that is judged.
const Window = 10 * time.Second

// Implementation constants.
const (
	fewest = 10              // unanswered SYNs in a window that mean anything
	share  = 4               // one in so many is answered at least: a stacked device counts a SYN twice, and checks are always answered
	gap    = 3 * time.Second // without a look: what was counted meanwhile is of no known time
)

// Counts are totals.
type Counts struct{ SYNs, Answers uint64 }

// Judge is to be shown the counts about once a second.
type Judge struct {
	seen []sample // oldest first; the first one is at most a window old
	lost bool
}

type sample struct {
	at time.Time
	Counts
}

// Look reports whether SYNs have been left without an answer. Where few SYNs come that cannot be known: it is denied until enough have come, and from
// then on goes on until a window has enough answers, or no SYN.
func (j *Judge) Look(now time.Time, total Counts) bool {
	if last := len(j.seen) - 1; last >= 0 && (now.Sub(j.seen[last].at) > gap || total.SYNs < j.seen[last].SYNs || total.Answers < j.seen[last].Answers) {
		j.seen, j.lost = nil, false
	}
	j.seen = append(j.seen, sample{now, total})
	for now.Sub(j.seen[0].at) > Window {
		j.seen = j.seen[1:]
	}
	syns, answers := total.SYNs-j.seen[0].SYNs, total.Answers-j.seen[0].Answers
	j.lost = answers*share < syns && (j.lost || syns >= answers+fewest)
	return j.lost
}

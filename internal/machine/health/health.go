// Package health decides which servers get no new connections because they do not answer checks.
//
// Two machines. A Server is one load balancer's view of one server: results of checks in, healthy or not out, with thresholds
// against single failures and damping against servers that come and go. A Judge is a controller's view of a service: it
// takes what each load balancer sees and decides by majority, so that a load balancer that is itself cut off takes
// nobody down.
//
// Nobody is taken out because nothing is known of it, only by what was seen. A server that is added waits for its first checks.
//
// It is pure: time and randomness are arguments, nothing here does I/O.
package health

import (
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants: damping of servers that come and go.
//
// A server that falls for the first time is healthy again after rise good checks in a row. Each further fall within memory doubles
// that, up to sixteen times rise: with the defaults (rise 2, interval 2s) 4s, 8s, 16s, 32s, and 64s from the fifth fall on. Each memory
// without a failed check of a server that is down, or a fall, takes one doubling back.
const (
	maxDoublings = 4
	// memory is at least this, and at least twice the longest rise and fall: damping must outlive the wait that it causes.
	minMemory = 5 * time.Minute
)

// Server is what one load balancer thinks of one server. The zero value knows nothing, and counts as healthy.
// It is not safe for concurrent use.
type Server struct {
	known, down bool
	prior       bool      // down is what others have said: nothing was observed yet
	run         int       // results in a row that speak against the state
	falls       int       // remembered
	restless    time.Time // last fall, or failure while down
}

// Begin is the view of a load balancer that has checked nothing yet of a server that others have found unhealthy: it takes rise good checks
// to make it healthy.
func Begin(now time.Time, down bool) *Server {
	s := &Server{down: down, prior: down}
	if down {
		s.falls, s.restless = 1, now
	}
	return s
}

// Observe takes the result of one check. changed says that the verdict is new: the first one, or another than before.
func (s *Server) Observe(now time.Time, ok bool, h *model.Health) (changed bool) {
	if s.prior { // the first result stands for what this load balancer sees itself
		defer func() { s.known, s.prior, changed = true, false, true }()
	}
	switch {
	case ok && !s.down:
		changed = !s.known
		s.known, s.run = true, 0
	case ok:
		s.run++
		if s.run < s.Required(now, h) {
			return false
		}
		s.down, s.run, changed = false, 0, true
	case s.down:
		s.falls, s.run, s.restless = s.remembered(now, h), 0, now
	default:
		s.run++
		if s.run < int(max(h.Fall, 1)) {
			return false
		}
		s.falls = min(s.remembered(now, h), maxDoublings) + 1
		s.known, s.down, s.run, s.restless, changed = true, true, 0, now, true
	}
	return changed
}

// Healthy reports whether the server may get new connections as far as this load balancer can tell.
func (s *Server) Healthy() bool { return !s.down }

// Known reports whether there has been a verdict: a good check, or enough bad ones.
func (s *Server) Known() bool { return s.known }

// Required is how many good checks in a row make an unhealthy server healthy now: rise, or more if it comes and goes.
func (s *Server) Required(now time.Time, h *model.Health) int {
	doublings := max(s.remembered(now, h)-1, 0)
	return int(max(h.Rise, 1)) << doublings
}

// remembered is the number of falls that count still.
func (s *Server) remembered(now time.Time, h *model.Health) int {
	if s.falls == 0 {
		return 0
	}
	forgotten := int64(now.Sub(s.restless) / memory(h))
	return s.falls - int(min(max(forgotten, 0), int64(s.falls)))
}

func memory(h *model.Health) time.Duration {
	checks := int(max(h.Rise, 1))<<maxDoublings + int(h.Fall)
	return max(minMemory, 2*time.Duration(checks)*time.Duration(h.Interval))
}

// Next is the time from one check to the next: the interval, a tenth more or less. random is in [0, 1).
func Next(h *model.Health, random float64) time.Duration {
	return time.Duration(float64(h.Interval) * (0.9 + 0.2*random))
}

// First is the time until the first check, anywhere in the interval, so that checks of many servers are not in step. random is in [0, 1).
func First(h *model.Health, random float64) time.Duration {
	return time.Duration(float64(h.Interval) * random)
}

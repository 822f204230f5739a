// Package stagger draws a random time in each interval (Spotlight V-C): what many do once in an interval is then never done in step,
// and what happens at fixed times is neither always missed nor always hit.
package stagger

import "time"

// Schedule is a row of intervals with one random time in each. Times lie between nothing and two intervals apart.
type Schedule struct {
	end time.Time // of the interval that At is in
	At  time.Time
}

// New returns a schedule whose first interval begins now. random is evenly distributed from 0 to below 1.
func New(now time.Time, every time.Duration, random float64) *Schedule {
	s := &Schedule{end: now}
	s.Next(now, every, random)
	return s
}

// Next goes on to the next interval, or to one that begins now when that has been missed altogether.
func (s *Schedule) Next(now time.Time, every time.Duration, random float64) {
	begin := s.end
	if begin.Add(every).Before(now) {
		begin = now
	}
	s.end = begin.Add(every)
	s.At = begin.Add(time.Duration(random * float64(every)))
}

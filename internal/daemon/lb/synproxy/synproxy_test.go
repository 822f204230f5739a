package synproxy

import (
	"testing"
	"time"
)

// On at once above the limit, off after some time below half of it. Counters that are reset are no flood.
func TestRatesTurnItOnAndOff(t *testing.T) {
	begin := time.Unix(1000, 0)
	s := &seen{at: begin, since: begin, busy: begin}
	count, at := counts{}, begin
	step := func(sent, answered uint64) bool {
		t.Helper()
		count.sent, count.answered, at = count.sent+sent, count.answered+answered, at.Add(period)
		return s.judge(s.rate(count, at), 1000, at)
	}
	const quarter = 250 // SYNs of a period at the limit
	for range 100 {
		if step(quarter, 0) {
			t.Fatal("it is on at the limit")
		}
	}
	if !step(quarter+1, 0) || s.since != at {
		t.Fatal("it is off above the limit")
	}
	since := s.since
	for range 100 { // what servers get of the answered ones does not count twice
		if !step(quarter/2+1, quarter/2+1) {
			t.Fatal("it is off above half of the limit")
		}
	}
	if s.since != since {
		t.Error("it is another time")
	}
	last := at
	for step(10, quarter/2) {
		if at.Sub(last) > calm {
			t.Fatal("it is on below half of the limit")
		}
	}
	if at.Sub(last) < calm || s.on {
		t.Errorf("it is off after %v", at.Sub(last))
	}
	if count = (counts{}); step(0, 0) {
		t.Error("it is on when counters are reset")
	}
	if at = at.Add(-period * 9 / 10); step(100, 0) || s.last != 0 { // 100 in 25 ms
		t.Error("it is on when a tick is late")
	}
	if !step(0, 2*quarter) {
		t.Error("it is off above the limit")
	}
}

package loadmeter

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestMachineTimeGoesAsSlowlyAsTheMachineWorks(t *testing.T) {
	start := time.Now()
	after := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	p := &clock{}
	p.note(after(0), nominal/2) // no machine is faster than time
	p.note(after(10), 5*nominal)
	p.note(after(30), nominal)
	p.note(after(31), 1000*nominal)
	for _, one := range []struct{ from, to, want float64 }{
		{0, 10, 10}, {0, 30, 14}, {10, 20, 2}, {5, 15, 6}, {25, 31, 2}, {31, 31 + slowest, 1}, {-2, 1, 3}, {20, 10, -2},
	} {
		got := p.between(after(one.from), after(one.to)).Seconds()
		if d := got - one.want; d > 1e-6 || d < -1e-6 {
			t.Errorf("from %v to %v s: %v s, not %v", one.from, one.to, got, one.want)
		}
	}
}

func TestMachineTimeNeverGoesBackAndNeverFasterThanTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, now := &clock{}, time.Now()
		for range rapid.IntRange(0, 10).Draw(t, "samples") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "later")))
			p.note(now, time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "took")))
		}
		from := now.Add(-time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "before")))
		length := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "length"))
		if got := p.between(from, from.Add(length)); got < 0 || got > length {
			t.Fatalf("%v of machine time in %v", got, length)
		}
	})
}

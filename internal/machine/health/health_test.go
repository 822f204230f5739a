package health

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func settings() *model.Health {
	return &model.Health{Check: model.CheckTCP, Interval: model.Duration(2 * time.Second), Timeout: model.Duration(time.Second), Rise: 2, Fall: 3}
}

// A run observes checks at the interval and remembers the time.
type run struct {
	Server
	h       *model.Health
	now     time.Time
	changes int
}

func newRun() *run { return &run{h: settings(), now: start} }

func (r *run) observe(ok bool, times int) {
	for range times {
		r.now = r.now.Add(time.Duration(r.h.Interval))
		if r.Observe(r.now, ok, r.h) {
			r.changes++
		}
	}
}

func TestNothingIsKnownOfANewServerAndItCountsAsHealthy(t *testing.T) {
	r := newRun()
	if r.Known() || !r.Healthy() {
		t.Error("a new server is known, or unhealthy")
	}
	r.observe(false, 2)
	if r.Known() || !r.Healthy() {
		t.Error("two failures of three decided")
	}
	r.observe(true, 1)
	if !r.Known() || !r.Healthy() || r.changes != 1 {
		t.Error("the first good check is no verdict")
	}
}

func TestFallAndRiseCountResultsInARow(t *testing.T) {
	r := newRun()
	r.observe(true, 1)
	r.observe(false, 2)
	r.observe(true, 1)
	r.observe(false, 2)
	if !r.Healthy() {
		t.Fatal("unhealthy without three failures in a row")
	}
	r.observe(false, 1)
	if r.Healthy() {
		t.Fatal("healthy after three failures in a row")
	}
	r.observe(true, 1)
	r.observe(false, 1)
	r.observe(true, 1)
	if r.Healthy() {
		t.Fatal("healthy without two good checks in a row")
	}
	r.observe(true, 1)
	if !r.Healthy() || r.changes != 3 {
		t.Fatalf("healthy: %v after two good checks, %d changes", r.Healthy(), r.changes)
	}
}

func TestEachFurtherFallDoublesTheRiseUpToABound(t *testing.T) {
	r := newRun()
	for fall, required := range []int{2, 4, 8, 16, 32, 32, 32} {
		r.observe(false, 3)
		if have := r.Required(r.now, r.h); have != required {
			t.Errorf("after fall %d: %d good checks required, want %d", fall+1, have, required)
		}
		r.observe(true, required-1)
		if r.Healthy() {
			t.Errorf("after fall %d: healthy too early", fall+1)
		}
		r.observe(true, 1)
		if !r.Healthy() {
			t.Errorf("after fall %d: not healthy after %d good checks", fall+1, required)
		}
	}
}

func TestCalmTakesTheDampingBack(t *testing.T) {
	r := newRun()
	for range 5 {
		r.observe(false, 3)
		r.observe(true, r.Required(r.now, r.h))
	}
	for _, required := range []int{16, 8, 4, 2, 2} {
		r.now = r.restless.Add(memory(r.h) * time.Duration(map[int]int{16: 1, 8: 2, 4: 3, 2: 4}[required]))
		if have := r.Required(r.now, r.h); have != required {
			t.Errorf("%s after the last fall: %d required, want %d", r.now.Sub(r.restless), have, required)
		}
	}
	r.now = r.restless.Add(100 * memory(r.h))
	r.observe(false, 3)
	if have := r.Required(r.now, r.h); have != 2 {
		t.Errorf("a fall long after the others: %d required, want 2", have)
	}
}

// Good runs are shorter than the longest rise, bad ones long enough to fall.
//
// Promise: A server that flaps stays unhealthy longer, up to sixteen times.
func TestAFlappingServerSettlesDown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRun()
		r.h.Rise, r.h.Fall = uint8(rapid.IntRange(1, 20).Draw(t, "rise")), uint8(rapid.IntRange(1, 20).Draw(t, "fall"))
		r.h.Interval = model.Duration(rapid.Int64Range(int64(model.MinCheckTime), int64(time.Minute)).Draw(t, "interval"))
		longest := int(r.h.Rise) << maxDoublings
		cycle := func() {
			r.observe(true, rapid.IntRange(1, longest-1).Draw(t, "good"))
			r.observe(false, rapid.IntRange(int(r.h.Fall), 2*int(r.h.Fall)).Draw(t, "bad"))
		}
		for range 200 {
			cycle()
		}
		if bound := 2*maxDoublings + 3; r.changes > bound {
			t.Fatalf("%d changes in 200 cycles, want at most %d", r.changes, bound)
		}
		r.observe(true, longest)
		if !r.Healthy() {
			t.Fatalf("not healthy after %d good checks in a row", longest)
		}
	})
}

// The state is what a dumb reading of the last results says, as long as the server has fallen at most once.
func TestWithoutFlappingTheLastResultsDecide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRun()
		results := rapid.SliceOfN(rapid.Bool(), 1, 60).Draw(t, "results")
		healthy, falls := true, 0
		for i, ok := range results {
			r.observe(ok, 1)
			same := 0
			for k := i; k >= 0 && results[k] == ok; k-- {
				same++
			}
			if healthy && !ok && same >= 3 {
				healthy = false
				falls++
			} else if !healthy && ok && same >= 2 {
				healthy = true
			}
			if falls > 1 {
				return
			}
			if r.Healthy() != healthy {
				t.Fatalf("healthy: %v after %v, want %v", r.Healthy(), results[:i+1], healthy)
			}
		}
	})
}

func TestChecksAreNeverInStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, random := settings(), rapid.Float64Range(0, 0.999999).Draw(t, "random")
		if next := Next(h, random); next < 1800*time.Millisecond || next > 2200*time.Millisecond {
			t.Fatalf("next check after %s, want 2s give or take a tenth", next)
		}
		if first := First(h, random); first < 0 || first >= 2*time.Second {
			t.Fatalf("first check after %s, want within 2s", first)
		}
	})
}

func TestAServerThatOthersFoundUnhealthyNeedsAsManyGoodChecksAsOneThatFellHere(t *testing.T) {
	r := &run{Server: *Begin(start, true), h: settings(), now: start}
	if r.Healthy() || r.Known() {
		t.Error("before the first check it is healthy, or known")
	}
	r.observe(true, 1)
	if r.Healthy() || !r.Known() || r.changes != 1 {
		t.Errorf("after one good check: healthy %t, known %t, %d changes", r.Healthy(), r.Known(), r.changes)
	}
	r.observe(false, 1)
	r.observe(true, 1)
	if r.Healthy() {
		t.Error("a failure between does not count")
	}
	r.observe(true, 1)
	if !r.Healthy() || r.changes != 2 {
		t.Errorf("after two good checks: healthy %t, %d changes", r.Healthy(), r.changes)
	}
	if fresh := Begin(start, false); *fresh != (Server{}) {
		t.Errorf("of one that nobody found unhealthy something is known: %+v", fresh)
	}
}

package queueing

import (
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// only sends everybody to one server.
type only uint32

func (o only) Choose(uint64, []int32) uint32 { return uint32(o) }

// small is a world in which requests of 2 ms come to the first of its servers, at a part of what a core of speed 1 can do.
func small(load float64, servers ...Size) *World {
	const mean = 2 * millisecond
	works := random.Keyed(3, "work")
	return New(Config{
		Seed: 3, Servers: servers, GapNS: float64(mean) / load, Chooser: only(0), Work: func(flow uint64) int64 { return int64(works.ExpAt(flow, float64(mean))) },
		Interval: second, Report: func(*World) {},
	})
}

func TestServersTellHowBusyTheyWereAndHowManyRequestsTheyHad(t *testing.T) {
	for size, want := range map[Size]struct{ busy, open float64 }{
		{1, 1}:   {0.7, 0.7 / 0.3}, // M/M/1
		{1, 2}:   {0.35, 0.35 / 0.65},
		{4, 1}:   {0.175, 0.7016}, // M/M/4: Erlang's formula C
		{1, 0.9}: {0.7 / 0.9, 3.5},
	} {
		w := small(0.7, size)
		w.RunUntil(50 * second)
		w.Tell(0)
		w.Reset()
		w.RunUntil(350 * second)
		busy, open := w.Tell(0)
		within(t, "busy", busy, want.busy, 0.02)
		within(t, "busy by windows", w.Busy(), busy, 0.01)
		within(t, "requests", open, want.open, 0.1)
		w.Finish(never)
		within(t, "mean time by Little's law", Mean(w.Times())*350, open, 0.02)
	}
}

func TestRequestsOfAFailedServerAreLostAndNoOthers(t *testing.T) {
	w := small(2, Size{1, 1}, Size{1, 1})
	w.RunUntil(second)
	before := w.Open()
	w.Reset()
	w.RunUntil(2 * second)
	open, ended := w.Open(), len(w.Times())
	w.Fail(1)
	if w.Broken() != 0 || w.Open() != open {
		t.Errorf("%d broken at a server that had none", w.Broken())
	}
	w.Fail(0)
	if w.Open() != 0 || w.Broken() < int64(open-before) || w.Broken() > int64(open) {
		t.Errorf("%d of %d broken, of which %d came before it counted; %d are left", w.Broken(), open, before, w.Open())
	}
	w.SetRate(0)
	w.Finish(never)
	if len(w.Times()) != ended || w.Arrived() != w.Broken()+int64(ended) {
		t.Errorf("of %d that came %d were broken and %d ended, %d after the failure", w.Arrived(), w.Broken(), ended, len(w.Times())-ended)
	}
}

func TestTheRateChangesWhenItIsTold(t *testing.T) {
	w := small(0.5, Size{1, 1})
	for _, c := range []struct{ load, want float64 }{{0.5, 12500}, {0, 0}, {0.1, 2500}} {
		w.SetRate(0)
		if c.load > 0 {
			w.SetRate(2 * float64(millisecond) / c.load)
		}
		before := w.Arrived()
		w.RunUntil(w.Now() + 50*second)
		if have := float64(w.Arrived() - before); have < 0.9*c.want || have > 1.1*c.want {
			t.Errorf("load %g: %g requests came, want %g", c.load, have, c.want)
		}
	}
}

func TestServersThatComeAndGoAreComparedWhileTheyAreActive(t *testing.T) {
	w := small(0.6, Size{1, 1}, Size{1, 1})
	w.SetActive(1, false)
	w.Reset()
	w.RunUntil(60 * second)
	if w.Variance() != 0 || w.Busy() < 0.5 || w.Busy() > 0.7 {
		t.Errorf("alone: busy %g, variance %g", w.Busy(), w.Variance())
	}
	w.SetActive(1, true)
	w.AddServer(Size{1, 1})
	w.Reset()
	w.RunUntil(120 * second)
	if w.Variance() < 0.05 || w.Busy() < 0.16 || w.Busy() > 0.24 {
		t.Errorf("one of three that has all: busy %g, variance %g", w.Busy(), w.Variance())
	}
}

// At 10 s a window ends, and nothing is known yet of a server that comes then.
func TestAServerCountsFromItsFirstWholeWindow(t *testing.T) {
	for name, come := range map[string]func(w *World){
		"new":  func(w *World) { w.AddServer(Size{1, 1}) },
		"back": func(w *World) { w.SetActive(1, true) },
	} {
		for _, at := range []int64{9*second + 1, 9500 * millisecond, 10 * second} {
			w := small(0.6, Size{1, 1}, Size{1, 1})
			w.SetActive(1, false)
			w.Reset()
			w.RunUntil(at)
			come(w)
			w.RunUntil(10*second + 1)
			if w.windows.count != 10 || w.Variance() != 0 {
				t.Errorf("%s at %d ns: variance %g between one server, %g windows", name, at, w.Variance(), w.windows.count)
			}
			w.RunUntil(11*second + 1)
			if w.Variance() == 0 {
				t.Errorf("%s at %d ns: it does not count in the window that it was there for", name, at)
			}
		}
	}
}

func TestAWindowDoesNotCountInWhichEverybodyIsNew(t *testing.T) {
	w := small(0.6, Size{1, 1})
	w.Reset()
	for range 10 {
		w.RunUntil(w.Now() + second/2)
		w.SetActive(0, false)
		w.SetActive(0, true)
	}
	if w.windows.count != 0 || w.Busy() != 0 || w.Variance() != 0 {
		t.Errorf("%g windows: busy %g, variance %g", w.windows.count, w.Busy(), w.Variance())
	}
}

func TestWhatIsNotDoneInTimeCountsAsIfItWere(t *testing.T) {
	w := small(50, Size{1, 1})
	w.Reset()
	w.RunUntil(10 * second)
	w.Finish(12 * second)
	if int64(len(w.Times())) != w.Arrived() || w.Open() != 0 || w.Times()[len(w.Times())-1] < 11*second || !slices.IsSorted(w.Times()) {
		t.Errorf("of %d requests %d have a time", w.Arrived(), len(w.Times()))
	}
}

func TestSharesOfTimeAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		time, part, of := rapid.Uint64().Draw(t, "time"), rapid.Uint64Range(0, 1<<30).Draw(t, "part"), rapid.Uint64Range(1, 1<<30).Draw(t, "of")
		more := rapid.Uint64Range(0, of-1).Draw(t, "more")
		want := new(big.Int).Mul(new(big.Int).SetUint64(time), new(big.Int).SetUint64(part))
		want.Div(want.Add(want, new(big.Int).SetUint64(more)), new(big.Int).SetUint64(of))
		if !want.IsUint64() || want.Uint64() > longest {
			want.SetUint64(longest)
		}
		if have := share(time, part, more, of); have != want.Uint64() {
			t.Errorf("%d, want %d", have, want)
		}
	})
}

package traffic

import (
	"math"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/data"
)

func TestEqualSeedsGiveEqualArrivalsAndDraws(t *testing.T) {
	flow := Flow{
		Arrivals: &Arrivals{Seed: 7, PerSecond: 100, Peak: 200, Length: 10 * time.Second},
		Requests: []Request{{Path: "/work?cost={}us", Draw: data.Distribution{Points: []data.Point{{Value: 1, UpTo: 0.5}, {Value: 1000, UpTo: 1}}, Smooth: true}}},
	}
	other := flow
	other.Arrivals = &Arrivals{Seed: 7, PerSecond: 100, Peak: 200, Length: 10 * time.Second}
	a, b := newSchedule(flow.Arrivals), newSchedule(other.Arrivals)
	for count := 0; ; count++ {
		dueA, ownA, moreA := a.next()
		dueB, ownB, moreB := b.next()
		if dueA != dueB || moreA != moreB {
			t.Fatalf("arrival %d: %v and %v", count, dueA, dueB)
		}
		if !moreA {
			if count < 1000 {
				t.Errorf("only %d arrivals", count)
			}
			return
		}
		if pathA, pathB := flow.drawn(ownA).Requests[0].Path, other.drawn(ownB).Requests[0].Path; pathA != pathB {
			t.Fatalf("arrival %d: %s and %s", count, pathA, pathB)
		}
	}
}

func TestArrivalsFollowTheirRate(t *testing.T) {
	for _, one := range []struct {
		arrivals Arrivals
		mean     float64
	}{
		{Arrivals{Seed: 1, PerSecond: 500, Length: 40 * time.Second}, 500},
		{Arrivals{Seed: 1, PerSecond: 500, Peak: 1000, Length: 40 * time.Second}, 750},
	} {
		count, middle := 0, 0
		schedule := newSchedule(&one.arrivals)
		for due, _, more := schedule.next(); more; due, _, more = schedule.next() {
			count++
			if third := one.arrivals.Length / 3; due > third && due < 2*third {
				middle++
			}
		}
		want := one.mean * one.arrivals.Length.Seconds()
		if math.Abs(float64(count)-want) > 4*math.Sqrt(want) {
			t.Errorf("%d arrivals instead of %g", count, want)
		}
		if peak := float64(middle) > 0.4*float64(count); peak != (one.arrivals.Peak != 0) {
			t.Errorf("%d of %d in the middle third", middle, count)
		}
	}
}

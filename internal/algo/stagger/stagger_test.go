package stagger

import (
	"math/rand/v2"
	"testing"
	"time"
)

// All times in an interval are alike: quarters of it by chi-square, where one run in 10^9 is above 44.
func TestEachIntervalHasOneRandomTime(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	const rounds, every = 10000, 250 * time.Millisecond
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := New(begin, every, random.Float64())
	var quarters [4]float64
	for i := range rounds {
		at := s.At.Sub(begin.Add(time.Duration(i) * every))
		if at < 0 || at >= every {
			t.Fatalf("time %d comes %s after its interval began", i, at)
		}
		quarters[4*at/every]++
		s.Next(s.At, every, random.Float64())
	}
	square := 0.0
	for _, n := range quarters {
		square += (n - rounds/4) * (n - rounds/4) / (rounds / 4)
	}
	if square > 44 { // 3 degrees of freedom
		t.Errorf("quarters %v: chi-square %.1f", quarters, square)
	}
}

func TestMissedIntervalsAreNotMadeUpFor(t *testing.T) {
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := New(begin, time.Second, 0.5)
	s.Next(begin.Add(time.Minute), time.Second, 0.5)
	if have := s.At.Sub(begin); have != time.Minute+500*time.Millisecond {
		t.Errorf("the next time is after %s", have)
	}
}

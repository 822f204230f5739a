package unanswered

import (
	"slices"
	"testing"
	"time"
)

func TestAQueueThatOnlyGrowsIsStuckAndOneThatMovesIsNot(t *testing.T) {
	q, start := &Queues{}, time.Unix(1e9, 0)
	for second := range 30 {
		moving := uint32(100)
		if second%8 == 0 {
			moving = 99 // somebody accepts, and as many come
		}
		stuck := q.Look(start.Add(time.Duration(second)*time.Second), map[string]uint32{
			"empty": 0, "hung": uint32(1 + second/2), "full": 128, "busy": moving,
		})
		want := []string{"full", "hung"}
		if second < 10 {
			want = nil
		}
		if !slices.Equal(stuck, want) {
			t.Fatalf("after %d s %v are stuck, want %v", second, stuck, want)
		}
	}
	if stuck := q.Look(start.Add(30*time.Second), map[string]uint32{"hung": 3, "full": 0}); stuck != nil {
		t.Errorf("%v are stuck though their queues are shorter", stuck)
	}
}

func TestAQueueThatWasHardlyLookedAtIsNotStuck(t *testing.T) {
	q, start := &Queues{}, time.Unix(1e9, 0)
	for i, at := range []time.Duration{0, 10, 20, 55, 60} { // seconds; a gap before 55
		if stuck := q.Look(start.Add(at*time.Second), map[string]uint32{"web": 5}); stuck != nil {
			t.Errorf("stuck at look %d", i)
		}
	}
}

package nodeclient

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestOfWhatComesFasterThanItIsTakenTheNewestIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var taken []int
		n := newNewest(func(one int) {
			time.Sleep(100 * time.Millisecond)
			taken = append(taken, one)
		})
		for one := range 500 { // 50 a second
			n.put(one)
			time.Sleep(20 * time.Millisecond)
		}
		n.put(500)
		n.put(501)
		n.end()
		if len(taken) < 90 || len(taken) > 105 || taken[len(taken)-1] != 501 || !slices.IsSorted(taken) {
			t.Errorf("%d taken: %v", len(taken), taken)
		}
	})
}

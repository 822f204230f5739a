package unanswered

import (
	"testing"
	"time"
)

// lasting returns after which seconds resets are a problem, of the connections taken over and reset in each.
func lasting(r *Resets, seconds ...TakenOver) (said []int) {
	total := TakenOver{1000, 100}
	for i, s := range seconds {
		total.Taken += s.Taken
		total.Reset += s.Reset
		if resets := r.Look(time.Unix(1e9+int64(i), 0), total); resets {
			said = append(said, i)
		}
	}
	return said
}

func times(n int, s TakenOver) (out []TakenOver) {
	for range n {
		out = append(out, s)
	}
	return out
}

func together(parts ...[]TakenOver) (out []TakenOver) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func TestResetsAreAProblemUntilConnectionsComeToBeOrTheLastIsLongAgo(t *testing.T) {
	all, none := TakenOver{1, 1}, TakenOver{1, 0}
	said := lasting(&Resets{}, together(times(5, none), times(10, all), times(30, none))...)
	if len(said) == 0 || said[0] != 7 || said[len(said)-1] != 23 { // the last reset leaves the window
		t.Errorf("a problem after seconds %v", said)
	}
	said = lasting(&Resets{}, together(times(1, TakenOver{}), times(4, all), times(300, TakenOver{}))...)
	if len(said) == 0 || said[0] != 3 || said[len(said)-1] != 4+120 {
		t.Errorf("where nobody connects any more it is a problem from second %d to %d", said[0], said[len(said)-1])
	}
	if said := lasting(&Resets{}, times(200, TakenOver{40, 10})...); len(said) != 199 {
		t.Errorf("a quarter is reset: a problem for %d s of 200", len(said))
	}
}

func TestFewResetsAndNobodyAreNoProblem(t *testing.T) {
	for name, s := range map[string][]TakenOver{
		"nobody connects":          times(60, TakenOver{}),
		"nothing is reset":         times(60, TakenOver{50, 0}),
		"one in a hundred":         times(60, TakenOver{100, 1}),
		"two once":                 together(times(5, TakenOver{}), times(2, TakenOver{1, 1}), times(60, TakenOver{})),
		"one in a while":           together(times(1, TakenOver{1, 1}), times(12, TakenOver{}), times(1, TakenOver{1, 1}), times(12, TakenOver{}), times(1, TakenOver{1, 1})),
		"a table is flushed, once": together(times(1, TakenOver{20, 2}), times(60, TakenOver{20, 0})),
	} {
		if said := lasting(&Resets{}, s...); len(said) != 0 {
			t.Errorf("%s: a problem after seconds %v", name, said)
		}
	}
}

func TestWhatWasCountedWhileNobodyLookedIsNotJudged(t *testing.T) {
	r, start := &Resets{}, time.Unix(1e9, 0)
	r.Look(start, TakenOver{10, 0})
	if resets := r.Look(start.Add(time.Minute), TakenOver{60, 50}); resets {
		t.Error("the process was stopped, and the resets are of any time")
	}
	if resets := r.Look(start.Add(61*time.Second), TakenOver{}); resets {
		t.Error("counters that began again are resets")
	}
	if !r.Look(start.Add(62*time.Second), TakenOver{3, 3}) {
		t.Error("three resets are no problem")
	}
}

package unanswered

import (
	"slices"
	"testing"
	"time"
)

// second is what is counted in one.
type second struct{ syns, answers uint64 }

// looks returns what a judge says after each second.
func looks(j *Judge, start time.Time, from Counts, seconds ...second) (said []bool) {
	for i, s := range seconds {
		from.SYNs += s.syns
		from.Answers += s.answers
		said = append(said, j.Look(start.Add(time.Duration(i)*time.Second), from))
	}
	return said
}

func repeat(times int, s second) (out []second) {
	for range times {
		out = append(out, s)
	}
	return out
}

func TestSYNsWithoutAnswersAreNoticedWithinTheWindowAndForgottenAfterIt(t *testing.T) {
	said := looks(&Judge{}, time.Unix(1e9, 0), Counts{1e6, 9e5}, append(append(repeat(12, second{20, 20}), repeat(12, second{20, 1})...), repeat(12, second{20, 20})...)...)
	first, last := -1, -1
	for i, lost := range said {
		if lost && first < 0 {
			first = i
		}
		if lost {
			last = i
		}
	}
	if first < 12 || first > 12+10 {
		t.Errorf("noticed after second %d, the answers stopped after second 11", first)
	}
	if last < 23 || last > 24+10 {
		t.Errorf("said until second %d, answers came again from second 24 on", last)
	}
}

func TestWhatIsAnsweredWellEnoughOrHardlyAskedIsNoLoss(t *testing.T) {
	for name, s := range map[string]second{
		"all answered":              {20, 20},
		"a SYN counted twice":       {40, 20}, // by a VLAN and the device below
		"answers sent again":        {20, 60},
		"nothing":                   {0, 0},
		"answers without SYNs":      {0, 3},
		"a client that gives up":    {1, 1},
		"mostly answered, some not": {20, 12},
	} {
		for i, lost := range looks(&Judge{}, time.Unix(1e9, 0), Counts{}, repeat(30, s)...) {
			if lost {
				t.Errorf("%s: a loss after %d s", name, i)
				break
			}
		}
	}
	if said := looks(&Judge{}, time.Unix(1e9, 0), Counts{}, append(repeat(10, second{}), second{9, 0}, second{}, second{})...); said[10] || said[12] {
		t.Error("nine SYNs without an answer are a loss: one scanner would do")
	}
}

// A service that few clients ask for is as broken as one that many do: it must not look well every other second.
func TestALossGoesOnUntilAnswersComeOrNobodyAsks(t *testing.T) {
	few := append(repeat(12, second{2, 0}), repeat(60, second{1, 0})...)
	for i := 40; i < len(few); i += 3 {
		few[i] = second{}
	}
	for name, then := range map[string]second{"answers": {2, 1}, "nobody asks": {}} {
		said := looks(&Judge{}, time.Unix(1e9, 0), Counts{}, append(few, repeat(12, then)...)...)
		if i := slices.Index(said[12:len(few)], false); i >= 0 {
			t.Errorf("%s: no loss after second %d, and nothing was answered", name, 12+i)
		}
		if said[len(said)-1] {
			t.Errorf("%s: a loss for 12 s more", name)
		}
	}
}

func TestCountsThatBeginAgainAndLooksThatWereMissedStartAnew(t *testing.T) {
	j, start := &Judge{}, time.Unix(1e9, 0)
	if said := looks(j, start, Counts{}, repeat(10, second{50, 0})...); !said[9] {
		t.Fatal("500 SYNs without an answer are no loss")
	}
	if j.Look(start.Add(10*time.Second), Counts{}) {
		t.Error("counters that began again at 0 are a loss")
	}
	if j.Look(start.Add(time.Minute), Counts{SYNs: 1000}) { // the process was stopped, and answers may be of any time
		t.Error("what was counted in a minute without a look is judged")
	}
}

package follow

import (
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// controllers tell every change in order, coalesced at random, late at random, over streams that break at random.
func TestNodeEndsWithTheNewestStateWhateverOrderItIsToldIn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history := []map[int]int{{}} // revision -> the whole state
		for range rapid.IntRange(1, 30).Draw(t, "changes") {
			next := maps.Clone(history[len(history)-1])
			next[rapid.IntRange(0, 4).Draw(t, "key")] = rapid.IntRange(0, 100).Draw(t, "value")
			history = append(history, next)
		}
		var f Follower
		have, names := map[int]int{}, []string{"c1", "c2", "c3"}
		sent := map[string]int{} // by stream; absent: not connected
		take := func(name string, to int, complete bool) {
			if !f.Offer(name, uint64(to), complete) {
				return
			}
			if complete {
				have = maps.Clone(history[to])
			} else {
				for key, value := range history[to] {
					if old, ok := history[sent[name]][key]; !ok || old != value {
						have[key] = value
					}
				}
			}
			f.Revision = uint64(to)
		}
		for range rapid.IntRange(1, 60).Draw(t, "messages") {
			name := rapid.SampledFrom(names).Draw(t, "controller")
			from, connected := sent[name]
			switch {
			case !connected:
				to := rapid.IntRange(0, len(history)-1).Draw(t, "joined at")
				take(name, to, true)
				sent[name] = to
			case rapid.IntRange(0, 9).Draw(t, "cut") == 0:
				f.Left(name)
				delete(sent, name)
			default:
				to := rapid.IntRange(from, len(history)-1).Draw(t, "to")
				take(name, to, false)
				sent[name] = to
			}
			if !maps.Equal(have, history[f.Revision]) {
				t.Fatalf("at revision %d: have %v, want %v", f.Revision, have, history[f.Revision])
			}
		}
	})
}

func TestNodeGivesUpARevisionThatNobodyKnowsAnyMore(t *testing.T) {
	f := Follower{Revision: 100}
	now := time.Unix(1000, 0)
	if f.Stranded(now) || f.Stranded(now.Add(time.Hour)) {
		t.Fatal("stranded without a controller")
	}
	f.Offer("c1", 7, true)
	if f.Stranded(now) || f.Stranded(now.Add(strandedAfter-1)) {
		t.Fatal("gave up at once")
	}
	f.Offer("c2", 100, true)
	if f.Stranded(now.Add(strandedAfter)) {
		t.Fatal("gave up although one controller knows the revision")
	}
	f.Left("c2")
	f.Stranded(now.Add(strandedAfter))
	if !f.Stranded(now.Add(2 * strandedAfter)) {
		t.Fatal("never gave up")
	}
}

func TestOlderWeightsAreIgnoredAndLostOnesMendedByACompleteUpdate(t *testing.T) {
	var w Weights
	steps := []struct {
		term, version uint64
		complete      bool
		ids, weights  []uint32
		changed       bool
		want          map[uint16]uint16
	}{
		{1, 1, true, []uint32{1, 2}, []uint32{4, 3}, true, map[uint16]uint16{1: 4, 2: 3}},
		{1, 2, false, []uint32{2}, []uint32{0}, true, map[uint16]uint16{1: 4, 2: 0}},
		{1, 2, false, []uint32{2}, []uint32{9}, false, map[uint16]uint16{1: 4, 2: 0}},
		{0, 9, true, nil, nil, false, map[uint16]uint16{1: 4, 2: 0}},
		{1, 4, false, []uint32{1}, []uint32{4}, false, map[uint16]uint16{1: 4, 2: 0}},
		{1, 5, true, []uint32{1, 3}, []uint32{1, 1}, true, map[uint16]uint16{1: 1, 3: 1}},
		{2, 1, false, []uint32{1 << 20, 1}, []uint32{1, 2}, true, map[uint16]uint16{1: 2, 3: 1}},
		{2, 2, false, []uint32{1}, nil, false, map[uint16]uint16{1: 2, 3: 1}},
	}
	for i, s := range steps {
		if changed := w.Take(s.term, s.version, s.complete, s.ids, s.weights); changed != s.changed || !maps.Equal(w.Values, s.want) {
			t.Fatalf("step %d: changed %v, have %v; want %v, %v", i, changed, w.Values, s.changed, s.want)
		}
	}
}

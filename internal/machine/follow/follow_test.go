package follow

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

// controllers tell every change in order, coalesced at random, late at random, over streams that break at random; and the node refuses
// some of it.
//
// Promise: A node has the newest state of several controllers, in any order of arrival.
func TestNodeEndsWithTheNewestStateWhateverOrderItIsToldIn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history, touched := []map[int]int{{}}, []int{-1} // revision -> the whole state, and the key that was changed
		for range rapid.IntRange(1, 30).Draw(t, "changes") {
			next, key := maps.Clone(history[len(history)-1]), rapid.IntRange(0, 4).Draw(t, "key")
			next[key] = rapid.IntRange(0, 3).Draw(t, "value")
			history, touched = append(history, next), append(touched, key)
		}
		var f Follower
		now := time.Unix(1000, 0)
		have, names := map[int]int{}, []string{"c1", "c2", "c3"}
		sent := map[string]int{} // by stream; absent: not connected
		take := func(name string, to int, complete, able bool) {
			if !f.Offer(name, uint64(to), complete) {
				return
			}
			if !able {
				f.Refuse(now, uint64(to))
				return
			}
			if complete {
				have = maps.Clone(history[to])
			} else {
				for _, key := range touched[sent[name]+1 : to+1] { // also what has become again what it was
					have[key] = history[to][key]
				}
			}
			f.Take(uint64(to))
		}
		leave := func(name string) {
			f.Forget(name)
			delete(sent, name)
		}
		for range rapid.IntRange(1, 60).Draw(t, "messages") {
			name := rapid.SampledFrom(names).Draw(t, "controller")
			from, connected := sent[name]
			able := rapid.IntRange(0, 4).Draw(t, "refused") > 0
			switch {
			case !connected:
				to := rapid.IntRange(0, len(history)-1).Draw(t, "joined at")
				take(name, to, true, able)
				sent[name] = to
			case rapid.IntRange(0, 9).Draw(t, "cut") == 0:
				leave(name)
			default:
				to := rapid.IntRange(from, len(history)-1).Draw(t, "to")
				take(name, to, false, able)
				sent[name] = to
			}
			if !maps.Equal(have, history[f.Revision]) {
				t.Fatalf("at revision %d: have %v, want %v", f.Revision, have, history[f.Revision])
			}
		}
		newest := len(history) - 1
		for _, name := range names { // all know the newest state, and the node can do it
			if from, connected := sent[name]; connected && from < newest {
				take(name, newest, false, true)
			}
		}
		for range 3 {
			now = now.Add(max(resyncInterval, aheadMax))
			if f.AheadOfAllControllers(now) {
				f.Yield()
			} else if !f.NeedsFullState(now) && len(sent) > 0 {
				continue
			}
			for _, name := range names {
				leave(name)
				take(name, newest, true, true)
				sent[name] = newest
			}
		}
		if int(f.Revision) != newest || !maps.Equal(have, history[newest]) {
			t.Fatalf("in the end at revision %d of %d: have %v, want %v", f.Revision, newest, have, history[newest])
		}
	})
}

// A store is restored from a copy while nodes run by what it has lost, and goes on to the same revisions by other changes.
//
// Promise: When etcd is restored from a backup, nodes take the controllers' state as a whole after 10 s; a store
// without any service is never believed.
// Also held by TestControllersLiveThroughARestoreOfTheirStoreFromACopy and TestAnEmptiedStoreEndsNoFleet.
func TestNodeNeverMixesWhatAStoreHadWithWhatItHasSinceItWasRestored(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		touched := map[int]int{} // revision -> key that was changed, of the history that goes on
		change := func(history []map[int]int) []map[int]int {
			next, key := maps.Clone(history[len(history)-1]), rapid.IntRange(0, 4).Draw(t, "key")
			next[key] = rapid.IntRange(0, 99).Draw(t, "value")
			touched[len(history)] = key
			return append(slices.Clip(history), next)
		}
		lost := []map[int]int{{}} // revision -> the whole state
		for range rapid.IntRange(1, 10).Draw(t, "changes") {
			lost = change(lost)
		}
		history := lost[:rapid.IntRange(1, len(lost)).Draw(t, "copied")]
		f, have, now := Follower{Revision: uint64(len(lost) - 1)}, lost[len(lost)-1], time.Unix(1000, 0)
		sent := map[string]int{} // by stream; absent: not connected
		tell := func(name string) {
			from, connected := sent[name]
			to := len(history) - 1
			sent[name] = to
			take := f.Offer(name, uint64(to), !connected)
			if !connected && len(history[to]) == 0 && (!take || uint64(to) < f.Revision) { // as nodes do
				f.Disbelieve(name)
				return
			}
			if !take {
				return
			}
			told := maps.Clone(history[to])
			if connected {
				told = maps.Clone(have)
				for revision := from + 1; revision <= to; revision++ {
					told[touched[revision]] = history[to][touched[revision]]
				}
			}
			have = told
			f.Take(uint64(to))
		}
		leave := func(name string) {
			f.Forget(name)
			delete(sent, name)
		}
		names := []string{"c1", "c2", "c3"}
		tick := func(d time.Duration) {
			now = now.Add(d)
			switch {
			case f.AheadOfAllControllers(now):
				f.Yield()
			case !f.NeedsFullState(now):
				return
			}
			if rapid.Bool().Draw(t, "one more message before the stream ends") && len(sent) > 0 {
				tell(slices.Min(slices.Collect(maps.Keys(sent))))
			}
			for _, name := range names {
				leave(name)
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch name := rapid.SampledFrom(names).Draw(t, "controller"); rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				history = change(history)
			case 1:
				tick(time.Duration(rapid.IntRange(1, 12).Draw(t, "seconds")) * time.Second)
			case 2:
				leave(name)
			default:
				tell(name)
			}
			if r := int(f.Revision); !(r < len(lost) && maps.Equal(have, lost[r])) && !(r < len(history) && maps.Equal(have, history[r])) {
				t.Fatalf("at revision %d: have %v, which no store ever had: lost %v, restored %v", r, have, lost, history)
			}
		}
		if len(history[len(history)-1]) == 0 {
			return // nobody falls back to that
		}
		for range 5 {
			for _, name := range names {
				tell(name)
			}
			tick(aheadMax)
		}
		for _, name := range names {
			tell(name)
		}
		if f.AheadOfAllControllers(now) || f.AheadOfAllControllers(now.Add(aheadMax)) {
			t.Fatal("it has what all controllers have, and would yield again")
		}
		if newest := len(history) - 1; int(f.Revision) != newest || !maps.Equal(have, history[newest]) {
			t.Fatalf("in the end at revision %d of %d: have %v, want %v", f.Revision, newest, have, history[newest])
		}
	})
}

func TestWhatComesAfterARefusalIsTakenOnlyWithWhatWasRefused(t *testing.T) {
	now := time.Unix(1000, 0)
	f := Follower{Revision: 10}
	f.Offer("c1", 10, true)
	if !f.Offer("c1", 11, false) {
		t.Fatal("news was not offered")
	}
	f.Refuse(now, 11)
	if f.NeedsFullState(now) {
		t.Fatal("what was refused is asked for at once, with nothing new")
	}
	if f.Offer("c1", 12, false) {
		t.Fatal("took what comes after the refused state without it")
	}
	if !f.NeedsFullState(now) || f.NeedsFullState(now) {
		t.Fatal("joins again when there is news: once")
	}
	if !f.Offer("c2", 10, true) {
		t.Fatal("refused the complete state that it has")
	}
	f.Take(10)
	if f.Offer("c1", 13, false) {
		t.Fatal("a complete state that is older than the refused one does not make good for it")
	}
	if !f.Offer("c1", 13, true) {
		t.Fatal("refused a complete state")
	}
	f.Take(13)
	if f.NeedsFullState(now.Add(time.Hour)) || !f.Offer("c1", 14, false) {
		t.Fatal("still lacks something")
	}
	f.Refuse(now, 14)
	if f.NeedsFullState(now.Add(resyncInterval-1)) || !f.NeedsFullState(now.Add(resyncInterval)) {
		t.Fatal("a refused state is not tried again after a while")
	}
}

func TestNodeBelievesAControllerWhoseStoreIsOlderThanItWas(t *testing.T) {
	f := Follower{Revision: 100}
	now := time.Unix(1000, 0)
	f.Offer("c1", 100, true)
	f.Offer("c1", 7, true)
	f.AheadOfAllControllers(now)
	if !f.AheadOfAllControllers(now.Add(aheadMax)) {
		t.Fatal("never gave up")
	}
}

func TestNodeThatYieldsKeepsWhatItHasUntilItHasAnother(t *testing.T) {
	f := Follower{Revision: 100}
	f.Offer("c1", 7, true)
	f.Yield()
	if f.Revision != 100 || f.AheadOfAllControllers(time.Unix(1000, 0)) {
		t.Fatalf("it has revision %d and still counts what was told before", f.Revision)
	}
	if f.Offer("c1", 8, false) {
		t.Fatal("took changes of a state that it does not have")
	}
	if !f.Offer("c1", 8, true) {
		t.Fatal("refused a complete state")
	}
	f.Take(8)
	if f.Offer("c2", 7, true) {
		t.Fatal("took a second older state")
	}
}

func TestNodeThatHasTakenAnOlderStateIsBehindNobody(t *testing.T) {
	f := Follower{Revision: 10}
	f.Offer("c1", 5, true)
	f.Yield()
	f.Forget("c1")
	if !f.Offer("c1", 5, true) {
		t.Fatal("did not yield")
	}
	f.Take(5)
	now := time.Unix(1000, 0)
	if f.AheadOfAllControllers(now) || f.AheadOfAllControllers(now.Add(aheadMax)) || !f.Offer("c1", 6, false) {
		t.Fatal("does not go on with what it has taken")
	}
}

func TestNodeGivesUpARevisionThatNobodyKnowsAnyMore(t *testing.T) {
	f := Follower{Revision: 100}
	now := time.Unix(1000, 0)
	if f.AheadOfAllControllers(now) || f.AheadOfAllControllers(now.Add(time.Hour)) {
		t.Fatal("stranded without a controller")
	}
	f.Offer("c1", 7, true)
	if f.AheadOfAllControllers(now) || f.AheadOfAllControllers(now.Add(aheadMax-1)) {
		t.Fatal("gave up at once")
	}
	f.Offer("c2", 100, true)
	if f.AheadOfAllControllers(now.Add(aheadMax)) {
		t.Fatal("gave up although one controller knows the revision")
	}
	f.Forget("c2")
	f.AheadOfAllControllers(now.Add(aheadMax))
	if !f.AheadOfAllControllers(now.Add(2 * aheadMax)) {
		t.Fatal("never gave up")
	}
}

// Promise: Weight updates that are lost, late, repeated or out of order break nothing; the old weights stay until
// the next complete update, which is every eighth.
// Also held by TestStateIsNeverDelayedByWeights and TestLostWeightsCostLittle.
func TestOlderWeightsAreIgnoredAndLostOnesMendedByACompleteUpdate(t *testing.T) {
	var w Weights
	steps := []struct {
		Update
		newer, changed bool
		want           map[uint16]uint16
	}{
		{Update{1, 1, true, []model.Share{{ID: 1, Weight: 4}, {ID: 2, Weight: 3}}}, true, true, map[uint16]uint16{1: 4, 2: 3}},
		{Update{1, 2, false, []model.Share{{ID: 2, Weight: 0}}}, true, true, map[uint16]uint16{1: 4, 2: 0}},
		{Update{1, 2, false, []model.Share{{ID: 2, Weight: 9}}}, false, false, map[uint16]uint16{1: 4, 2: 0}},
		{Update{0, 9, true, nil}, false, false, map[uint16]uint16{1: 4, 2: 0}},
		{Update{1, 4, false, []model.Share{{ID: 1, Weight: 4}}}, true, false, map[uint16]uint16{1: 4, 2: 0}},
		{Update{1, 3, false, []model.Share{{ID: 1, Weight: 9}}}, false, false, map[uint16]uint16{1: 4, 2: 0}},
		{Update{1, 1, true, []model.Share{{ID: 2, Weight: 9}}}, false, false, map[uint16]uint16{1: 4, 2: 0}},
		{Update{1, 5, true, []model.Share{{ID: 1, Weight: 1}, {ID: 3, Weight: 1}}}, true, true, map[uint16]uint16{1: 1, 3: 1}},
		{Update{2, 1, false, []model.Share{{ID: 1, Weight: 2}}}, true, true, map[uint16]uint16{1: 2, 3: 1}},
	}
	for i, s := range steps {
		if newer, changed := w.Merge(&s.Update); newer != s.newer || changed != s.changed || !maps.Equal(w.Values, s.want) {
			t.Fatalf("step %d: newer %v, changed %v, have %v; want %v, %v, %v", i, newer, changed, w.Values, s.newer, s.changed, s.want)
		}
	}
}

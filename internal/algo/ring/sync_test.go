package ring

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func members(nodes ...uint16) (chain []Member) {
	for _, node := range nodes {
		chain = append(chain, Member{Node: node})
	}
	return chain
}

func TestTheFirstCommonNodeOfThePapersExample(t *testing.T) {
	// Figure 7: A2, A4 and A5 are gone, A7 and A8 have come, A6 has become the head; A3 is the first that was there all the time.
	chains := [][]Member{members(1, 2, 3, 4, 5), members(6, 1, 3, 4, 5), members(6, 8, 3, 7, 1)}
	if got, ok := FirstCommon(chains); !ok || got.Node != 1 {
		t.Errorf("%v %v", got, ok)
	}
	chains[2] = members(6, 8, 3, 7, 9)
	if got, ok := FirstCommon(chains); !ok || got.Node != 3 {
		t.Errorf("%v %v", got, ok)
	}
	if got, ok := FirstCommon([][]Member{members(1, 2), members(2, 3), members(3, 4)}); ok {
		t.Errorf("%v is common to chains that have nothing in common", got)
	}
	reborn := members(1, 2)
	reborn[1].Life = 2
	if got, ok := FirstCommon([][]Member{members(1, 2), members(2, 3), reborn}); ok {
		t.Errorf("%v has forgotten everything in between", got)
	}
}

func TestOneNodeMoreOrLessTakesExactlyLSyncs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.IntRange(1, 5).Draw(t, "L")
		before := drawList(t, length+1, length+10)
		after := drawChange(t, before, 2)
		if len(after) <= length {
			t.Skip("too few nodes are left")
		}
		fresh, cancelled := ComputeSync(Chains{Length: length}, []List{before, after}, nil, 7)
		if len(fresh) != length || len(cancelled) != 0 {
			t.Fatalf("%d syncs, want %d: %v", len(fresh), length, fresh)
		}
		for i, sync := range fresh {
			if sync.ID != 7+uint32(i) || sync.Lost != (length == 1) {
				t.Fatalf("sync %d: %+v", i, sync)
			}
		}
	})
}

// dumbSync returns what a position needs after a change, from all chains that it has had.
func dumbSync(chains Chains, lists []List, at Position) (needed bool, node uint16) {
	var all [][]Member
	for _, list := range lists {
		all = append(all, dumbChain(list, at, chains.Length))
	}
	last := len(all) - 1
	if slices.EqualFunc(all[last-1], all[last], Member.Same) {
		return false, 0
	}
	for _, candidate := range all[0] {
		common := true
		for _, chain := range all {
			common = common && Includes(chain, candidate)
		}
		if common {
			return true, candidate.Node
		}
	}
	return true, 0
}

func TestSyncsAreThoseThatLookingAtEveryKeyFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chains := Chains{Length: rapid.IntRange(1, 4).Draw(t, "L")}
		lists := []List{drawList(t, 1, 8)}
		for version := range rapid.Uint32Range(1, 4).Draw(t, "changes") {
			lists = append(lists, drawChange(t, lists[version], version+2))
		}
		fresh, _ := ComputeSync(chains, lists, nil, 0)
		keys := rapid.SliceOfN(rapid.Uint32(), 30, 30).Draw(t, "keys")
		for _, member := range slices.Concat(lists...) {
			keys = append(keys, uint32(member.At), uint32(member.At)-1)
		}
		for _, key := range keys {
			needed, node := dumbSync(chains, lists, Position(key))
			covering := slices.DeleteFunc(slices.Clone(fresh), func(s Sync) bool { return !s.Range.Contains(Position(key)) })
			switch {
			case !needed && len(covering) != 0 || needed && len(covering) != 1:
				t.Fatalf("key %d: needed %v, %v", key, needed, covering)
			case needed && node != 0 && (covering[0].Node != node || covering[0].Lost):
				t.Fatalf("key %d: first common node %d, %v", key, node, covering)
			case needed && node == 0 && !covering[0].Lost:
				t.Fatalf("key %d: no common node, %v", key, covering)
			}
		}
	})
}

func TestSharesReachEachNodeThatLacksEntriesOnceFromACommonNodeNextToIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chains := Chains{Length: rapid.IntRange(2, 6).Draw(t, "L"), Share: true}
		lists := []List{drawList(t, 1, 8)}
		for version := range rapid.Uint32Range(1, 3).Draw(t, "changes") {
			lists = append(lists, drawChange(t, lists[version], version+2))
		}
		fresh, _ := ComputeSync(chains, lists, nil, 0)
		for _, key := range rapid.SliceOfN(rapid.Uint32(), 30, 30).Draw(t, "keys") {
			checkShares(t, chains, lists, fresh, Position(key))
		}
		type end struct {
			node uint16
			at   Position
		}
		ends := map[end]bool{}
		for _, s := range fresh {
			if ends[end{s.Node, s.Range.High}] {
				t.Fatalf("node %d has two shares that end at %d: %v", s.Node, s.Range.High, fresh)
			}
			ends[end{s.Node, s.Range.High}] = true
		}
	})
}

// checkShares checks who sends the keys at a position to whom.
func checkShares(t *rapid.T, chains Chains, lists []List, syncs []Sync, at Position) {
	needed, first := dumbSync(chains, lists, at)
	if !needed || first == 0 {
		return
	}
	current := lists[len(lists)-1]
	chain := chains.At(current, at)
	nodes, isCommon := Nodes(chain), make([]bool, len(chain))
	commons, last, shared := 0, 0, true
	for place, member := range chain {
		isCommon[place] = !slices.ContainsFunc(lists, func(list List) bool { return !Includes(chains.At(list, at), member) })
		if isCommon[place] {
			shared = shared && (commons == 0 || place-last <= 2) // of two nodes between, one alone may have an entry
			commons, last = commons+1, place
		}
	}
	got := make([]int, len(chain))
	for _, s := range syncs {
		if !s.Range.Contains(at) {
			continue
		}
		sender := slices.Index(nodes, s.Node)
		if !shared {
			if s.To != (Places{}) || s.Node != first {
				t.Fatalf("%+v of %v, common %v", s, nodes, isCommon)
			}
			got = slices.Repeat([]int{1}, len(chain))
			for place := range chain {
				if isCommon[place] {
					got[place] = 0
				}
			}
			continue
		}
		if s.To == (Places{}) && commons > 1 || s.Lost || !isCommon[sender] {
			t.Fatalf("%+v of %v, common %v", s, nodes, isCommon)
		}
		for place := range chain {
			if !slices.Contains(s.To.Of(nodes), nodes[place]) || place == sender {
				continue
			}
			got[place]++
			between := isCommon[min(place, sender)+1 : max(place, sender)]
			if slices.Contains(between, true) || place < slices.Index(nodes, first) && s.Node != first || s.To.First == 0 && s.Node != first {
				t.Fatalf("%+v sends to %d in %v, common %v", s, nodes[place], nodes, isCommon)
			}
			if !slices.Contains(isCommon[place:], true) && slices.Contains(isCommon[sender+1:], true) {
				t.Fatalf("%+v sends to %d behind the last common node of %v, common %v", s, nodes[place], nodes, isCommon)
			}
		}
	}
	for place := range chain {
		if want := map[bool]int{false: 1}[isCommon[place]]; got[place] != want {
			t.Fatalf("node %d of %v receives %d times, want %d; common %v: %+v", nodes[place], nodes, got[place], want, isCommon, syncs)
		}
	}
}

func TestOneNodeMoreIsCopiedToByTheNodesOnBothSidesOfIt(t *testing.T) {
	before := Even(numbers(6), 1)
	after := before.AddAt(Member{Node: 7, Life: 2, At: before[2].At + 0x1000})
	fresh, _ := ComputeSync(Chains{Length: 3, Share: true}, []List{before, after}, nil, 0)
	middle := before[3].At + (before[4].At-before[3].At)/2
	want := []Sync{
		{ID: 0, Range: Range{after[3].At, before[3].At}, Node: 3, To: Places{2, 3}}, // chain 2 3 7
		{ID: 1, Range: Range{before[3].At, middle}, Node: 3, To: Places{1, 2}},      // chain 3 7 4
		{ID: 2, Range: Range{middle, before[4].At}, Node: 4, To: Places{1, 2}},
		{ID: 3, Range: Range{before[4].At, before[5].At}, Node: 4, To: Places{0, 1}}, // chain 7 4 5
	}
	if !slices.Equal(fresh, want) {
		t.Errorf("%+v, want %+v", fresh, want)
	}
}

func TestPlacesBeyondAChainHaveNoNodes(t *testing.T) {
	chain := []uint16{5, 6, 7}
	for places, want := range map[Places][]uint16{{}: chain, {0, 1}: {5}, {1, 3}: {6, 7}, {2, 9}: {7}, {8, 9}: nil, {2, 1}: nil} {
		if got := places.Of(chain); !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", places, got, want)
		}
	}
}

// afterChange returns the syncs that go on after the last change of the lists.
func afterChange(chains Chains, lists []List, ongoing []Sync, nextID *uint32) []Sync {
	fresh, cancelled := ComputeSync(chains, lists, ongoing, *nextID)
	*nextID += uint32(len(fresh))
	return append(slices.DeleteFunc(ongoing, func(s Sync) bool { return slices.Contains(cancelled, s.ID) }), fresh...)
}

func TestEveryKeyWhoseChainHasChangedIsSyncedInTheEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chains := Chains{Length: rapid.IntRange(1, 4).Draw(t, "L")}
		lists := []List{drawList(t, 1, 8)}
		dirty := map[uint32]bool{} // key: its chain has changed since it was last synced
		for _, key := range rapid.SliceOfN(rapid.Uint32(), 30, 30).Draw(t, "keys") {
			dirty[key] = false
		}
		var ongoing []Sync
		nextID := uint32(0)
		for version := range rapid.Uint32Range(1, 6).Draw(t, "changes") {
			lists = append(lists, drawChange(t, lists[version], version+2))
			ongoing = afterChange(chains, lists, ongoing, &nextID)
			for key := range dirty {
				dirty[key] = dirty[key] || chains.changed(lists[len(lists)-2:], Position(key))
				covering := 0
				for _, sync := range ongoing {
					if sync.Range.Contains(Position(key)) {
						covering++
					}
				}
				if dirty[key] != (covering > 0) || covering > 1 {
					t.Fatalf("version %d, key %d: changed %v, in %d syncs", version, key, dirty[key], covering)
				}
			}
			if len(ongoing) > 0 && rapid.Bool().Draw(t, "one ends") {
				i := rapid.IntRange(0, len(ongoing)-1).Draw(t, "which")
				for key := range dirty {
					dirty[key] = dirty[key] && !ongoing[i].Range.Contains(Position(key))
				}
				ongoing = slices.Delete(ongoing, i, i+1)
			}
		}
	})
}

func TestEveryNodeThatLacksEntriesIsCopiedToWhateverSharesHaveEnded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chains := Chains{Length: rapid.IntRange(2, 5).Draw(t, "L"), Share: true}
		lists := []List{drawList(t, 1, 8)}
		keys := rapid.SliceOfN(rapid.Uint32(), 30, 30).Draw(t, "keys")
		lacking := map[uint32][]uint16{}
		var ongoing []Sync
		nextID := uint32(0)
		for version := range rapid.Uint32Range(1, 5).Draw(t, "changes") {
			lists = append(lists, drawChange(t, lists[version], version+2))
			ongoing = afterChange(chains, lists, ongoing, &nextID)
			for _, key := range keys {
				if chains.changed(lists[len(lists)-2:], Position(key)) {
					lacking[key] = notCommon(chains, lists, Position(key))
				}
				receivers := receiversOf(ongoing, chains.At(lists[len(lists)-1], Position(key)), Position(key))
				for i, node := range receivers {
					if slices.Contains(receivers[:i], node) {
						t.Fatalf("version %d, key %d: %d receives twice: %+v", version, key, node, ongoing)
					}
				}
				for _, node := range lacking[key] {
					if !slices.Contains(receivers, node) {
						t.Fatalf("version %d, key %d: %d receives nothing: %+v", version, key, node, ongoing)
					}
				}
			}
			if len(ongoing) > 0 && rapid.Bool().Draw(t, "one ends") {
				i := rapid.IntRange(0, len(ongoing)-1).Draw(t, "which")
				for _, key := range keys {
					received := receiversOf(ongoing[i:i+1], chains.At(lists[len(lists)-1], Position(key)), Position(key))
					lacking[key] = slices.DeleteFunc(lacking[key], func(node uint16) bool { return slices.Contains(received, node) })
				}
				ongoing = slices.Delete(ongoing, i, i+1)
			}
		}
	})
}

// notCommon returns the nodes of a position's chain that are not in all chains that it has had; none: there are no others.
func notCommon(chains Chains, lists []List, at Position) (nodes []uint16) {
	chain := chains.At(lists[len(lists)-1], at)
	for _, member := range chain {
		if slices.ContainsFunc(lists, func(list List) bool { return !Includes(chains.At(list, at), member) }) {
			nodes = append(nodes, member.Node)
		}
	}
	if len(nodes) == len(chain) {
		return nil
	}
	return nodes
}

// receiversOf returns the nodes of a position's chain that syncs send to.
func receiversOf(syncs []Sync, chain []Member, at Position) (nodes []uint16) {
	for _, s := range syncs {
		for _, node := range s.To.Of(Nodes(chain)) {
			if s.Range.Contains(at) && node != s.Node {
				nodes = append(nodes, node)
			}
		}
	}
	return nodes
}

func TestAPureRemovalNeedsSyncsThoughNoCurrentChainHasTheRemovedNode(t *testing.T) {
	before := Even(numbers(5), 1)
	after := before.Remove(3)
	fresh, _ := ComputeSync(Chains{Length: 2}, []List{before, after}, nil, 0)
	want := []Sync{
		{ID: 0, Range: Range{before[2].At, before[3].At}, Node: 2}, // chain 2 3, then 1 2
		{ID: 1, Range: Range{before[3].At, before[4].At}, Node: 4}, // chain 3 4, then 2 4
	}
	if !slices.Equal(fresh, want) {
		t.Errorf("%+v, want %+v", fresh, want)
	}
}

func TestTwoAlternateNodesOfFourMayGoAtOnceWhenChainsAreOfTwo(t *testing.T) {
	before := Even(numbers(4), 1)
	for name, example := range map[string]struct {
		after List
		loses bool
	}{
		"alternate":  {before.Remove(1).Remove(3), false},
		"neighbours": {before.Remove(1).Remove(2), true},
	} {
		if got := (Chains{Length: 2}).Loses([]List{before, example.after}); got != example.loses {
			t.Errorf("%s: loses %v", name, got)
		}
	}
}

func TestRangesReachAroundTheCircle(t *testing.T) {
	around := Range{Low: 0xfffffff0, High: 0x10}
	for at, want := range map[Position]bool{0xfffffff0: true, 0xffffffef: false, 0: true, 0xf: true, 0x10: false} {
		if around.Contains(at) != want {
			t.Errorf("%#x: %v", at, !want)
		}
	}
	all := Range{7, 7}
	if !all.Contains(6) || !all.Overlaps(around) || !around.Overlaps(all) || around.Overlaps(Range{0x10, 0x20}) {
		t.Error("overlap")
	}
}

package ring

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// dumbChain sorts all nodes by how far before the key they are, and takes the nearest.
func dumbChain(list List, key Position, length int) []Member {
	nearest := slices.Clone(list)
	slices.SortFunc(nearest, func(a, b Member) int { return cmp.Compare(key-a.At, key-b.At) })
	nearest = nearest[:min(length, len(nearest))]
	slices.Reverse(nearest)
	return nearest
}

func drawList(t *rapid.T, least, most int) List {
	positions := rapid.SliceOfNDistinct(rapid.Uint32(), least, most, rapid.ID).Draw(t, "positions")
	slices.Sort(positions)
	nodes := rapid.Permutation(numbers(len(positions))).Draw(t, "nodes")
	list := make(List, len(positions))
	for i, at := range positions {
		list[i] = Member{Node: nodes[i], Life: 1, At: Position(at)}
	}
	return list
}

func numbers(n int) []uint16 {
	nodes := make([]uint16, n)
	for i := range nodes {
		nodes[i] = uint16(i + 1)
	}
	return nodes
}

// drawChange returns the list with a random node more or less.
func drawChange(t *rapid.T, list List, version uint32) List {
	if len(list) > 1 && rapid.Bool().Draw(t, "remove") {
		return list.Remove(rapid.SampledFrom(list).Draw(t, "removed").Node)
	}
	at := Position(rapid.Uint32().Filter(func(at uint32) bool {
		return !slices.ContainsFunc(list, func(m Member) bool { return m.At == Position(at) })
	}).Draw(t, "at"))
	return list.AddAt(Member{Node: uint16(1000 + version), Life: version, At: at})
}

func TestAChainEndsWithTheLastNodeAtOrBeforeTheKey(t *testing.T) {
	list := List{{1, 1, 100}, {2, 1, 200}, {3, 1, 300}, {4, 1, 400}, {5, 1, 500}}
	for _, example := range []struct {
		at     Position
		length int
		want   []uint16
	}{
		{100, 1, []uint16{1}}, {199, 1, []uint16{1}}, {200, 1, []uint16{2}}, {99, 1, []uint16{5}}, {math.MaxUint32, 1, []uint16{5}},
		{350, 3, []uint16{1, 2, 3}}, {250, 3, []uint16{5, 1, 2}}, {0, 2, []uint16{4, 5}},
		{350, 5, []uint16{4, 5, 1, 2, 3}}, {350, 9, []uint16{4, 5, 1, 2, 3}},
	} {
		if got := Nodes((Chains{Length: example.length}).At(list, example.at)); !slices.Equal(got, example.want) {
			t.Errorf("chain of %d at %d: %v, want %v", example.length, example.at, got, example.want)
		}
	}
	if got := Nodes((Chains{Length: 3, TailAfter: true}).At(list, 350)); !slices.Equal(got, []uint16{2, 3, 4}) {
		t.Errorf("chain that ends after the key: %v", got)
	}
	if (Chains{Length: 3}).At(nil, 7) != nil {
		t.Error("an empty list has chains")
	}
}

func TestChainsAreThoseThatSortingFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := drawList(t, 1, 12)
		key, length := Position(rapid.Uint32().Draw(t, "key")), rapid.IntRange(1, 14).Draw(t, "L")
		if got, want := (Chains{Length: length}).At(list, key), dumbChain(list, key, length); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

// ordered reports whether nodes that are in both chains come in the same order in both.
func ordered(a, b []Member) bool {
	common := slices.DeleteFunc(slices.Clone(a), func(m Member) bool { return !Includes(b, m) })
	inB := slices.DeleteFunc(slices.Clone(b), func(m Member) bool { return !Includes(a, m) })
	return slices.EqualFunc(common, inB, Member.Same)
}

func TestNodesOfAChainNeverChangeTheirOrderWhoeverComesOrGoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := drawList(t, 1, 8)
		chains := Chains{Length: rapid.IntRange(1, 9).Draw(t, "L")} // of all nodes, too
		key := Position(rapid.Uint32().Draw(t, "key"))
		var before [][]Member
		for version := range uint32(6) {
			before = append(before, chains.At(list, key))
			list = drawChange(t, list, version+2)
			after := chains.At(list, key)
			for _, earlier := range before {
				if !ordered(earlier, after) {
					t.Fatalf("at %d: %v, then %v", key, Nodes(earlier), Nodes(after))
				}
			}
		}
	})
}

func TestNodesOfAChainOfAllNodesChangeTheirOrderWhenTheTailIsAfterTheKey(t *testing.T) {
	chains := Chains{Length: 3, TailAfter: true}
	list := Even(numbers(3), 1)
	before, after := chains.At(list, list[1].At+1), chains.At(list.Remove(3), list[1].At+1)
	if ordered(before, after) {
		t.Errorf("%v, then %v", Nodes(before), Nodes(after))
	}
}

func TestEvenNodesHaveEvenShares(t *testing.T) {
	for n := 1; n <= 300; n++ {
		list := Even(numbers(n), 1)
		if got := list.Imbalance(); math.Abs(got-1) > 1e-6 {
			t.Errorf("%d nodes: %v", n, got)
		}
		sum := 0.0
		for _, member := range list {
			sum += list.Share(member.Node)
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("%d nodes: shares add up to %v", n, sum)
		}
	}
}

func TestEvenKeysLeadToEvenTails(t *testing.T) {
	list, tails := Even(numbers(14), 1), map[uint16]int{}
	random := rand.New(rand.NewPCG(1, 2))
	const keys = 280_000
	for range keys {
		chain := Chains{Length: 3}.At(list, Key(random.Uint64()).Position())
		tails[chain[2].Node]++
	}
	for node, got := range tails {
		if math.Abs(float64(got)-keys/14) > 5*math.Sqrt(keys/14) {
			t.Errorf("node %d is the tail of %d keys of %d", node, got, keys)
		}
	}
}

func TestOneLevelStepIsEnoughAfterOneNodeCameOrWent(t *testing.T) {
	for n := 2; n <= 100; n++ {
		even := Even(numbers(n), 1)
		for name, list := range map[string]List{"came": even.Add(1000, 2), "went": even.Remove(uint16(1 + n/2))} {
			level, _ := list.Level()
			if got := level.Imbalance(); got > 1.001 {
				t.Errorf("one %s at %d nodes: %.3f, before %.3f", name, n, got, list.Imbalance())
			}
		}
	}
}

func TestLevellingKeepsAllButOneNodeOfEveryChainAndEndsEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := drawList(t, 3, 20)
		length := rapid.IntRange(2, len(list)-1).Draw(t, "L")
		keys := rapid.SliceOfN(rapid.Uint32(), 20, 20).Draw(t, "keys")
		steps := 0
		for moved := true; moved; steps++ {
			var next List
			next, moved = list.Level()
			if !slices.IsSortedFunc(next, func(a, b Member) int { return cmp.Compare(a.At, b.At) }) {
				t.Fatalf("not in order: %v", next)
			}
			chains := Chains{Length: length}
			for _, key := range keys {
				before, after := chains.At(list, Position(key)), chains.At(next, Position(key))
				kept := slices.DeleteFunc(slices.Clone(after), func(m Member) bool { return !Includes(before, m) })
				if len(kept) < len(before)-1 || !ordered(before, after) {
					t.Fatalf("at %d: %v, then %v", key, Nodes(before), Nodes(after))
				}
			}
			if steps > 10*len(list) {
				t.Fatalf("not even after %d steps: %v", steps, list)
			}
			list = next
		}
		if list.Imbalance() > 1.001 {
			t.Fatalf("ends with %v: %v", list.Imbalance(), list)
		}
	})
}

func TestRandomNodeIdsAreAsUnevenAsThePapersMustBe(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, example := range []struct {
		n          int
		harmonicOf float64
	}{{4, 2.08}, {14, 3.25}} { // the longest of n random arcs is H(n)/n of the circle
		sum := 0.0
		const rounds = 4000
		for range rounds {
			list := List{}
			for i := range example.n {
				list = list.AddAt(Member{Node: uint16(i + 1), At: Position(random.Uint32())})
			}
			sum += list.Imbalance()
		}
		if got := sum / rounds; math.Abs(got-example.harmonicOf) > 0.06 {
			t.Errorf("%d nodes: %.2f, want %.2f", example.n, got, example.harmonicOf)
		}
	}
}

func TestAddHalvesTheLongestArc(t *testing.T) {
	list := List{{1, 1, 0}, {2, 1, 100}, {3, 1, 1000}}
	want := List{{1, 1, 0}, {2, 1, 100}, {3, 1, 1000}, {4, 2, 1000 + (circle-1000)/2}}
	if got := list.Add(4, 2); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := list.Remove(2); !slices.Equal(got, List{{1, 1, 0}, {3, 1, 1000}}) || len(list) != 3 {
		t.Errorf("%v", got)
	}
	if got := (List{}).Add(7, 3); !slices.Equal(got, List{{7, 3, 0}}) {
		t.Errorf("%v", got)
	}
}

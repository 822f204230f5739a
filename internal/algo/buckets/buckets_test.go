package buckets

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func count(owners []uint32, servers int) []int {
	owned := make([]int, servers)
	for _, owner := range owners {
		owned[owner]++
	}
	return owned
}

func TestOnlyWhatMustMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers, per := rapid.IntRange(1, 8).Draw(t, "servers"), rapid.IntRange(1, 6).Draw(t, "buckets of each")
		table := New(servers, per)
		present := make([]bool, servers)
		for s := range present {
			present[s] = true
		}
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			s := rapid.Uint32Range(0, uint32(servers-1)).Draw(t, "server")
			before := slices.Clone(table.Owners())
			var moves []Move
			if present[s] = !present[s]; present[s] {
				moves = table.Return(s)
			} else {
				moves = table.Remove(s)
			}
			replayed, seen := slices.Clone(before), map[int]bool{}
			for _, move := range moves {
				if seen[move.Bucket] || replayed[move.Bucket] == move.Owner {
					t.Fatalf("%+v moves a bucket for nothing", move)
				}
				seen[move.Bucket], replayed[move.Bucket] = true, move.Owner
			}
			if !slices.Equal(replayed, table.Owners()) {
				t.Fatalf("moves %v lead to %v instead of %v", moves, replayed, table.Owners())
			}
			if !slices.Contains(present, true) {
				continue
			}
			for bucket, owner := range table.Owners() {
				home := uint32(bucket % servers)
				switch {
				case !present[owner] || table.Present(owner) != present[owner]:
					t.Fatalf("bucket %d is with %d, which is away", bucket, owner)
				case present[home] && owner != home:
					t.Fatalf("bucket %d is with %d, and not at home with %d", bucket, owner, home)
				case owner != before[bucket] && before[bucket] != s && owner != s:
					t.Fatalf("bucket %d moved from %d to %d when %d changed", bucket, before[bucket], owner, s)
				}
			}
		}
	})
}

func TestAllAreHomeWhenEverybodyIsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const servers = 6
		table := New(servers, 4)
		for _, s := range rapid.SliceOf(rapid.Uint32Range(0, servers-1)).Draw(t, "changes") {
			if table.Present(s) {
				table.Remove(s)
			} else {
				table.Return(s)
			}
		}
		for s := range uint32(servers) {
			table.Return(s)
		}
		for bucket, owner := range table.Owners() {
			if int(owner) != bucket%servers {
				t.Errorf("bucket %d is with %d", bucket, owner)
			}
		}
	})
}

func TestTheBucketsOfWhoLeavesAreSpreadEvenly(t *testing.T) {
	const servers, per = 50, 100
	table := New(servers, per)
	for _, s := range []uint32{3, 17, 40, 41, 42} {
		table.Remove(s)
	}
	owned := count(table.Owners(), servers)
	for s, n := range owned {
		if table.Present(uint32(s)) && (n < per*servers/45-4 || n > per*servers/45+4) {
			t.Errorf("server %d has %d buckets", s, n)
		}
	}
}

func TestGuestsThatWentHomeAreForgotten(t *testing.T) {
	table := New(2, 10)
	for range 1000 {
		table.Remove(0)
		table.Return(0)
	}
	if n := len(table.servers[1].guests); n > 40 {
		t.Errorf("%d guests are remembered", n)
	}
}

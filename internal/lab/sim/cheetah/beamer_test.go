package cheetah

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

func TestBucketsMoveOnlyToWhoComesAndFromWhoLeaves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const all, size = 12, 600
		draw := random.New(rapid.Uint64().Draw(t, "seed"), "buckets")
		table := newStable(rapid.IntRange(2, all).Draw(t, "present"), all, size, nil)
		if rapid.Bool().Draw(t, "drawn") {
			table.drawn = &draw
		}
		for range 30 {
			server := uint32(rapid.IntRange(0, all-1).Draw(t, "server"))
			leaves := slices.Contains(table.present, server)
			if leaves && len(table.present) == 1 {
				continue
			}
			before := slices.Clone(table.owners)
			if leaves {
				table.Remove(server)
			} else if moves := table.Return(server); len(moves) != size/len(table.present) {
				t.Fatalf("one of %d servers got %d of %d buckets", len(table.present), len(moves), size)
			}
			for bucket, owner := range table.owners {
				if moved := owner != before[bucket]; moved && (leaves && before[bucket] != server || !leaves && owner != server) || leaves && owner == server {
					t.Fatalf("server %d, leaves %v: bucket %d moved from %d to %d", server, leaves, bucket, before[bucket], owner)
				}
				if !slices.Contains(table.present, owner) {
					t.Fatalf("bucket %d belongs to %d, which is away", bucket, owner)
				}
			}
		}
	})
}

func TestTheOldestBucketsMove(t *testing.T) {
	table := newStable(3, 4, 12, nil) // four buckets each
	for _, move := range table.Return(3) {
		if move.Bucket > 2 {
			t.Errorf("bucket %d moved, which is not among the oldest", move.Bucket)
		}
	}
	table.Remove(3) // 0, 1 and 2 are now the newest
	for _, move := range table.Return(3) {
		if move.Bucket < 3 || move.Bucket > 5 {
			t.Errorf("bucket %d moved, which is not among the oldest", move.Bucket)
		}
	}
}

func TestHalfOfTheUpdatesAreRemovalsAndTellWhoIsThere(t *testing.T) {
	there, at, removals := dispatch.Everybody(servers), int64(0), 0
	updates := updatesOf(3, maxUpdateRate)
	for i, u := range updates {
		if u.at < at || slices.Contains(there, u.server) == u.back {
			t.Fatalf("update %d: %d at %d after %d, back %v", i, u.server, u.at, at, u.back)
		}
		at = u.at
		if u.back {
			there = append(there, u.server)
		} else {
			removals++
			there = slices.DeleteFunc(there, func(s uint32) bool { return s == u.server })
		}
		slices.Sort(there)
		if !slices.Equal(there, slices.Sorted(slices.Values(u.present))) {
			t.Fatalf("update %d: who is there is wrong", i)
		}
	}
	minutes := float64(updatesWarmUp+updatesMeasured) / 60e9
	if perMinute := float64(removals) / minutes; perMinute < 34 || perMinute > 46 {
		t.Errorf("%g removals a minute", perMinute)
	}
}

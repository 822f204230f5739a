// Package tabletest tests implementations of replica.Table.
package tabletest

import (
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// Run holds a table against a map, whatever is done to both. A table that fresh makes is empty and has room for so many records.
func Run(t *testing.T, fresh func(records int) replica.Table) {
	t.Run("few keys", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			// Close together: the worst for a table that trusts them to be random.
			key := rapid.OneOf(rapid.Uint64Range(2, 20), rapid.Uint64Range(1<<64-20, 1<<64-1), rapid.Uint64Range(2, 1<<64-1))
			steps(t, fresh(60), rapid.IntRange(1, 60).Draw(t, "steps"), func() ring.Key { return ring.Key(key.Draw(t, "key")) })
		})
	})
	t.Run("many keys", func(t *testing.T) {
		table := fresh(5000)
		twin := map[ring.Key]replica.Record{}
		for i := range uint64(5000) {
			r := replica.Record{Key: ring.Key((i + 1) * 0x9e3779b97f4a7c15), Owner: replica.Owner(i + 1), Period: uint32(i % 7), Cacheable: i%2 == 0}
			if there, ok := table.Insert(r); !ok || there != r {
				t.Fatalf("record %d of 5000: %v, %v", i, there, ok)
			}
			twin[r.Key] = r
		}
		table.Keep(func(r replica.Record) bool { return r.Owner%3 != 0 })
		maps.DeleteFunc(twin, func(_ ring.Key, r replica.Record) bool { return r.Owner%3 == 0 })
		same(t, table, twin, 17*0x9e3779b97f4a7c15&(1<<64-1), 18*0x1e3779b97f4a7c15&(1<<64-1))
	})
}

func steps(t *rapid.T, table replica.Table, count int, key func() ring.Key) {
	twin := map[ring.Key]replica.Record{}
	for i := range count {
		k := key()
		known, ok := twin[k]
		if found, there := table.Find(k); there != ok || found != known {
			t.Fatalf("%#x is %v (%v), and not %v (%v)", k, found, there, known, ok)
		}
		next := replica.Record{Key: k, Owner: replica.Owner(i + 1), Period: uint32(i), Cacheable: i%2 == 0}
		switch rapid.IntRange(0, 5).Draw(t, "step") {
		case 0:
			if table.Swap(known, next) != ok {
				t.Fatalf("%#x swapped: %v", k, !ok)
			}
			if ok {
				twin[k] = next
			}
		case 1:
			known.Owner, known.Key = 1<<20, k
			if table.Swap(known, next) {
				t.Fatalf("%#x swapped for what it was not", k)
			}
		case 2:
			table.Keep(func(r replica.Record) bool { return r.Owner%2 == 0 })
			maps.DeleteFunc(twin, func(_ ring.Key, r replica.Record) bool { return r.Owner%2 != 0 })
		default:
			if !ok {
				known = next
				twin[k] = next
			}
			if there, ok := table.Insert(next); !ok || there != known {
				t.Fatalf("%#x inserted: %v, %v", k, there, ok)
			}
		}
		same(t, table, twin, k, key())
	}
}

// views are numbered, so that each is one that no table was asked of before.
var views atomic.Uint32

// same holds what is there, and what Each says of a range, against a map.
func same(t interface{ Fatalf(string, ...any) }, table replica.Table, twin map[ring.Key]replica.Record, low, high ring.Key) {
	if table.Len() != len(twin) {
		t.Fatalf("%d records instead of %d", table.Len(), len(twin))
	}
	var want, got []replica.Record
	for _, r := range twin {
		if found, ok := table.Find(r.Key); !ok || found != r {
			t.Fatalf("%v instead of %v", found, r)
		}
		if r.Key-low <= high-low {
			want = append(want, r)
		}
	}
	slices.SortFunc(want, func(a, b replica.Record) int {
		if a.Key-low < b.Key-low {
			return -1
		}
		return 1
	})
	table.Each(low+1, high, func(replica.Record) bool { return true }) // so that the next one does not go on with an earlier one
	table.Each(low, high, func(r replica.Record) bool { got = append(got, r); return true })
	if !slices.Equal(got, want) {
		t.Fatalf("from %#x to %#x: %v instead of %v", low, high, got, want)
	}
	var of []replica.Record
	table.EachOf(views.Add(1), low, high, func(r replica.Record) bool { of = append(of, r); return true })
	if !slices.Equal(of, want) {
		t.Fatalf("from %#x to %#x, of a view: %v instead of %v", low, high, of, want)
	}
	stopped := 0
	table.Each(low, high, func(replica.Record) bool { stopped++; return false })
	if stopped != min(1, len(want)) {
		t.Fatalf("walked on")
	}
}

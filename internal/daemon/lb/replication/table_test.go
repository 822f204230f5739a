package replication

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/machine/replica/tabletest"
	"github.com/ballast-lb/ballast/internal/plan"
)

var testLimits = plan.Limits{Services: 16, Servers: 64, ServerIDs: 1 << 12, Slots: 1 << 14, Rounds: 1 << 12, Entries: 64, Local: 64, Replicated: 20000}

func openLB(t testing.TB, limits plan.Limits) *lb.LB {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading BPF programs needs root")
	}
	path, err := lb.Open("", limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { path.Close() })
	return path
}

// emptied removes all that a table has.
func emptied(t testing.TB, table *replicas.Table) *replicas.Table {
	t.Helper()
	if _, err := table.Keep(func(replicas.Entry) bool { return false }, nil); err != nil {
		t.Fatal(err)
	}
	return table
}

func TestTablesOfTheDataPathAreTables(t *testing.T) {
	entries, answers := openLB(t, testLimits).ReplicaTables()
	for name, one := range map[string]*replicas.Table{"entries": entries, "answers": answers} {
		t.Run(name, func(t *testing.T) {
			tabletest.Run(t, func(int) replica.Table {
				return newTable(emptied(t, one), func() uint32 { return 1000 }, nil, func(err error) { t.Fatal(err) })
			})
		})
	}
}

func TestATableTakesAsManyEntriesAsItIsFor(t *testing.T) {
	limits := testLimits
	limits.Replicated = 1 << 17
	entries, _ := openLB(t, limits).ReplicaTables()
	random := rand.New(rand.NewPCG(1, 2))
	taken := 0
	for ; ; taken++ {
		_, ok, err := entries.Insert(replicas.Entry{Key: random.Uint64(), Owner: 1})
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
	}
	places := 7 * len(entries.Buckets)
	t.Logf("%d of %d places taken, %.0f bytes of memory for each entry", taken, places, float64(len(entries.Buckets)*replicas.BucketBytes)/float64(limits.Replicated))
	if taken < int(limits.Replicated) || entries.Count() != taken {
		t.Errorf("%d entries of %d taken, %d counted", taken, limits.Replicated, entries.Count())
	}
	found := 0
	random = rand.New(rand.NewPCG(1, 2))
	for range taken {
		if e, ok := entries.Find(random.Uint64()); ok && e.Owner == 1 {
			found++
		}
	}
	if found != taken {
		t.Errorf("%d of %d found", found, taken)
	}
}

func TestAPlaceThatAnEarlierProcessWasAboutToFreeIsFreed(t *testing.T) {
	entries, _ := openLB(t, testLimits).ReplicaTables()
	for i := range uint64(100) {
		if _, ok, err := entries.Insert(replicas.Entry{Key: i + 2, Owner: 1}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	stuck := 0
	for i := range entries.Buckets { // as if it had been killed right after it had written the key
		for p := range entries.Buckets[i].Slot {
			if slot := &entries.Buckets[i].Slot[p]; slot.Key%3 == 2 {
				slot.Word, slot.Key = 0, 0
				stuck++
			}
		}
	}
	if err := entries.Recover(); err != nil {
		t.Fatal(err)
	}
	if n := entries.Count(); n != 100-stuck || stuck == 0 {
		t.Errorf("%d entries, %d of 100 were about to be freed", n, stuck)
	}
}

func TestARangeIsWalkedInPartsWhilePacketsChangeIt(t *testing.T) {
	entries, _ := openLB(t, testLimits).ReplicaTables()
	table := newTable(entries, func() uint32 { return 0 }, nil, func(err error) { t.Fatal(err) })
	const step = 1 << 54
	for i := range ring.Key(1000) {
		table.Insert(replica.Record{Key: i*step + 2, Owner: replica.Owner(i + 1)})
	}
	next, high, got := ring.Key(100*step), ring.Key(900*step-1), []ring.Key{}
	for done := false; !done; {
		done = true
		parts := 0
		table.Each(next, high, func(r replica.Record) bool {
			if parts == 7 {
				next, done = r.Key, false
				return false
			}
			parts++
			got = append(got, r.Key)
			return true
		})
		table.Keep(func(r replica.Record) bool { return r.Key != 500*step+2 })
	}
	if len(got) != 799 || got[0] != 100*step+2 || got[798] != 899*step+2 {
		t.Errorf("%d keys from %#x to %#x", len(got), got[0], got[len(got)-1])
	}
	if len(table.walking) != 0 {
		t.Errorf("%d walks are left", len(table.walking))
	}
}

func TestWhatThereWasIsWalkedInAnyOrderOfItsParts(t *testing.T) {
	entries, _ := openLB(t, testLimits).ReplicaTables()
	table := newTable(entries, func() uint32 { return 0 }, nil, func(err error) { t.Fatal(err) })
	const step = 1 << 54
	for i := range ring.Key(1000) {
		table.Insert(replica.Record{Key: i*step + 2, Owner: replica.Owner(i + 1)})
	}
	walk := func(view uint32, low, high ring.Key) (owners []replica.Owner) {
		table.EachOf(view, low, high, func(r replica.Record) bool { owners = append(owners, r.Owner); return true })
		return owners
	}
	if got := walk(1, 900*step, 905*step-1); !slices.Equal(got, []replica.Owner{901, 902, 903, 904, 905}) {
		t.Errorf("%v", got)
	}
	table.Keep(func(r replica.Record) bool { return r.Owner != 2 })
	table.Insert(replica.Record{Key: 2*step + 3, Owner: 7777})
	if got := walk(1, 998*step, 3*step-1); !slices.Equal(got, []replica.Owner{999, 1000, 1, 3}) {
		t.Errorf("what is gone is told, or what has come in costs a walk of the whole table: %v", got)
	}
	if got := walk(2, 998*step, 3*step-1); !slices.Equal(got, []replica.Owner{999, 1000, 1, 3, 7777}) {
		t.Errorf("in the next view: %v", got)
	}
	if got := walk(2, 5*step+3, 6*step); len(got) != 0 {
		t.Errorf("between two keys: %v", got)
	}
}

// What every store promises.
package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/etcd"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

const patience = 30 * time.Second

var quiet = slog.New(slog.DiscardHandler)

// onEvery runs a test with an empty store of every kind.
func onEvery(t *testing.T, test func(t *testing.T, s store.Store)) {
	closing := func(t *testing.T, s store.Store, err error) store.Store {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error("close:", err)
			}
		})
		return s
	}
	embed := func(t *testing.T, dir string) store.Store {
		s, err := etcd.Embed(t.Context(), etcd.EmbedOptions{DataDir: dir, Log: quiet})
		return closing(t, s, err)
	}
	t.Run("memory", func(t *testing.T) { test(t, closing(t, storetest.New(), nil)) })
	t.Run("embedded", func(t *testing.T) { test(t, embed(t, t.TempDir())) })
	t.Run("connected", func(t *testing.T) {
		dir := t.TempDir()
		embed(t, dir)
		s, err := etcd.Connect(t.Context(), etcd.ConnectOptions{Endpoints: []string{"unix://" + dir + "/etcd/client.sock"}, Prefix: "/fleets/one/", Log: quiet})
		test(t, closing(t, s, err))
	})
}

func commit(t *testing.T, s store.Store, documents ...store.Document) uint64 {
	t.Helper()
	revision, err := s.Commit(t.Context(), documents)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func load(t *testing.T, s store.Store) (map[string]store.Document, uint64) {
	t.Helper()
	list, revision, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSortedFunc(list, func(a, b store.Document) int { return strings.Compare(a.Key, b.Key) }) {
		t.Error("documents are not in order")
	}
	documents := map[string]store.Document{}
	for _, d := range list {
		documents[d.Key] = d
	}
	return documents, revision
}

func set(key, value string, revision uint64) store.Document {
	return store.Document{Key: key, Value: []byte(value), Revision: revision}
}

// receive waits for the next value; ok is false if the channel is closed.
func receive[T any](t *testing.T, from <-chan T) (value T, ok bool) {
	t.Helper()
	select {
	case value, ok = <-from:
		return value, ok
	case <-time.After(patience):
		t.Fatal("nothing came")
		return value, false
	}
}

func TestDocumentsAreLoadedAsCommitted(t *testing.T) {
	onEvery(t, func(t *testing.T, s store.Store) {
		if documents, _ := load(t, s); len(documents) != 0 {
			t.Fatalf("a new store has %v", documents)
		}
		revision := commit(t, s, set("services/b", "2", 0), set("services/a", "", 0), set("keys", "\x00\xff", 0))
		documents, at := load(t, s)
		if at != revision || len(documents) != 3 {
			t.Fatalf("have %v at %d, committed %d", documents, at, revision)
		}
		for key, wanted := range map[string]string{"services/b": "2", "services/a": "", "keys": "\x00\xff"} {
			if d := documents[key]; d.Value == nil || string(d.Value) != wanted || d.Revision != revision {
				t.Errorf("%s is %+v", key, d)
			}
		}
		if _, err := s.Commit(t.Context(), []store.Document{set("a", "1", 0), set("a", "2", 0)}); err == nil {
			t.Error("one key twice was taken")
		}
	})
}

func TestCommitsOfWhatHasChangedAreRefusedAsAWhole(t *testing.T) {
	onEvery(t, func(t *testing.T, s store.Store) {
		first := commit(t, s, set("a", "1", 0), set("b", "1", 0))
		second := commit(t, s, set("a", "2", first))
		for name, stale := range map[string]store.Document{
			"change": set("a", "3", first), "creation": set("a", "3", 0), "deletion": {Key: "a", Revision: first},
			"change of what is not there": set("c", "3", second),
		} {
			_, err := s.Commit(t.Context(), []store.Document{set("b", "3", first), set("new", "3", 0), stale})
			if !errors.Is(err, store.ErrConflict) {
				t.Errorf("a stale %s: %v", name, err)
			}
		}
		documents, _ := load(t, s)
		if len(documents) != 2 || string(documents["a"].Value) != "2" || string(documents["b"].Value) != "1" {
			t.Errorf("have %v", documents)
		}
	})
}

func TestOfManyThatChangeADocumentAtOnceNoneIsLost(t *testing.T) {
	onEvery(t, func(t *testing.T, s store.Store) {
		const writers, each = 4, 5
		var group sync.WaitGroup
		for range writers {
			group.Go(func() {
				for done := 0; done < each; {
					list, _, err := s.Load(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					d := store.Document{Key: "counter"}
					if len(list) == 1 {
						d = list[0]
					}
					d.Value = append(bytes.Clone(d.Value), 'x')
					if _, err = s.Commit(t.Context(), []store.Document{d}); err == nil {
						done++
					} else if !errors.Is(err, store.ErrConflict) {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		if documents, _ := load(t, s); len(documents["counter"].Value) != writers*each {
			t.Errorf("%d changes, %d are there", writers*each, len(documents["counter"].Value))
		}
	})
}

func TestDeletedDocumentsCanBeMadeAgain(t *testing.T) {
	onEvery(t, func(t *testing.T, s store.Store) {
		first := commit(t, s, set("a", "1", 0))
		changes := s.Watch(t.Context(), first)
		commit(t, s, store.Document{Key: "a", Revision: first})
		if documents, _ := load(t, s); len(documents) != 0 {
			t.Fatalf("have %v", documents)
		}
		batch, _ := receive(t, changes)
		if len(batch.Documents) != 1 || batch.Documents[0].Value != nil || batch.Documents[0].Key != "a" {
			t.Fatalf("the deletion was told as %+v", batch)
		}
		gone := batch.Documents[0]
		gone.Value = []byte("2")
		commit(t, s, gone)
		if documents, _ := load(t, s); string(documents["a"].Value) != "2" {
			t.Errorf("have %v", documents)
		}
		commit(t, s, store.Document{Key: "never there"})
	})
}

func TestAnyNumberOfDocumentsIsChangedAndLoaded(t *testing.T) {
	onEvery(t, func(t *testing.T, s store.Store) {
		const n = 1111 // more than a page, and than 11 transactions
		var documents []store.Document
		for i := range n {
			documents = append(documents, set(fmt.Sprintf("services/%d", i), fmt.Sprint(i), 0))
		}
		changes := s.Watch(t.Context(), 0)
		most := s.Limits().Documents
		revision := uint64(0)
		for together := range slices.Chunk(documents, most) {
			revision = commit(t, s, together...)
		}
		have, at := load(t, s)
		if len(have) != n || at != revision {
			t.Fatalf("%d documents at %d, want %d at %d", len(have), at, n, revision)
		}
		for seen := 0; seen < n; {
			batch, ok := receive(t, changes)
			if !ok || len(batch.Documents) < min(most, n-seen) {
				t.Fatalf("a batch of %d after %d", len(batch.Documents), seen)
			}
			seen += len(batch.Documents)
		}
		for i := range documents {
			documents[i] = store.Document{Key: documents[i].Key, Revision: have[documents[i].Key].Revision}
		}
		for together := range slices.Chunk(documents, most) {
			commit(t, s, together...)
		}
		if have, _ := load(t, s); len(have) != 0 {
			t.Errorf("%d documents were left behind", len(have))
		}
		if _, err := s.Commit(t.Context(), make([]store.Document, most+1)); err == nil || errors.Is(err, store.ErrConflict) {
			t.Errorf("more than there is room for: %v", err)
		}
	})
}

func TestWhatIsOnlyLookedAtHasToBeAsItWasReadAndStays(t *testing.T) {
	onEvery(t, func(t *testing.T, s store.Store) {
		same := func(key string, revision uint64) store.Document {
			return store.Document{Key: key, Revision: revision, Same: true}
		}
		first := commit(t, s, set("a", "1", 0), set("b", "1", 0))
		if at := commit(t, s, same("a", first), same("none", 0)); at < first {
			t.Errorf("looked at %d, written at %d", at, first)
		}
		second := commit(t, s, same("a", first), set("b", "2", first))
		for name, documents := range map[string][]store.Document{
			"alone": {same("b", first)}, "with a change": {same("b", first), set("a", "2", first)}, "of what is not there": {same("none", first)},
		} {
			if _, err := s.Commit(t.Context(), documents); !errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrUnknown) {
				t.Errorf("an old look %s: %v", name, err)
			}
		}
		if have, _ := load(t, s); len(have) != 2 || have["a"].Revision != first || have["b"].Revision != second {
			t.Errorf("have %v", have)
		}
	})
}

// Watchers that begin anywhere in a random history, at any time, arrive where Load is.
func TestWatchersMissNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	onEvery(t, func(t *testing.T, s store.Store) {
		random := rand.New(rand.NewPCG(seed, 0))
		const changes, keys = 60, 8
		var group sync.WaitGroup
		final := make(chan uint64) // closed states are compared after the last change
		last := uint64(0)
		for i := range changes {
			before, at := load(t, s)
			if i%6 == 0 {
				watch := s.Watch(t.Context(), at)
				start := maps.Clone(before)
				group.Go(func() { replay(t, start, at, watch, final) })
			}
			var documents []store.Document
			for _, k := range random.Perm(keys)[:1+random.IntN(3)] {
				key := fmt.Sprint("services/", k)
				d := set(key, fmt.Sprint(i), before[key].Revision)
				if random.IntN(3) == 0 {
					d.Value = nil
				}
				documents = append(documents, d)
			}
			commit(t, s, documents...)
		}
		last = commit(t, s, set("the end", "", 0))
		for range (changes + 5) / 6 {
			final <- last
		}
		group.Wait()
		wanted, _ := load(t, s)
		have := map[string]store.Document{}
		for watch := s.Watch(t.Context(), 0); ; {
			batch, _ := receive(t, watch)
			if apply(have, batch); batch.Revision == last {
				break
			}
		}
		if !maps.EqualFunc(have, wanted, equal) {
			t.Errorf("the whole history leads to %v, want %v", have, wanted)
		}
	})
}

func equal(a, b store.Document) bool {
	return a.Revision == b.Revision && bytes.Equal(a.Value, b.Value)
}

func apply(documents map[string]store.Document, batch store.Batch) {
	for _, d := range batch.Documents {
		if d.Value == nil {
			delete(documents, d.Key)
		} else {
			documents[d.Key] = d
		}
	}
}

func replay(t *testing.T, documents map[string]store.Document, at uint64, watch <-chan store.Batch, final <-chan uint64) {
	last := uint64(0)
	for end := false; !end || at < last; {
		select {
		case batch, ok := <-watch:
			if !ok || batch.Revision <= at {
				t.Errorf("after revision %d came %+v, %v", at, batch, ok)
				return
			}
			for _, d := range batch.Documents {
				if d.Value != nil && d.Revision != batch.Revision {
					t.Errorf("%+v in the batch of %d", d, batch.Revision)
				}
			}
			apply(documents, batch)
			at = batch.Revision
		case last = <-final:
			end, final = true, nil
		case <-time.After(patience):
			t.Errorf("nothing came after %d, want %d", at, last)
			return
		}
	}
	if _, there := documents["the end"]; !there {
		t.Error("a watcher did not see the end")
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	onEvery(t, func(t *testing.T, s store.Store) {
		ctx, cancel := context.WithCancel(t.Context())
		changes := s.Watch(ctx, 0)
		commit(t, s, set("a", "1", 0))
		if batch, ok := receive(t, changes); !ok || len(batch.Documents) != 1 {
			t.Fatalf("%+v, %v", batch, ok)
		}
		cancel()
		if batch, ok := receive(t, changes); ok {
			t.Errorf("after the end came %+v", batch)
		}
	})
}

// list waits until a list has these names.
func list(t *testing.T, told <-chan []store.Member, names ...string) []store.Member {
	t.Helper()
	for {
		members, ok := receive(t, told)
		if !ok {
			t.Fatalf("the list ended before %v", names)
		}
		if slices.EqualFunc(members, names, func(m store.Member, name string) bool { return m.Name == name }) {
			return members
		}
	}
}

func TestControllersSeeEachOtherComeAndGo(t *testing.T) {
	onEvery(t, func(t *testing.T, s store.Store) {
		join := func(name string) (told <-chan []store.Member, leave context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			told, err := s.Join(ctx, store.Member{Name: name, Address: name + ":6443", Version: "1"})
			if err != nil {
				t.Fatal(err)
			}
			return told, cancel
		}
		a, leaveA := join("a")
		first := list(t, a, "a")
		if m := first[0]; m.Address != "a:6443" || m.Version != "1" || m.Term == 0 {
			t.Errorf("a is %+v", m)
		}
		b, leaveB := join("b")
		both := list(t, a, "a", "b")
		if list(t, b, "a", "b"); both[1].Term <= first[0].Term {
			t.Errorf("terms are %d, then %d", first[0].Term, both[1].Term)
		}

		// A controller that is restarted is on the list once.
		again, leaveAgain := join("b")
		if second := list(t, again, "a", "b"); second[1].Term <= both[1].Term {
			t.Errorf("terms of b are %d, then %d", both[1].Term, second[1].Term)
		}
		leaveB()
		leaveAgain() // who leaves properly is off the list before its membership ends, and does not wait for its time to live
		for range b {
		}
		for range again {
		}
		c, leaveC := join("c")
		if seen, ok := receive(t, c); !ok || len(seen) != 2 || seen[0].Name != "a" || seen[1].Name != "c" {
			t.Errorf("after b has left there are %+v", seen)
		}
		leaveC()
		for range c {
		}
		leaveA()
		for range a {
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	onEvery(t, func(t *testing.T, s store.Store) {
		changes := s.Watch(t.Context(), 0)
		told, err := s.Join(t.Context(), store.Member{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for range changes {
		}
		for range told {
		}
		_, _, errLoad := s.Load(t.Context())
		_, errCommit := s.Commit(t.Context(), []store.Document{set("a", "1", 0)})
		_, errJoin := s.Join(t.Context(), store.Member{Name: "a"})
		for _, err := range []error{errLoad, errCommit, errJoin} {
			if !errors.Is(err, store.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		}
		if _, ok := receive(t, s.Watch(t.Context(), 0)); ok {
			t.Error("a watch after Close delivers")
		}
	})
}

func TestCallsEndWithTheirContext(t *testing.T) {
	onEvery(t, func(t *testing.T, s store.Store) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, errLoad := s.Load(ctx)
		_, errCommit := s.Commit(ctx, []store.Document{set("a", "1", 0)})
		_, errJoin := s.Join(ctx, store.Member{Name: "a"})
		for _, err := range []error{errLoad, errCommit, errJoin} {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("with an ended context: %v", err)
			}
		}
	})
}

package etcd

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/store"
)

// list waits until a list has these names.
func list(t *testing.T, told <-chan []store.Member, names ...string) []store.Member {
	t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case members, ok := <-told:
			if !ok {
				t.Fatalf("the list ended before %v", names)
			}
			if slices.EqualFunc(members, names, func(m store.Member, name string) bool { return m.Name == name }) {
				return members
			}
		case <-deadline:
			t.Fatalf("never saw %v on the list", names)
		}
	}
}

// Promise: When a member of etcd is lost, a change may take 1 to 2 s longer.
// Also held by TestLosingControllersBreaksNothing.
func TestTheStoreGoesOnWithoutAMemberOfEtcd(t *testing.T) {
	members, endpoints := cluster(t, 3, files{})
	s := connect(t, endpoints...)
	told, err := s.Join(t.Context(), store.Member{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	list(t, told, "a")
	leader := -1 // the worst one to lose
	await.True(t, "etcd has a leader", func() bool {
		leader = slices.IndexFunc(endpoints, func(endpoint string) bool {
			status, err := s.client.Status(t.Context(), endpoint)
			return err == nil && status.Leader == status.Header.MemberId
		})
		return leader >= 0
	})
	revision := uint64(0)
	change := func(value string) {
		t.Helper()
		await.Nil(t, "it is "+value, func() error {
			done, err := s.Commit(t.Context(), []store.Document{{Key: "services/web", Value: []byte(value), Revision: revision}})
			if err == nil {
				revision = done
				return nil
			}
			// One that was not answered may have been done.
			if documents, _, err := s.Load(t.Context()); err == nil && len(documents) == 1 {
				revision = documents[0].Revision
			}
			return err
		})
	}
	change("before")
	members[leader].kill()
	start := time.Now()
	change("after")
	t.Logf("changed again %v after the loss of the leader", time.Since(start))
	select {
	case batch := <-s.Watch(t.Context(), 0):
		if value := string(batch.Documents[0].Value); value != "before" {
			t.Errorf("the first change is %q", value)
		}
	case <-time.After(patience):
		t.Fatal("cannot be watched")
	}
	// It may have dropped out for a moment, but is there again.
	other := connect(t, endpoints[(leader+1)%3], endpoints[(leader+2)%3])
	seen, err := other.Join(t.Context(), store.Member{Name: "b"})
	if err != nil {
		t.Fatal(err)
	}
	list(t, seen, "a", "b")
}

// Promise: A controller that is behind reports that there is nothing to do only after the store's majority has
// confirmed it.
// Also held by TestAControllerThatIsBehindDoesNotSayThatThereIsNothingToDo.
func TestAMemberThatIsCutOffConfirmsNothing(t *testing.T) {
	members, endpoints := cluster(t, 3, files{})
	all, alone := connect(t, endpoints...), connect(t, endpoints[0])
	known := []store.Document{{Key: "services/web", Value: []byte("here")}}
	revision, err := all.Commit(t.Context(), known)
	if err != nil {
		t.Fatal(err)
	}
	confirm := func() error {
		_, err := alone.Commit(t.Context(), []store.Document{{Key: "services/web", Revision: revision, Same: true}})
		return err
	}
	if err := confirm(); err != nil {
		t.Fatalf("with all members: %v", err)
	}
	if _, err := alone.Commit(t.Context(), []store.Document{{Key: "services/web", Revision: revision - 1, Same: true}}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("another revision than the newest: %v", err)
	}
	members[1].kill()
	members[2].kill()
	if err := confirm(); err == nil || errors.Is(err, store.ErrConflict) {
		t.Errorf("a member without the others confirmed that nothing had changed: %v", err)
	}
}

// link is a way to etcd that can be cut, or swallow everything.
type link struct {
	listener net.Listener
	target   string

	mutex  sync.Mutex
	thawed sync.Cond
	cut    bool
	frozen bool
	ends   []net.Conn
}

func newLink(t *testing.T, endpoint string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{listener: listener, target: strings.TrimPrefix(endpoint, "http://")}
	l.thawed.L = &l.mutex
	t.Cleanup(func() { listener.Close(); l.set(true, false) })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			l.carry(near)
		}
	}()
	return l
}

func (l *link) carry(near net.Conn) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	far, err := net.Dial("tcp", l.target)
	if err != nil || l.cut {
		near.Close()
		return
	}
	l.ends = append(l.ends, near, far)
	go l.copy(near, far)
	go l.copy(far, near)
}

func (l *link) copy(to, from net.Conn) {
	defer to.Close()
	for buffer := make([]byte, 4096); ; {
		n, err := from.Read(buffer)
		l.mutex.Lock()
		for l.frozen {
			l.thawed.Wait()
		}
		l.mutex.Unlock()
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}

// set makes the link cut, frozen or well.
func (l *link) set(cut, frozen bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.cut, l.frozen = cut, frozen
	l.thawed.Broadcast()
	if cut {
		for _, end := range l.ends {
			end.Close()
		}
		l.ends = nil
	}
}

// Promise: A controller that returns and believes that it still leads has no effect: its weights have an old term,
// and its writes conflict.
func TestAControllerThatIsCutOffLeavesTheListWithin3SecondsAndComesBack(t *testing.T) {
	_, endpoints := cluster(t, 1, files{})
	way := newLink(t, endpoints[0])
	a, b := connect(t, endpoints...), connect(t, "http://"+way.listener.Addr().String())
	seenByA, err := a.Join(t.Context(), store.Member{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	seenByB, err := b.Join(t.Context(), store.Member{Name: "b"})
	if err != nil {
		t.Fatal(err)
	}
	before := list(t, seenByA, "a", "b")[1].Term
	list(t, seenByB, "a", "b")
	const within, attempts = 3 * time.Second, 4 // of these the machine may be too busy for some
	for _, broken := range []struct{ cut, frozen bool }{{cut: true}, {frozen: true}} {
		for attempt := 1; ; attempt++ {
			start := time.Now()
			way.set(broken.cut, broken.frozen)
			list(t, seenByA, "a")
			dead := time.Since(start)
			list(t, seenByB, "a") // it knows by itself that it is off
			believed := time.Since(start)
			t.Logf("%+v: a controller that is dead was on the list for %v, and believed to be for %v", broken, dead, believed)

			way.set(false, false)
			after := list(t, seenByA, "a", "b")[1].Term
			if list(t, seenByB, "a", "b"); after <= before {
				t.Errorf("%+v: term %d after %d", broken, after, before)
			}
			before = after
			if max(dead, believed) <= within {
				break
			}
			if attempt == attempts {
				t.Fatalf("%+v: never off both lists within %v", broken, within)
			}
		}
	}
}

// Promise: A controller loads everything when changes were compacted away before it saw them.
func TestAWatchEndsWhenItsChangesWereCompacted(t *testing.T) {
	_, endpoints := cluster(t, 1, files{})
	s := connect(t, endpoints...)
	first, err := s.Commit(t.Context(), []store.Document{{Key: "a", Value: []byte("1")}})
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Commit(t.Context(), []store.Document{{Key: "a", Value: []byte("2"), Revision: first}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Compact(t.Context(), int64(second)); err != nil {
		t.Fatal(err)
	}
	select {
	case batch, ok := <-s.Watch(t.Context(), 0):
		if ok {
			t.Errorf("came %+v", batch)
		}
	case <-time.After(patience):
		t.Error("the watch hangs")
	}
	_, revision, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	changes := s.Watch(t.Context(), revision)
	if _, err := s.Commit(t.Context(), []store.Document{{Key: "a", Value: []byte("3"), Revision: second}}); err != nil {
		t.Fatal(err)
	}
	if batch := <-changes; string(batch.Documents[0].Value) != "3" {
		t.Errorf("came %+v", batch)
	}
}

func TestFleetsInOneClusterAreApart(t *testing.T) {
	_, endpoints := cluster(t, 1, files{})
	one := connect(t, endpoints...)
	other := connected(t, ConnectOptions{Endpoints: endpoints, Prefix: "/other/"})
	if _, err := one.Commit(t.Context(), []store.Document{{Key: "a", Value: []byte("1")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Join(t.Context(), store.Member{Name: "one"}); err != nil {
		t.Fatal(err)
	}
	if documents, _, err := other.Load(t.Context()); err != nil || len(documents) != 0 {
		t.Errorf("the other fleet has %v, %v", documents, err)
	}
	told, err := other.Join(t.Context(), store.Member{Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	list(t, told, "other")
	if _, err := Connect(t.Context(), ConnectOptions{Endpoints: endpoints, Prefix: "other", Log: quiet}); err == nil || !strings.Contains(err.Error(), "begin and end with /") {
		t.Errorf("a prefix without slashes: %v", err)
	}
}

// An etcd that is restored from a copy meanwhile has other changes by the numbers that come next, or none yet.
func TestAWatchEndsWithItsConnection(t *testing.T) {
	_, endpoints := cluster(t, 1, files{})
	way := newLink(t, endpoints[0])
	direct, s := connect(t, endpoints...), connect(t, "http://"+way.listener.Addr().String())
	revision, err := direct.Commit(t.Context(), []store.Document{{Key: "services/web", Value: []byte("one")}})
	if err != nil {
		t.Fatal(err)
	}
	changes := s.Watch(t.Context(), revision-1)
	next := func() (batch store.Batch, ok bool) {
		select {
		case batch, ok = <-changes:
		case <-time.After(patience):
			t.Fatal("the watch says nothing")
		}
		return batch, ok
	}
	if batch, ok := next(); !ok || batch.Revision != revision {
		t.Fatalf("%v, %v", batch, ok)
	}
	way.set(true, false)
	way.set(false, false)
	if batch, ok := next(); ok {
		t.Errorf("it went on with %v", batch)
	}
}

// Package storetest is a store in memory, for tests of those that keep something in one.
package storetest

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/ballast-lb/ballast/internal/store"
)

var limits = store.Limits{Documents: 1 << 20, Bytes: 1 << 30}

// maxHistory is how many changes a watcher may lag behind.
const maxHistory = 1000

// Store implements store.Store.
type Store struct {
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	group  sync.WaitGroup

	mutex     sync.Mutex
	documents map[string]store.Document
	revision  uint64
	history   []store.Batch // by ascending revision; what is older than the first is forgotten
	changed   chan struct{} // closed by the next change
	term      uint64
	members   map[chan []store.Member]store.Member // by the channel of each
}

// New returns an empty store.
func New() *Store {
	ctx, cancel := context.WithCancel(context.Background())
	return &Store{
		ctx: ctx, cancel: cancel, documents: map[string]store.Document{}, changed: make(chan struct{}), members: map[chan []store.Member]store.Member{},
	}
}

// Open returns an empty store that is closed when the test ends.
func Open(t testing.TB) *Store {
	s := New()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Close ends watches and memberships.
func (s *Store) Close() error {
	s.mutex.Lock() // nobody is on the way into the group any more
	s.cancel()
	s.mutex.Unlock()
	s.group.Wait()
	return nil
}

func (s *Store) open(ctx context.Context) error {
	if s.ctx.Err() != nil {
		return store.ErrClosed
	}
	return ctx.Err()
}

// Load implements store.Store.
func (s *Store) Load(ctx context.Context) (documents []store.Document, revision uint64, err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.open(ctx); err != nil {
		return nil, 0, err
	}
	for _, d := range s.documents {
		documents = append(documents, d)
	}
	slices.SortFunc(documents, func(a, b store.Document) int { return cmp.Compare(a.Key, b.Key) })
	return documents, s.revision, nil
}

// Limits implements store.Store.
func (s *Store) Limits() store.Limits { return limits }

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, documents []store.Document) (revision uint64, err error) {
	if err := store.Check(documents, limits); err != nil {
		return 0, err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.open(ctx); err != nil {
		return 0, err
	}
	batch := store.Batch{Revision: s.revision + 1}
	for _, d := range documents {
		before := s.documents[d.Key]
		if before.Revision != d.Revision {
			return 0, store.ErrConflict
		}
		switch {
		case d.Same:
		case d.Value != nil:
			batch.Documents = append(batch.Documents, store.Document{Key: d.Key, Value: bytes.Clone(d.Value), Revision: batch.Revision})
		case before.Value != nil:
			batch.Documents = append(batch.Documents, store.Document{Key: d.Key})
		}
	}
	if len(batch.Documents) == 0 {
		return s.revision, nil
	}
	for _, d := range batch.Documents {
		if d.Value == nil {
			delete(s.documents, d.Key)
		} else {
			s.documents[d.Key] = d
		}
	}
	s.revision = batch.Revision
	s.history = append(s.history, batch)
	if extra := len(s.history) - maxHistory; extra > 0 {
		s.history = slices.Delete(s.history, 0, extra)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return s.revision, nil
}

// since returns what changed after a revision, or that this is not known any more, and what is closed when there is more.
func (s *Store) since(after uint64) (batches []store.Batch, known bool, changed <-chan struct{}) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	first := s.revision + 1 - uint64(len(s.history)) // revisions have no gaps
	if after+1 < first {
		return nil, false, nil
	}
	skip := min(after+1-first, uint64(len(s.history)))
	return slices.Clone(s.history[skip:]), true, s.changed
}

// Watch implements store.Store.
func (s *Store) Watch(ctx context.Context, after uint64) <-chan store.Batch {
	batches := make(chan store.Batch)
	if !s.start(func() {
		defer close(batches)
		for ctx.Err() == nil {
			found, known, changed := s.since(after)
			if !known {
				return
			}
			for _, batch := range found {
				select {
				case batches <- batch:
					after = batch.Revision
				case <-ctx.Done():
					return
				case <-s.ctx.Done():
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-s.ctx.Done():
				return
			}
		}
	}) {
		close(batches)
	}
	return batches
}

// start runs something that Close waits for, unless the store is closed.
func (s *Store) start(run func()) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.group.Go(run)
	return true
}

// Join implements store.Store. Members live in this process, so none times out.
func (s *Store) Join(ctx context.Context, self store.Member) (<-chan []store.Member, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	s.term++
	self.Term = s.term
	updates := make(chan []store.Member, 1)
	s.members[updates] = self
	s.publish()
	s.group.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.ctx.Done():
		}
		s.mutex.Lock()
		defer s.mutex.Unlock()
		delete(s.members, updates)
		close(updates)
		s.publish()
	})
	return updates, nil
}

// publish gives all members the list. The caller holds the lock.
func (s *Store) publish() {
	var list []store.Member
	for _, member := range s.members {
		list = append(list, member)
	}
	list = store.Listed(list)
	for updates := range s.members {
		store.Publish(updates, slices.Clone(list))
	}
}

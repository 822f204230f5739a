// The list of controllers that live: one key each, on a lease.
package etcd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ballast-lb/ballast/internal/store"
)

const (
	timeToLive   = 2 * time.Second // the least that etcd grants with its default election timeout
	joinTimeout  = time.Second
	leaveTimeout = time.Second
)

// entry is a member as etcd has it.
type entry struct {
	store.Member
	Joining string `json:"joining,omitempty"` // drawn at random for each Join
}

// lease is a stay on the list.
type lease struct {
	id   clientv3.LeaseID
	key  string
	term uint64
}

// membership puts the list together from what the two goroutines of a Join find.
type membership struct {
	updates chan []store.Member
	self    entry
	listed  map[string]entry // by key, as etcd has them
	own     lease            // zero: not on the list as far as we know
	last    []store.Member
}

// publish tells the list if it has changed. Our own entries count only while their lease is known to stand: who cannot reach etcd must
// take itself off the list when the others do, also if etcd has an entry whose making was not answered.
func (m *membership) publish() {
	var members []store.Member
	for key, found := range m.listed {
		if found.Joining != m.self.Joining || key == m.own.key {
			members = append(members, found.Member)
		}
	}
	if list := store.Listed(members); m.last == nil || !slices.EqualFunc(list, m.last, sameJoining) {
		m.last = slices.Clip(list)
		store.Publish(m.updates, slices.Clone(list))
	}
}

func sameJoining(a, b store.Member) bool {
	return a.Name == b.Name && a.Term == b.Term && a.Rival == b.Rival
}

// Join implements store.Store. The Term is etcd's revision at which the member has joined.
func (s *Store) Join(ctx context.Context, self store.Member) (<-chan []store.Member, error) {
	if self.Name == "" {
		return nil, errors.New("join the controllers: a name is missing")
	}
	m := &membership{updates: make(chan []store.Member, 1), self: entry{self, rand.Text()}}
	first, err := s.enter(ctx, callTimeout, m.self)
	if err != nil {
		return nil, fmt.Errorf("join the controllers: %w", err)
	}
	m.own = first // the first list must not come before it
	if !s.start(func() { s.belong(ctx, m) }) {
		return nil, store.ErrClosed
	}
	return m.updates, nil
}

// belong keeps a membership until ctx ends, and leaves properly.
func (s *Store) belong(ctx context.Context, m *membership) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	first, own, listed := m.own, make(chan lease), make(chan map[string]entry)
	s.group.Go(func() { defer close(own); s.stay(ctx, m.self, first, own) })
	s.group.Go(func() { s.observe(ctx, listed) })
	defer close(m.updates)
	for {
		select {
		case current, ok := <-own:
			if !ok {
				return
			}
			m.own = current
		case m.listed = <-listed:
		}
		if m.listed != nil {
			m.publish()
		}
	}
}

// enter adds a member to the list.
func (s *Store) enter(ctx context.Context, timeout time.Duration, self entry) (lease, error) {
	content, err := json.Marshal(self)
	if err != nil {
		return lease{}, err
	}
	var entered lease
	err = s.call(ctx, timeout, func(ctx context.Context) error {
		granted, err := s.client.Grant(ctx, int64(timeToLive/time.Second))
		if err != nil {
			return err
		}
		key := fmt.Sprintf("%s%016x", s.members(), granted.ID)
		put, err := s.client.Put(ctx, key, string(content), clientv3.WithLease(granted.ID))
		if err != nil {
			return err
		}
		entered = lease{granted.ID, key, uint64(put.Header.Revision)}
		return nil
	})
	return entered, err
}

// stay reports the lease that stands, or none when it was lost, and gets a new one then.
func (s *Store) stay(ctx context.Context, self entry, current lease, report chan<- lease) {
	for {
		report <- current
		s.keep(ctx, current.id)
		if ctx.Err() != nil {
			s.leave(current.id)
			return
		}
		s.log.Warn("the lease of this controller has expired: it joins again", "name", self.Name)
		report <- lease{}
		for {
			var err error
			if current, err = s.enter(ctx, joinTimeout, self); err == nil {
				break
			}
			s.log.Debug("cannot join the controllers yet", "error", err)
			select {
			case <-time.After(retryPause):
			case <-ctx.Done():
				return
			}
		}
		s.log.Info("this controller is on the list again", "name", self.Name, "term", current.term)
	}
}

// keep returns when the lease is lost, or may be, or when ctx ends.
func (s *Store) keep(ctx context.Context, id clientv3.LeaseID) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers, err := s.client.KeepAlive(ctx, id)
	if err != nil {
		return
	}
	lost := time.NewTimer(timeToLive)
	defer lost.Stop()
	for {
		select {
		case _, ok := <-answers:
			if !ok {
				return
			}
			lost.Reset(timeToLive)
		case <-lost.C:
			return
		}
	}
}

// leave takes the member off the list at once; if it cannot, the lease ends by itself.
func (s *Store) leave(id clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if _, err := s.client.Revoke(ctx, id); err != nil {
		s.log.Debug("could not leave the controllers properly: they will notice", "error", err)
	}
}

// observe reports all members, at first and whenever they change, until ctx ends.
func (s *Store) observe(ctx context.Context, report chan<- map[string]entry) {
	for ctx.Err() == nil {
		var found *clientv3.GetResponse
		err := s.call(ctx, callTimeout, func(ctx context.Context) (err error) {
			found, err = s.client.Get(ctx, s.members(), clientv3.WithPrefix())
			return err
		})
		if err != nil {
			s.log.Debug("cannot read the list of controllers", "error", err)
			select {
			case <-time.After(retryPause):
			case <-ctx.Done():
			}
			continue
		}
		members := map[string]entry{}
		publish := func() {
			select {
			case report <- maps.Clone(members):
			case <-ctx.Done():
			}
		}
		for _, kv := range found.Kvs {
			s.note(members, string(kv.Key), kv.Value, kv.CreateRevision)
		}
		publish()
		s.follow(ctx, s.members(), uint64(found.Header.Revision)+1, func(_ uint64, events []*clientv3.Event) {
			for _, event := range events {
				if event.Type == clientv3.EventTypeDelete {
					delete(members, string(event.Kv.Key))
				} else {
					s.note(members, string(event.Kv.Key), event.Kv.Value, event.Kv.CreateRevision)
				}
			}
			publish()
		})
	}
}

func (s *Store) note(members map[string]entry, key string, content []byte, term int64) {
	var member entry
	if err := json.Unmarshal(content, &member); err != nil {
		s.log.Warn("an entry of the list of controllers cannot be read", "key", key, "error", err)
		return
	}
	member.Term = uint64(term)
	members[key] = member
}

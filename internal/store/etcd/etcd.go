// Package etcd is a store in etcd: one that runs in this process (Embed), or a cluster elsewhere (Connect).
package etcd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ballast-lb/ballast/internal/store"
)

const (
	// DefaultPrefix is what all keys of a fleet begin with.
	DefaultPrefix = "/ballast/"

	// What a member was asked while the leader of etcd was lost is not answered: it is asked again after the 1 to 2 s of an election.
	attemptTimeout = 2 * time.Second
	callTimeout    = 6 * time.Second
	retryPause     = 200 * time.Millisecond

	pageDocuments = 500 // that one answer has at most

	maxRequestBytes = 10 << 20 // of one Commit; etcd advises against more
)

// What one transaction has room for: that of an etcd of our own is as large as a fleet is, that of others is as large as etcd's defaults
// allow, --max-txn-ops and --max-request-bytes.
var (
	ownLimits    = store.Limits{Documents: 10000, Bytes: maxRequestBytes - 1<<20}
	othersLimits = store.Limits{Documents: 120, Bytes: 1 << 20}
)

// Store implements store.Store.
type Store struct {
	client *clientv3.Client
	prefix string
	place  string // for errors: where the store is
	remedy string // for errors: what to look at when it does not answer
	limits store.Limits
	log    *slog.Logger
	stop   func() error // what is there to close after the client
	member *embed.Etcd  // in this process; nil: it is elsewhere
	own    *starting    // the same: what it knows of the other members; nil: it is elsewhere
	alone  bool         // see PeerCondition
	failed chan error

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	group  sync.WaitGroup

	mutex  sync.Mutex // orders what joins the group and its end
	closed func() error
}

func newStore(client *clientv3.Client, prefix, place, remedy string, limits store.Limits, log *slog.Logger, stop func() error) (*Store, error) {
	prefix = cmp.Or(prefix, DefaultPrefix)
	if !strings.HasPrefix(prefix, "/") || !strings.HasSuffix(prefix, "/") {
		return nil, fmt.Errorf("prefix %q: it must begin and end with /", prefix)
	}
	s := &Store{client: client, prefix: prefix, place: place, remedy: remedy, limits: limits, log: log, stop: stop, failed: make(chan error, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.closed = sync.OnceValue(s.close)
	return s, nil
}

func (s *Store) documents() string { return s.prefix + "documents/" }
func (s *Store) members() string   { return s.prefix + "members/" }

// Close leaves the list of controllers, ends watches, and stops an embedded etcd.
func (s *Store) Close() error { return s.closed() }

func (s *Store) close() error {
	s.mutex.Lock()
	s.cancel()
	s.mutex.Unlock()
	s.group.Wait()
	err := s.client.Close()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, s.stop())
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

// bound returns a context that ends with the caller's or with Close.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	bound, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return bound, func() { stop(); cancel() }
}

// call asks etcd, again if it does not answer in time, until the deadline. What is asked may have been done before.
func (s *Store) call(ctx context.Context, timeout time.Duration, do func(ctx context.Context) error) error {
	if s.ctx.Err() == nil && ctx.Err() != nil { // an etcd in this process may answer all the same
		return ctx.Err()
	}
	bound, cancel := s.bound(ctx)
	defer cancel()
	timed, cancelTimed := context.WithTimeout(bound, timeout)
	defer cancelTimed()
	var err error
	for {
		attempt, cancelAttempt := context.WithTimeout(timed, attemptTimeout)
		err = do(attempt)
		if cancelAttempt(); !unanswered(err) || timed.Err() != nil {
			break
		}
		select {
		case <-time.After(retryPause):
		case <-timed.Done():
		}
	}
	switch {
	case err == nil:
		return nil
	case s.ctx.Err() != nil:
		return store.ErrClosed
	case s.own != nil && s.own.removed.Load():
		return ErrRemoved
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, rpctypes.ErrCompacted):
		return err
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("reach %s: %w: make room with `etcdctl compact`, `etcdctl defrag` and `etcdctl alarm disarm`", s.place, err)
	case errors.Is(err, rpctypes.ErrRequestTooLarge), strings.Contains(err.Error(), "larger than max"):
		return fmt.Errorf("reach %s: %w: change fewer services at once, or raise --max-request-bytes of etcd", s.place, err)
	}
	return fmt.Errorf("reach %s: %w: %s", s.place, err, s.remedy)
}

// unanswered tells a failure of what is between us and etcd's members, or of one of them, from etcd's answer.
func unanswered(err error) bool {
	var answer rpctypes.EtcdError
	code := status.Code(err)
	if errors.As(err, &answer) {
		code = answer.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded)
}

// refused tells what etcd has certainly not begun with.
func refused(err error) bool {
	var answer rpctypes.EtcdError
	if errors.As(err, &answer) && answer.Code() != codes.Unavailable && answer.Code() != codes.DeadlineExceeded {
		return true
	}
	if errors.Is(err, rpctypes.ErrNoLeader) {
		return true
	}
	text := err.Error() // what did not leave this process has no type of its own
	return strings.Contains(text, "larger than max") || strings.Contains(text, "Error while dialing") || strings.Contains(text, "no address available")
}

// value tells an empty value from none: the protocol does not.
func value(kv *mvccpb.KeyValue) []byte {
	if kv.Value == nil {
		return []byte{}
	}
	return kv.Value
}

// Load implements store.Store: all pages are of one revision.
func (s *Store) Load(ctx context.Context) (documents []store.Document, revision uint64, err error) {
	for {
		documents, revision, err = s.load(ctx)
		if !errors.Is(err, rpctypes.ErrCompacted) { // between two pages
			return documents, revision, err
		}
	}
}

func (s *Store) load(ctx context.Context) (documents []store.Document, revision uint64, err error) {
	first, end := s.documents(), clientv3.GetPrefixRangeEnd(s.documents())
	for more := true; more; {
		var page *clientv3.GetResponse
		err := s.call(ctx, callTimeout, func(ctx context.Context) (err error) {
			page, err = s.client.Get(ctx, first, clientv3.WithRange(end), clientv3.WithLimit(pageDocuments), clientv3.WithRev(int64(revision)))
			return err
		})
		if err != nil {
			return nil, 0, err
		}
		if revision == 0 {
			revision = uint64(page.Header.Revision)
		}
		for _, kv := range page.Kvs {
			documents = append(documents, store.Document{
				Key: strings.TrimPrefix(string(kv.Key), s.documents()), Value: value(kv), Revision: uint64(kv.ModRevision),
			})
			first = string(kv.Key) + "\x00"
		}
		more = page.More
	}
	return documents, revision, nil
}

// Limits implements store.Store.
func (s *Store) Limits() store.Limits { return s.limits }

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, documents []store.Document) (revision uint64, err error) {
	if err := store.Check(documents, s.limits); err != nil {
		return 0, err
	}
	var unchanged []clientv3.Cmp
	var change, look []clientv3.Op
	for _, d := range documents {
		key := s.documents() + d.Key
		unchanged = append(unchanged, clientv3.Compare(clientv3.ModRevision(key), "=", int64(d.Revision)))
		switch {
		case d.Same:
			continue
		case d.Value == nil:
			change = append(change, clientv3.OpDelete(key))
		default:
			change = append(change, clientv3.OpPut(key, string(d.Value)))
		}
		look = append(look, clientv3.OpGet(key))
	}
	changes := len(change) > 0
	if !changes {
		// etcd answers a transaction of comparisons alone from the member that is asked, which may be cut off and know no better.
		// With a read in it, it asks the majority.
		change = append(change, clientv3.OpGet(s.documents(), clientv3.WithCountOnly()))
		look = change
	}
	var done *clientv3.TxnResponse
	open := false // an attempt that was not answered may be carried out
	err = s.call(ctx, callTimeout, func(ctx context.Context) (err error) {
		done, err = s.client.Txn(ctx).If(unchanged...).Then(change...).Else(look...).Commit()
		open = open || changes && err != nil && !refused(err)
		return err
	})
	switch {
	case err != nil && open:
		return 0, fmt.Errorf("%w: %w", err, store.ErrUnknown)
	case err != nil:
		return 0, err
	case done.Succeeded:
		return uint64(done.Header.Revision), nil
	case !open:
		return 0, store.ErrConflict
	}
	if revision, as := asWanted(documents, done); as {
		return revision, nil // by the attempt before, which was not answered
	}
	return 0, fmt.Errorf("%w: %w", store.ErrConflict, store.ErrUnknown)
}

// asWanted reports whether documents are what they were to become, all by one change, whose revision it returns.
func asWanted(documents []store.Document, found *clientv3.TxnResponse) (revision uint64, as bool) {
	changed := slices.DeleteFunc(slices.Clone(documents), func(d store.Document) bool { return d.Same })
	for i, d := range changed {
		switch kvs := found.Responses[i].GetResponseRange().Kvs; {
		case d.Value == nil && len(kvs) == 0:
		case d.Value == nil || len(kvs) == 0 || !bytes.Equal(kvs[0].Value, d.Value):
			return 0, false
		case uint64(kvs[0].ModRevision) <= d.Revision, revision != 0 && uint64(kvs[0].ModRevision) != revision:
			return 0, false
		default:
			revision = uint64(kvs[0].ModRevision)
		}
	}
	if revision == 0 {
		revision = uint64(found.Header.Revision) // nothing but deletions
	}
	return revision, true
}

// Watch implements store.Store. It ends with its connection to a member of etcd, and when etcd has compacted what was not delivered.
func (s *Store) Watch(ctx context.Context, after uint64) <-chan store.Batch {
	batches := make(chan store.Batch)
	if !s.start(func() {
		defer close(batches)
		ctx, cancel := s.bound(ctx)
		defer cancel()
		s.follow(ctx, s.documents(), after+1, func(revision uint64, events []*clientv3.Event) {
			batch := store.Batch{Revision: revision}
			for _, event := range events {
				d := store.Document{Key: strings.TrimPrefix(string(event.Kv.Key), s.documents())}
				if event.Type == clientv3.EventTypePut {
					d.Value, d.Revision = value(event.Kv), revision
				}
				batch.Documents = append(batch.Documents, d)
			}
			select {
			case batches <- batch:
			case <-ctx.Done():
			}
		})
	}) {
		close(batches)
	}
	return batches
}

// follow calls changed with what was changed below a prefix from a revision on, once for each revision, in order. It returns when ctx
// ends or when what comes next is not certain, which does not happen at once.
func (s *Store) follow(ctx context.Context, prefix string, from uint64, changed func(revision uint64, events []*clientv3.Event)) {
	// A member of etcd that has lost the others says so, and the next attempt goes to another.
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for response := range s.watcher().Watch(watching, prefix, clientv3.WithPrefix(), clientv3.WithRev(int64(from))) {
		if response.CompactRevision != 0 {
			s.log.Warn("etcd has compacted changes that were not seen yet: everything is loaded again", "from", from, "known from", response.CompactRevision)
		} else if err := response.Err(); err != nil && ctx.Err() == nil {
			s.log.Debug("the watch of etcd has ended: everything is loaded again", "error", err)
		}
		// The client never splits a revision over two responses (only WithFragment would).
		for events := response.Events; len(events) > 0 && ctx.Err() == nil; {
			revision := events[0].Kv.ModRevision
			n := slices.IndexFunc(events, func(e *clientv3.Event) bool { return e.Kv.ModRevision != revision })
			if n < 0 {
				n = len(events)
			}
			changed(uint64(revision), events[:n])
			events = events[n:]
		}
	}
	select {
	case <-time.After(retryPause):
	case <-ctx.Done():
	}
}

// watcher is for one watch, which ends with its connection. The client would go on by another, from the revision that it has come to:
// an etcd that was restored from a copy in between has other changes by these numbers, or none yet and is silent.
func (s *Store) watcher() clientv3.Watcher {
	connection := s.client.ActiveConnection()
	if connection == nil {
		return s.client // in this process
	}
	return clientv3.NewWatchFromWatchClient(&watchOnce{WatchClient: etcdserverpb.NewWatchClient(connection)}, s.client)
}

// watchOnce opens one stream.
type watchOnce struct {
	etcdserverpb.WatchClient
	opened atomic.Bool
}

func (w *watchOnce) Watch(ctx context.Context, options ...grpc.CallOption) (etcdserverpb.Watch_WatchClient, error) {
	if w.opened.Swap(true) {
		return nil, status.Error(codes.Aborted, "the connection to this member of etcd has ended")
	}
	return w.WatchClient.Watch(ctx, options...)
}

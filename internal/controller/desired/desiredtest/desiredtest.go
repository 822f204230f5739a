// Package desiredtest helps with tests of the desired state.
package desiredtest

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store"
)

// FaultyStore is a store that can be out of reach, and whose watches can be cut.
type FaultyStore struct {
	store.Store
	mutex sync.Mutex
	gone  bool
	cut   context.CancelFunc // the watches
	loads int
}

var errGone = errors.New("the store is out of reach")

func (f *FaultyStore) Set(gone bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.gone = gone
	if f.cut != nil {
		f.cut()
	}
}

// Loads returns how often somebody asked for all documents.
func (f *FaultyStore) Loads() int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.loads
}

func (f *FaultyStore) Load(ctx context.Context) ([]store.Document, uint64, error) {
	f.mutex.Lock()
	gone := f.gone
	f.loads++
	f.mutex.Unlock()
	if gone {
		return nil, 0, errGone
	}
	return f.Store.Load(ctx)
}

func (f *FaultyStore) Watch(ctx context.Context, after uint64) <-chan store.Batch {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.gone {
		ended := make(chan store.Batch)
		close(ended)
		return ended
	}
	ctx, f.cut = context.WithCancel(ctx)
	return f.Store.Watch(ctx, after)
}

func (f *FaultyStore) Commit(ctx context.Context, documents []store.Document) (uint64, error) {
	f.mutex.Lock()
	gone := f.gone
	f.mutex.Unlock()
	if gone {
		return 0, errGone
	}
	return f.Store.Commit(ctx, documents)
}

// State is the desired state in a store.
type State struct {
	*desired.Mirror
	*desired.Writer
	desired.Editor
	*desired.Ager
}

// New returns the state in a store, as yet unknown.
func New(t testing.TB, s store.Store) State {
	m := desired.NewMirror(s, fleettest.Log(t))
	w := desired.NewWriter(m)
	return State{m, w, desired.NewEditor(w), desired.NewAger(w, fleet.Timing{Linger: time.Hour, Quarantine: time.Hour})}
}

// Following returns the desired state in a store, once it is known.
func Following(t testing.TB, s store.Store) State {
	t.Helper()
	d := New(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); d.Follow(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	fleettest.Await(t, "the state is known", func() bool { return d.Now() != nil })
	return d
}

// Change edits the fleet, and waits until it is known.
func Change(t testing.TB, d State, edit func(*model.Fleet)) []string {
	t.Helper()
	changes, revision, err := d.Change(context.Background(), false, func(next *fleet.Desired) error { edit(&next.Running); return nil })
	fleettest.Require(t, err)
	fleettest.Await(t, "the change has come back", func() bool { return d.Now().Revision >= revision })
	return changes
}

// Stored are the documents in a store, but for those that undo changes.
func Stored(t testing.TB, s store.Store) []store.Document {
	t.Helper()
	stored, _, err := s.Load(t.Context())
	fleettest.Require(t, err)
	return slices.DeleteFunc(stored, func(d store.Document) bool { return strings.HasPrefix(d.Key, documents.UndoPrefix) })
}

// AddService adds services, and the keys of tests.
func AddService(views ...engine.ServiceView) func(*model.Fleet) {
	return func(f *model.Fleet) {
		f.Keys = fleettest.Keys()
		for i, v := range views {
			v.Service.VIP = netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})
			f.Services = append(f.Services, v.Service)
		}
	}
}

// RemoveServer removes a server.
func RemoveServer(service string, id uint16) func(*model.Fleet) {
	return func(f *model.Fleet) {
		s := f.Service(service)
		s.Servers = slices.DeleteFunc(s.Servers, func(server model.Server) bool { return server.ID == id })
	}
}

package desired_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/desired/desiredtest"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// meeting is a store where a first change waits for a second one, so that both are made of the same state if they can be.
type meeting struct {
	store.Store
	mutex   sync.Mutex
	arrived int
	both    chan struct{}
}

func (m *meeting) Commit(ctx context.Context, stored []store.Document) (uint64, error) {
	m.mutex.Lock()
	both := m.both
	if both != nil {
		if m.arrived++; m.arrived == 2 {
			close(both)
			m.both = nil
		}
	}
	m.mutex.Unlock()
	if both != nil {
		select {
		case <-both:
		case <-time.After(300 * time.Millisecond): // the second one waits for the first
		}
	}
	return m.Store.Commit(ctx, stored)
}

func (m *meeting) arm() {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.arrived, m.both = 0, make(chan struct{})
}

// fleetIn is what a store has.
func fleetIn(t testing.TB, s store.Store) model.Fleet {
	t.Helper()
	stored, revision, err := s.Load(context.Background())
	fleettest.Require(t, err)
	have := documents.New()
	for _, document := range stored {
		fleettest.Require(t, have.Take(document, revision))
	}
	return have.Fleet()
}

func serviceAt(name, vip string, ids ...int) model.Service {
	s := fleettest.Service(name, ids...).Service
	s.VIP = netip.MustParseAddr(vip)
	return s
}

// Each makes sense, both together do not.
func TestTwoChangesAtOnceNeverLeaveAFleetThatContradictsItself(t *testing.T) {
	put := func(s model.Service) func(*model.Fleet) {
		return func(f *model.Fleet) {
			f.Services = slices.DeleteFunc(f.Services, func(old model.Service) bool { return old.Name == s.Name })
			f.Services = append(f.Services, s)
		}
	}
	addServer := func(service, address string) func(*model.Fleet) {
		return func(f *model.Fleet) {
			server := model.NewServer()
			server.Name, server.ID, server.Address = "new", 9, netip.MustParseAddr(address)
			f.Service(service).Servers = append(f.Service(service).Servers, server)
		}
	}
	addNode := func(name, address string, id uint16) func(*model.Fleet) {
		return func(f *model.Fleet) {
			f.Nodes = append(f.Nodes, model.Node{Name: name, Tier: model.TierSecond, Address: netip.MustParseAddr(address), ID: id, State: model.StateActive})
		}
	}
	const vip = "198.51.100.77"
	races := map[string][2]func(*model.Fleet){
		"two services with one VIP":              {put(serviceAt("a", vip, 1)), put(serviceAt("b", vip, 1))},
		"a VIP that is the address of a node":    {put(serviceAt("a", vip, 1)), addNode("lb1", vip, 1)},
		"a server at the address of a node":      {addServer("web", vip), addNode("lb1", vip, 1)},
		"two services that move to one VIP":      {put(serviceAt("web", vip, 1)), put(serviceAt("mail", vip, 1))},
		"a service and a server that is its VIP": {put(serviceAt("a", vip, 1)), addServer("web", vip)},
	}
	for name, edits := range races {
		for _, controllers := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d controllers", name, controllers), func(t *testing.T) {
				s := &meeting{Store: storetest.Open(t)}
				one := desiredtest.Following(t, s)
				two := one
				if controllers == 2 {
					two = desiredtest.Following(t, s)
				}
				desiredtest.Change(t, one, func(f *model.Fleet) {
					f.Keys = fleettest.Keys()
					f.Services = []model.Service{serviceAt("web", "198.51.100.1", 1), serviceAt("mail", "198.51.100.2", 1)}
				})
				fleettest.Await(t, "both know", func() bool { return two.Now().Revision == one.Now().Revision })
				s.arm()
				var running sync.WaitGroup
				var refused [2]error
				for i, d := range []desiredtest.State{one, two} {
					running.Go(func() {
						_, _, refused[i] = d.Change(t.Context(), false, func(next *fleet.Desired) error { edits[i](&next.Running); return nil })
					})
				}
				running.Wait()
				fleet := fleetIn(t, s)
				if err := fleet.Validate(); err != nil {
					t.Errorf("answers %v and %v left a fleet that contradicts itself: %v", refused[0], refused[1], err)
				}
				var invalid *model.Invalid
				if (refused[0] == nil) == (refused[1] == nil) || !errors.As(errors.Join(refused[0], refused[1]), &invalid) {
					t.Errorf("one of them should be refused as contradictory: %v and %v", refused[0], refused[1])
				}
			})
		}
	}
}

// Promise: When the store holds an inconsistent fleet, nodes keep the last consistent state, and PROBLEMS names
// what to repair.
func TestNodesAreNotToldAFleetThatContradictsItselfAndItCanBeMended(t *testing.T) {
	s := storetest.Open(t)
	d := desiredtest.Following(t, s)
	desiredtest.Change(t, d, func(f *model.Fleet) {
		f.Keys = fleettest.Keys()
		f.Services = []model.Service{serviceAt("mail", "198.51.100.1", 1), serviceAt("web", "198.51.100.2", 1, 2)}
	})
	good, _ := d.View()
	wrong, err := json.Marshal(documents.Service{Service: serviceAt("shop", "198.51.100.2", 1)})
	fleettest.Require(t, err)
	_, err = s.Commit(t.Context(), []store.Document{{Key: documents.ServicesPrefix + "shop", Value: wrong}})
	fleettest.Require(t, err)
	fleettest.Await(t, "it is noticed", func() bool { return d.Broken() != nil })
	if view, _ := d.View(); view.Revision != good.Revision || len(view.Services) != 2 {
		t.Errorf("nodes are told %+v", view)
	}
	if started := desiredtest.Following(t, s); started.Broken() == nil {
		t.Error("a controller that has just started does not notice")
	} else if view, _ := started.View(); view != nil {
		t.Errorf("a controller that knows nothing else tells nodes of %+v", view)
	}
	_, _, err = d.Change(t.Context(), false, func(next *fleet.Desired) error {
		next.Running.Service("mail").Servers[0].State = model.StateDraining
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "contradicts itself") || !strings.Contains(err.Error(), "shop") {
		t.Errorf("a change of something else: %v", err)
	}
	desiredtest.Change(t, d, func(f *model.Fleet) {
		f.Services = slices.DeleteFunc(f.Services, func(s model.Service) bool { return s.Name == "shop" })
	})
	if view, _ := d.View(); d.Broken() != nil || view.Revision <= good.Revision || len(view.Services) != 2 {
		t.Errorf("mended, but %v, and nodes are told %+v", d.Broken(), view)
	}
}

// stalled is a store whose watches deliver nothing while it is held, as to a controller that is slow or cut off.
type stalled struct {
	store.Store
	mutex sync.Mutex
	held  chan struct{} // closed when it goes on; nil: it does
}

func (s *stalled) hold(held bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.held != nil {
		close(s.held)
		s.held = nil
	}
	if held {
		s.held = make(chan struct{})
	}
}

func (s *stalled) Watch(ctx context.Context, after uint64) <-chan store.Batch {
	out := make(chan store.Batch)
	go func() {
		defer close(out)
		for batch := range s.Store.Watch(ctx, after) {
			s.mutex.Lock()
			held := s.held
			s.mutex.Unlock()
			if held != nil {
				select {
				case <-held:
				case <-ctx.Done():
				}
			}
			select {
			case out <- batch:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

func state(service string, to model.ServerState) fleet.Edit {
	return func(next *fleet.Desired) error {
		f := &next.Running
		if f.Service(service) == nil {
			return connect.NewError(connect.CodeNotFound, errors.New("no such service"))
		}
		f.Service(service).Servers[0].State = to
		return nil
	}
}

func TestAControllerThatIsBehindDoesNotSayThatThereIsNothingToDo(t *testing.T) {
	s := storetest.Open(t)
	behind := &stalled{Store: s}
	d, late := desiredtest.Following(t, s), desiredtest.Following(t, behind)
	desiredtest.Change(t, d, desiredtest.AddService(fleettest.Service("web", 1)))
	fleettest.Await(t, "both know", func() bool { return late.Now().Revision == d.Now().Revision })
	for name, dryRun := range map[string]bool{"a change": false, "a dry run": true} {
		behind.hold(true)
		_, _, err := d.Change(t.Context(), false, state("web", model.StateDraining))
		fleettest.Require(t, err)
		type answer struct {
			changes []string
			err     error
		}
		said := make(chan answer, 1)
		go func() {
			changes, _, err := late.Change(t.Context(), dryRun, state("web", model.StateActive))
			said <- answer{changes, err}
		}()
		select {
		case a := <-said:
			t.Errorf("%s by a controller that is behind: %q, %v", name, a.changes, a.err)
			behind.hold(false)
		case <-time.After(3 * desired.ReloadPause):
			behind.hold(false)
			if a := <-said; a.err != nil || len(a.changes) != 1 {
				t.Errorf("%s by a controller that was behind: %q, %v", name, a.changes, a.err)
			}
		}
		_, _, err = d.Change(t.Context(), false, state("web", model.StateActive))
		fleettest.Require(t, err)
	}
	behind.hold(true)
	desiredtest.Change(t, d, func(f *model.Fleet) {
		f.Services = append(f.Services, serviceAt("new", "198.51.100.9", 1))
	})
	read := make(chan model.Fleet, 1)
	go func() {
		_, err := late.Newest(t.Context())
		if err != nil {
			t.Error(err)
		}
		fleet, _, _ := late.Fleet()
		read <- fleet
	}()
	found := make(chan error, 1)
	go func() {
		_, _, err := late.Change(t.Context(), false, state("new", model.StateDraining))
		found <- err
	}()
	time.AfterFunc(2*desired.ReloadPause, func() { behind.hold(false) })
	if err := <-found; err != nil {
		t.Errorf("what was added before is not found: %v", err)
	}
	if fleet := <-read; fleet.Service("new") == nil {
		t.Error("what was added before is not read")
	}
}

func TestNothingIsAnsweredAsDoneOrRefusedWithoutTheStore(t *testing.T) {
	s := &desiredtest.FaultyStore{Store: storetest.Open(t)}
	d := desiredtest.Following(t, s)
	desiredtest.Change(t, d, desiredtest.AddService(fleettest.Service("web", 1)))
	s.Set(true)
	for name, edit := range map[string]fleet.Edit{
		"a change": state("web", model.StateDraining), "nothing to do": state("web", model.StateActive), "what is not there": state("none", model.StateActive),
	} {
		for _, dryRun := range []bool{true, false} {
			if _, _, err := d.Change(t.Context(), dryRun, edit); connect.CodeOf(err) != connect.CodeUnavailable {
				t.Errorf("%s, dry run %v: %v", name, dryRun, err)
			}
		}
	}
	var unconfirmed *api.Unconfirmed
	if revision, err := d.Newest(t.Context()); revision == 0 || !errors.As(err, &unconfirmed) {
		t.Errorf("what is known, with a warning: %v, %v", revision, err)
	}
	if _, _, err := d.Forget(t.Context(), false, "web", "s9"); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("forgetting what is not there: %v", err)
	}
}

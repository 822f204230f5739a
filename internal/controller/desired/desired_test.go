package desired_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/desired/desiredtest"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

func TestTheStateSurvivesARestartOfTheController(t *testing.T) {
	s := storetest.Open(t)
	d := desiredtest.Following(t, s)
	desiredtest.Change(t, d, desiredtest.AddService(fleettest.Service("mail", 1), fleettest.Service("web", 1, 2, 3)))
	desiredtest.Change(t, d, desiredtest.RemoveServer("web", 2))
	fleettest.Require(t, d.SetHealth(t.Context(), map[string]fleet.Unhealthy{"web": {Down: []uint16{1, 3}, Cut: []uint16{3}}}))
	before, _ := d.View()
	after, _ := desiredtest.Following(t, s).View()
	if web := after.Service("web"); len(web.Removed) != 1 || web.Removed[0].ID != 2 || len(web.Past) != 1 || len(web.Down) != 2 || len(web.Cut) != 1 {
		t.Errorf("web: %+v", web)
	}
	if !reflect.DeepEqual(before, after) {
		t.Errorf("before the restart\n%+v\nand after\n%+v", before, after)
	}
	if fleet, revision, err := d.Fleet(); err != nil || revision != after.Revision || !reflect.DeepEqual(fleet.Keys, fleettest.Keys()) {
		t.Errorf("fleet at %d, %v: %+v", revision, err, fleet.Keys)
	}
}

// Promise: Of two changes at the same time both happen, or the second is refused, and the store stays consistent.
// Also held by TestWhatControllersTellIsLinearizableWhateverHappensToThem.
func TestChangesThroughTwoControllersAtOnceAllHappen(t *testing.T) {
	s := storetest.Open(t)
	controllers := []desiredtest.State{desiredtest.Following(t, s), desiredtest.Following(t, s)}
	desiredtest.Change(t, controllers[0], desiredtest.AddService(fleettest.Service("web", 1)))
	fleettest.Await(t, "both know", func() bool { view, _ := controllers[1].View(); return view.Service("web") != nil })
	var running sync.WaitGroup
	const each = 20
	for i, d := range controllers {
		running.Go(func() {
			for j := range each {
				_, revision, err := d.Change(t.Context(), false, func(next *fleet.Desired) error {
					web := next.Running.Service("web")
					server := model.NewServer()
					server.Address = netip.AddrFrom4([4]byte{10, 9, byte(i), byte(j)})
					server.ID, _ = web.NextFreeID()
					web.Servers = append(web.Servers, server)
					return nil
				})
				if err != nil {
					t.Error(err)
				} else if seen := d.Now().Revision; seen < revision {
					t.Errorf("the change of revision %d is not seen at %d", revision, seen)
				}
			}
		})
	}
	running.Wait()
	for _, d := range controllers {
		fleettest.Await(t, "all changes are known", func() bool { view, _ := d.View(); return len(view.Service("web").Service.Servers) == 1+2*each })
	}
}

func TestADryRunAndARefusedChangeLeaveNoTrace(t *testing.T) {
	d := desiredtest.Following(t, storetest.Open(t))
	desiredtest.Change(t, d, desiredtest.AddService(fleettest.Service("web", 1)))
	_, before, _ := d.Fleet()
	changes, _, err := d.Change(t.Context(), true, func(next *fleet.Desired) error { next.Running.Services = nil; return nil })
	if err != nil || len(changes) != 1 {
		t.Errorf("a dry run says %q, %v", changes, err)
	}
	_, _, err = d.Change(t.Context(), false, func(next *fleet.Desired) error { next.Running.Services[0].Ports = nil; return nil })
	var invalid *model.Invalid
	if !errors.As(err, &invalid) {
		t.Errorf("a service without ports: %v", err)
	}
	if fleet, after, _ := d.Fleet(); after != before || len(fleet.Services) != 1 || len(fleet.Services[0].Ports) != 1 {
		t.Errorf("revision %d, then %d: %+v", before, after, fleet)
	}
}

// No state that has the server lets it have new connections before its first checks.
func TestAddedServersAreUnhealthyFromTheChangeOnThatAddsThem(t *testing.T) {
	d := desiredtest.Following(t, storetest.Open(t))
	checked := fleettest.Service("web", 1, 2)
	checked.Service.Health.Check = model.CheckTCP
	desiredtest.Change(t, d, desiredtest.AddService(checked, fleettest.Service("unchecked", 1)))
	fleettest.Require(t, d.SetHealth(t.Context(), map[string]fleet.Unhealthy{"web": {Down: []uint16{1}}}))
	desiredtest.Change(t, d, func(f *model.Fleet) {
		for _, name := range []string{"web", "unchecked"} {
			server := model.NewServer()
			server.Address, server.ID = netip.MustParseAddr("10.9.0.3"), 3
			f.Service(name).Servers = append(f.Service(name).Servers, server)
		}
	})
	view, _ := d.View()
	if web := view.Service("web"); len(web.Service.Servers) != 3 || !slices.Equal(web.Down, []uint16{1, 3}) {
		t.Errorf("web: %+v", web)
	}
	if unchecked := view.Service("unchecked"); len(unchecked.Service.Servers) != 2 || len(unchecked.Down) > 0 {
		t.Errorf("unchecked: %+v", unchecked)
	}
}

func TestAServiceThatIsRemovedLeavesNothingInTheStore(t *testing.T) {
	s := storetest.Open(t)
	d := desiredtest.Following(t, s)
	desiredtest.Change(t, d, desiredtest.AddService(fleettest.Service("web", 1)))
	fleettest.Require(t, d.SetHealth(t.Context(), map[string]fleet.Unhealthy{"web": {Down: []uint16{1}}, "other": {Down: []uint16{1}}}))
	desiredtest.Change(t, d, func(f *model.Fleet) { f.Services = nil })
	stored := desiredtest.Stored(t, s)
	if len(stored) != 2 || stored[0].Key != documents.HistoryKey || stored[1].Key != documents.KeysKey {
		t.Errorf("left: %v", stored)
	}
}

func TestARemovedServerIsForgottenWhenNobodyHasSpokenToItForLong(t *testing.T) {
	s := storetest.Open(t)
	d := desiredtest.Following(t, s)
	desiredtest.Change(t, d, desiredtest.AddService(fleettest.Service("web", 1, 2)))
	desiredtest.Change(t, d, desiredtest.RemoveServer("web", 2))
	began, packets := time.Now(), uint64(7)
	all := func(string) bool { return true }
	writes := 0
	for minute := range 200 {
		if minute < 90 {
			packets++
		}
		if minute == 120 { // another controller takes over and counts anew
			d = desiredtest.Following(t, s)
		}
		_, before, _ := d.Fleet()
		fleettest.Require(t, d.Age(t.Context(), began.Add(time.Duration(minute)*time.Minute), func(string) bool { return false }, nil))
		fleettest.Require(t, d.Age(t.Context(), began.Add(time.Duration(minute)*time.Minute), all, func(string, uint16) uint64 { return packets }))
		view, _ := d.View()
		if minute <= 120+60 && len(view.Service("web").Removed) != 1 {
			t.Fatalf("forgotten after %d minutes", minute)
		}
		if view.Revision != before {
			writes++
		}
	}
	view, _ := d.View()
	if len(view.Service("web").Removed) != 0 {
		t.Error("never forgotten")
	}
	if writes > 90/2 {
		t.Errorf("%d writes: the last sign of life need not be exact", writes)
	}
	if _, _, err := d.Forget(t.Context(), false, "web", "s2"); err != nil {
		t.Errorf("its id rests, and cannot be given up: %v", err)
	}
	if _, _, err := d.Forget(t.Context(), false, "web", "s2"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("forgotten twice: %v", err)
	}
}

func TestADrainIsEndedOnlyIfItsDeadlineHasPassedStill(t *testing.T) {
	d := desiredtest.Following(t, storetest.Open(t))
	desiredtest.Change(t, d, desiredtest.AddService(fleettest.Service("web", 1, 2)))
	desiredtest.Change(t, d, func(f *model.Fleet) {
		for i, deadline := range []time.Time{time.Now().Add(-time.Second), time.Now().Add(time.Hour)} {
			f.Services[0].Servers[i].State, f.Services[0].Servers[i].Deadline = model.StateDraining, deadline.UTC().Truncate(time.Second)
		}
	})
	for id := range uint16(4) {
		fleettest.Require(t, d.SwitchOff(t.Context(), "web", id))
	}
	fleettest.Require(t, d.SwitchOff(t.Context(), "none", 1))
	fleet, _, _ := d.Fleet()
	if s := fleet.Services[0].Servers; s[0].State != model.StateOff || s[1].State != model.StateDraining {
		t.Errorf("servers: %+v", s)
	}
}

func TestADocumentThatCannotBeReadTakesNoServiceAway(t *testing.T) {
	s := &desiredtest.FaultyStore{Store: storetest.Open(t)}
	d := desiredtest.Following(t, s)
	desiredtest.Change(t, d, desiredtest.AddService(fleettest.Service("web", 1)))
	web, before := documents.ServicesPrefix+"web", d.Now()
	bad, err := s.Commit(t.Context(), []store.Document{{Key: web, Value: []byte(`{"service": 7}`), Revision: before.Revisions[web]}})
	fleettest.Require(t, err)
	fleettest.Await(t, "the store was read again, twice", func() bool { return s.Loads() >= 3 })
	if now := d.Now(); now.Services["web"] == nil || now.Revision != before.Revision {
		t.Errorf("at revision %d the service is %v", now.Revision, now.Services["web"])
	}
	stored, revision, err := s.Load(t.Context())
	fleettest.Require(t, err)
	if started := desiredtest.New(t, s); started.Load(stored, revision) == nil || started.Now() != nil {
		t.Error("a controller that has just started tells of the rest without it")
	}
	_, err = s.Commit(t.Context(), []store.Document{{Key: web, Revision: bad}})
	fleettest.Require(t, err)
	fleettest.Await(t, "the store is followed again", func() bool { return d.Now().Services["web"] == nil })
}

func TestVersionsThatNoViewHasShownAreNoted(t *testing.T) {
	s := &desiredtest.FaultyStore{Store: storetest.Open(t)}
	d := desiredtest.Following(t, s)
	expect := func(when string, whole bool, skipped ...string) {
		t.Helper()
		view, _ := d.View()
		if names, everything := d.Show(view.Revision); everything != whole || !slices.Equal(names, skipped) {
			t.Fatalf("%s: skipped %q, whole %v", when, names, everything)
		}
	}
	desiredtest.Change(t, d, desiredtest.AddService(fleettest.Service("web", 1, 2)))
	expect("before anything was shown", false)
	fleettest.Require(t, d.SetHealth(t.Context(), map[string]fleet.Unhealthy{"web": {Down: []uint16{1}}}))
	expect("one new version", false)
	fleettest.Require(t, d.SetHealth(t.Context(), map[string]fleet.Unhealthy{"web": {}}))
	fleettest.Require(t, d.SetHealth(t.Context(), map[string]fleet.Unhealthy{"web": {Down: []uint16{1}}}))
	expect("down, up and down again", false, "web")
	desiredtest.Change(t, d, func(f *model.Fleet) {
		mail := fleettest.Service("mail", 1)
		f.Services = append(f.Services, mail.Service)
	})
	desiredtest.Change(t, d, func(f *model.Fleet) {
		f.Services = slices.DeleteFunc(f.Services, func(s model.Service) bool { return s.Name == "mail" })
	})
	expect("there and gone", false, "mail")
	desiredtest.Change(t, d, func(f *model.Fleet) { f.Keys.Cookie[2] = [16]byte{9} })
	desiredtest.Change(t, d, func(f *model.Fleet) { delete(f.Keys.Cookie, 2) })
	expect("keys there and gone", true)
	fleettest.Await(t, "the store is read again, and what was read was taken", func() bool {
		s.Set(false)
		return s.Loads() >= 3
	})
	expect("read again, and nothing was missed", false)
	s.Set(true)
	before := s.Loads()
	fleettest.Await(t, "the watch has ended", func() bool { return s.Loads() > before })
	_, err := s.Store.Commit(t.Context(), []store.Document{{Key: documents.HealthPrefix + "mail", Value: []byte("{}")}})
	fleettest.Require(t, err)
	s.Set(false)
	fleettest.Await(t, "the store is read again", d.ShowsAll)
}

func TestWhatWasMissedIsLoadedAgain(t *testing.T) {
	s := &desiredtest.FaultyStore{Store: storetest.Open(t)}
	d, other := desiredtest.Following(t, s), desiredtest.Following(t, s.Store)
	desiredtest.Change(t, d, desiredtest.AddService(fleettest.Service("web", 1)))
	fleettest.Await(t, "both know", func() bool { view, _ := other.View(); return view.Service("web") != nil })
	s.Set(true)
	if _, _, err := d.Change(t.Context(), false, func(next *fleet.Desired) error { next.Running.Services = nil; return nil }); connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("a change without a store: %v", err)
	}
	desiredtest.Change(t, other, func(f *model.Fleet) {
		f.Services[0].Servers[0].Weight = 7
		mail := fleettest.Service("mail", 2)
		f.Services = append(f.Services, mail.Service)
	})
	fleettest.Require(t, other.SetHealth(t.Context(), map[string]fleet.Unhealthy{"web": {Down: []uint16{1}}}))
	if view, _ := d.View(); len(view.Services) != 1 {
		t.Errorf("known without a store: %+v", view)
	}
	s.Set(false)
	want, _ := other.View()
	fleettest.Await(t, "the gap is closed", func() bool { view, _ := d.View(); return reflect.DeepEqual(view, want) })
}

// What is in the store must always be what a node by itself would have after the same changes.
func TestAnySequenceOfChangesLeavesWhatANodeWouldHave(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := storetest.Open(t)
	controllers := []desiredtest.State{desiredtest.Following(t, s), desiredtest.Following(t, s)}
	var reference fleet.Desired
	for range 300 {
		name := fmt.Sprint("service", random.IntN(4))
		kind, id, weight, d := random.IntN(6), uint16(1+random.IntN(6)), uint16(random.IntN(5)), controllers[random.IntN(2)]
		edit := func(f *model.Fleet) error {
			f.Keys = fleettest.Keys()
			service := f.Service(name)
			switch {
			case service == nil:
				v := fleettest.Service(name, 1, 2)
				v.Service.VIP = netip.AddrFrom4([4]byte{198, 51, 100, name[7]})
				f.Services = append(f.Services, v.Service)
				slices.SortFunc(f.Services, func(a, b model.Service) int { return int(a.Name[7]) - int(b.Name[7]) })
			case kind == 0:
				f.Services = slices.DeleteFunc(f.Services, func(s model.Service) bool { return s.Name == name })
			case kind < 3:
				desiredtest.RemoveServer(name, id)(f)
			case kind == 3 && service.Server(fmt.Sprint("s", id)) != nil:
				service.Server(fmt.Sprint("s", id)).Weight = weight
			case service.Server(fmt.Sprint("s", id)) == nil:
				service.Servers = append(service.Servers, fleettest.Service("", int(id)).Service.Servers...)
			}
			return nil
		}
		_, wanted := reference.Change(time.Now(), func(next *fleet.Desired) error { return edit(&next.Running) })
		_, revision, err := d.Change(t.Context(), false, func(next *fleet.Desired) error { return edit(&next.Running) })
		if (err == nil) != (wanted == nil) {
			t.Fatalf("refused: %v, a node: %v", err, wanted)
		}
		for _, d := range controllers {
			fleettest.Await(t, "both know", func() bool { return d.Now().Revision >= revision })
			n := d.Now().Node()
			if !reflect.DeepEqual(n.Running.Services, reference.Running.Services) && len(n.Running.Services)+len(reference.Running.Services) > 0 {
				t.Fatalf("wanted\n%+v\na node has\n%+v", n.Running.Services, reference.Running.Services)
			}
			if len(n.Past) != len(reference.Past) || len(n.Past) > 0 && !reflect.DeepEqual(n.Past, reference.Past) {
				t.Fatalf("past %v, of a node %v", n.Past, reference.Past)
			}
			for _, list := range [][]fleet.Removed{n.Removed, reference.Removed} {
				slices.SortFunc(list, func(a, b fleet.Removed) int {
					return 1000*(int(a.Service[7])-int(b.Service[7])) + int(a.Server.ID) - int(b.Server.ID)
				})
			}
			same := slices.EqualFunc(n.Removed, reference.Removed, func(a, b fleet.Removed) bool { return a.Service == b.Service && a.Server == b.Server })
			if !same {
				t.Fatalf("removed %+v, of a node %+v", n.Removed, reference.Removed)
			}
		}
	}
}

func TestAFleetOf4096ServicesIsTakenInTwoSeconds(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("a measurement of time")
	}
	const attempts = 3 // a virtual machine counts what its host did meanwhile
	for attempt := 1; !takesAFleetInTime(t); attempt++ {
		if attempt == attempts {
			t.Fatalf("not once in %d attempts", attempts)
		}
	}
}

// takesAFleetInTime takes the largest fleet and small changes of it, and says what took too long.
func takesAFleetInTime(t *testing.T) bool {
	d := desiredtest.Following(t, storetest.Open(t))
	var services []engine.ServiceView
	for i := range model.MaxServices {
		services = append(services, fleettest.Service(fmt.Sprint("service", i), fleettest.ManyIDs(16)...))
	}
	hub, engine := hub.New(hub.Options{Name: "c1", Log: fleettest.Log(t)}), engine.New(engine.Options{})
	took := func(what string, most time.Duration, f func()) bool {
		before := processorTime(t)
		f()
		took := processorTime(t) - before
		t.Logf("%s: %v of processor time, of %v", what, took, most)
		return took <= most
	}
	spread := func() {
		view, _ := d.View()
		hub.Topics.SetState(view)
		engine.SetState(view)
	}
	whole := took("the fleet", 2*time.Second, func() { desiredtest.Change(t, d, desiredtest.AddService(services...)); spread() })
	server := took("a change of one server", time.Second, func() { desiredtest.Change(t, d, desiredtest.RemoveServer("service7", 3)); spread() })
	health := took("a change of health", 100*time.Millisecond, func() {
		fleettest.Require(t, d.SetHealth(t.Context(), map[string]fleet.Unhealthy{"service8": {Down: []uint16{1}}}))
		spread()
	})
	return whole && server && health
}

// processorTime is what this process has used: other processes of the machine do not count.
func processorTime(t *testing.T) time.Duration {
	var usage unix.Rusage
	fleettest.Require(t, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Who asks a controller that has just begun waits until it has read the store, and is refused if that takes long.
func TestAControllerThatHasJustBegunIsWaitedFor(t *testing.T) {
	d := desiredtest.New(t, storetest.Open(t))
	edit := func(next *fleet.Desired) error {
		desiredtest.AddService(fleettest.Service("web", 1, 2))(&next.Running)
		return nil
	}
	if _, _, err := d.Change(t.Context(), false, edit); !errors.Is(err, desired.ErrUnknown) {
		t.Fatalf("before anything was read: %v", err)
	}
	asked := make(chan error)
	go func() {
		_, _, err := d.Change(t.Context(), false, edit)
		asked <- err
	}()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); d.Follow(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	fleettest.Require(t, <-asked)
}

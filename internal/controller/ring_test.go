package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired/desiredtest"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/controller/fleetapi"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// ringFleet is two controllers with a store, and load balancers that do what they are told about the ring, in a bubble.
type ringFleet struct {
	t           *testing.T
	ca          *fleettest.Authority
	controllers map[string]*controller
	stop        map[string]func()
	dial        map[string]func() net.Conn
	members     map[string]*ringMember
}

// ringMember is a load balancer.
type ringMember struct {
	*fleetNode
	incarnation uint64
	power       bool
}

// stateOf is what a controller knows and changes.
func stateOf(c *controller) desiredtest.State {
	return desiredtest.State{Mirror: c.mirror, Editor: c.editor, Ager: c.ager}
}

func newRingFleet(t *testing.T, s store.Store, lbs ...string) *ringFleet {
	f := &ringFleet{t: t, ca: fleettest.NewAuthority(t), controllers: map[string]*controller{}, stop: map[string]func(){}, dial: map[string]func() net.Conn{}, members: map[string]*ringMember{}}
	for _, name := range []string{"c1", "c2"} {
		f.controllers[name], f.dial[name+":1"], f.stop[name] = runWithoutNetwork(t, f.ca.Issue(pki.Controller, name), s)
	}
	for _, name := range lbs {
		f.members[name] = &ringMember{fleetNode: joinAt(t, f.ca.Issue(pki.LB, name), func(_ context.Context, _, address string) (net.Conn, error) {
			return f.dial[address](), nil
		}, "c1:1", "c2:1"), incarnation: 1, power: true}
	}
	time.Sleep(10 * time.Second)
	service := fleettest.Service("dns", 1, 2)
	service.Service.Protocol, service.Service.Affinity, service.Service.Fallback = model.ProtocolUDP, model.AffinityReplicated, model.FallbackHash
	desiredtest.Change(t, stateOf(f.controllers["c1"]), desiredtest.AddService(service))
	return f
}

// run lets time pass, in which all say how they stand.
func (f *ringFleet) run(during time.Duration) {
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		for name, m := range f.members {
			if m.power {
				m.joined.Send(replicaMessage(f.report(name, m)))
			}
		}
		synctest.Wait()
	}
}

func replicaMessage(r *ballastv1.ReplicaReport) *ballastv1.FromNode {
	return &ballastv1.FromNode{Message: &ballastv1.FromNode_Replica{Replica: r}}
}

func (f *ringFleet) report(name string, m *ringMember) *ballastv1.ReplicaReport {
	r := &ballastv1.ReplicaReport{Address: "192.0.2." + strings.TrimPrefix(name, "lb") + ":7475", Incarnation: m.incarnation}
	m.locked(func() bool {
		if m.ring == nil {
			return false
		}
		r.View, r.Synced = m.ring.Version, m.ring.Synced
		for _, n := range m.ring.Nodes {
			if n.Name == name && n.OnRing && n.Incarnation != m.incarnation {
				r.View = 0 // it waits until that is known
			}
			if other := f.members[n.Name]; n.Name == name {
			} else if other != nil && other.power {
				r.Heard = append(r.Heard, n.Number)
			} else {
				r.Silent = append(r.Silent, n.Number)
			}
		}
		r.Done = m.synced
		return true
	})
	return r
}

// leader is the controller that decides.
func (f *ringFleet) leader() (name string) {
	for name, c := range f.controllers {
		if c.election.Leads("ring") {
			return name
		}
	}
	f.t.Fatal("nobody leads the ring")
	return ""
}

// expect looks whether these are on the ring, and all have it.
func (f *ringFleet) expect(c *controller, names ...string) *ballastv1.ListReplicasResponse {
	f.t.Helper()
	ring, err := c.fleet.Replicas(f.t.Context())
	fleettest.Require(f.t, err)
	var on []string
	for _, n := range ring.Nodes {
		if n.State == "on" {
			on = append(on, n.Name)
		}
	}
	slices.Sort(on)
	if !slices.Equal(on, names) || ring.Phase != "synced" {
		f.t.Errorf("on the ring: %v, %s, want %v; %v", on, ring.Phase, names, ring.Problems)
	}
	return ring
}

func TestTheRingFollowsWhoLivesWhicheverControllerLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newRingFleet(t, storetest.Open(t), "lb1", "lb2", "lb3", "lb4")
		f.run(5 * time.Second)
		lead := f.leader()
		ring := f.expect(f.controllers[lead], "lb1", "lb2", "lb3", "lb4")
		if !ring.Needed || ring.Replicas.Chain != model.DefaultChain || ring.Leader != lead || len(ring.Nodes[0].Chain) != model.DefaultChain {
			t.Errorf("%v", ring)
		}
		f.members["lb2"].power = false
		f.run(time.Second)
		f.expect(f.controllers[lead], "lb1", "lb3", "lb4")
		f.stop[lead]()
		f.members["lb2"].power, f.members["lb2"].incarnation = true, 2
		f.members["lb4"].incarnation = 2 // it has lost its entries in the same moment
		delete(f.controllers, lead)
		f.run(20 * time.Second)
		ring = f.expect(f.controllers[f.leader()], "lb1", "lb2", "lb3", "lb4")
		if ring.Lost != 0 {
			t.Errorf("%d ranges were lost", ring.Lost)
		}
	})
}

// A stream with the certificate of a load balancer says 50 times a second that this has lost its entries, and is somewhere else.
//
// Promise: A load balancer that comes and goes, or reports 50 times a second that it has lost its entries, is
// removed from the ring for twice as long each time; few ring versions are made, and load balancers skip
// superseded ones.
// Also held by TestANodeThatLosesItsEntriesAllTheTimeIsTakenOffAndWaitsLonger and
// TestOfWhatComesFasterThanItIsTakenTheNewestIsTaken.
func TestOneLoadBalancerCannotMakeMoreThanAFewVersionsOfTheRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newRingFleet(t, storetest.Open(t), "lb1", "lb2", "lb3", "lb4")
		f.run(5 * time.Second)
		lead := f.controllers[f.leader()]
		before, said := f.expect(lead, "lb1", "lb2", "lb3", "lb4").Version, lead.mirror.Now().Revisions[documents.RingKey]
		forger := f.members["lb4"]
		for n := range 50 * 20 {
			forger.incarnation++
			forged := f.report("lb4", forger)
			forged.Address = fmt.Sprintf("198.51.100.%d:7475", 1+n%200)
			forger.joined.Send(replicaMessage(forged))
			for name, m := range f.members {
				if name != "lb4" && n%10 == 0 {
					m.joined.Send(replicaMessage(f.report(name, m)))
				}
			}
			time.Sleep(20 * time.Millisecond)
			synctest.Wait()
		}
		now := f.expect(lead, "lb1", "lb2", "lb3")
		if versions, changes := now.Version-before, lead.mirror.Now().Revisions[documents.RingKey]-said; versions > 3 || changes > 12 {
			t.Errorf("%d versions, the store has had %d changes", versions, changes)
		}
	})
}

func TestOperatorsTakeLoadBalancersOffTheRingAsLongAsOneMayFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newRingFleet(t, storetest.Open(t), "lb1", "lb2", "lb3", "lb4")
		f.run(5 * time.Second)
		one, other := f.controllers["c1"].fleet, f.controllers["c2"].fleet
		drain := func(by *fleetapi.Fleet, name string, off bool) ([]string, error) {
			would, _, refused := by.DrainReplica(t.Context(), true, name, off)
			changes, _, err := by.DrainReplica(t.Context(), false, name, off)
			if !slices.Equal(would, changes) || connect.CodeOf(refused) != connect.CodeOf(err) {
				t.Errorf("drain %s: a dry run tells %q, %v, and it does %q, %v", name, would, refused, changes, err)
			}
			return changes, err
		}
		if _, err := drain(one, "lb9", true); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("a load balancer that nobody knows: %v", err)
		}
		if changes, err := drain(one, "lb1", true); err != nil || len(changes) != 1 {
			t.Fatal(changes, err)
		}
		if changes, err := drain(other, "lb1", true); err != nil || len(changes) != 0 {
			t.Errorf("once more: %v, %v", changes, err)
		}
		if _, err := drain(other, "lb2", true); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "chains of 2 need 3") {
			t.Errorf("one too many, at once: %v", err)
		}
		f.run(2 * time.Second)
		ring := f.expect(f.controllers["c1"], "lb2", "lb3", "lb4")
		if i := slices.IndexFunc(ring.Nodes, func(n *ballastv1.ReplicaStatus) bool { return n.Name == "lb1" }); ring.Nodes[i].State != "drained" {
			t.Errorf("%v", ring.Nodes[i])
		}
		if _, err := drain(other, "lb1", false); err != nil {
			t.Fatal(err)
		}
		f.run(3 * time.Second)
		f.expect(f.controllers["c2"], "lb1", "lb2", "lb3", "lb4")
		history, err := one.History(t.Context())
		if err != nil || len(history) < 3 || history[len(history)-1].Changes[0] != "replicas: lb1 comes onto the ring again" {
			t.Errorf("%v, %v", history, err)
		}
	})
}

// refusingStore refuses to be written, while it is told to.
type refusingStore struct {
	store.Store
	refuses atomic.Bool
}

func (s *refusingStore) Commit(ctx context.Context, stored []store.Document) (uint64, error) {
	if s.refuses.Load() {
		return 0, errors.New("no quorum")
	}
	return s.Store.Commit(ctx, stored)
}

// Promise: While no controller can write to the store and a load balancer of the ring has failed, packets that
// must ask it are dropped, and connections that the others know are kept.
func TestTheRingStaysWhileTheStoreRefusesAndFollowsThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &refusingStore{Store: storetest.Open(t)}
		f := newRingFleet(t, s, "lb1", "lb2", "lb3", "lb4")
		f.run(5 * time.Second)
		c := f.controllers[f.leader()]
		version := f.expect(c, "lb1", "lb2", "lb3", "lb4").Version
		s.refuses.Store(true)
		f.members["lb2"].power = false
		f.run(3 * time.Second)
		if ring, err := c.fleet.Replicas(t.Context()); err != nil || ring.Version != version || ring.Nodes[1].Share == 0 {
			t.Errorf("without a store: %v, %v", ring, err)
		}
		s.refuses.Store(false)
		f.run(2 * time.Second)
		f.expect(c, "lb1", "lb3", "lb4")
	})
}

func TestALoadBalancerThatIsForgottenGivesItsNumberBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newRingFleet(t, storetest.Open(t), "lb1", "lb2", "lb3", "lb4")
		f.run(5 * time.Second)
		f.members["lb3"].power = false
		f.members["lb3"].stop()
		f.run(time.Second)
		c := f.controllers[f.leader()]
		ring := f.expect(c, "lb1", "lb2", "lb4")
		if len(ring.Nodes) != 4 {
			t.Fatal(ring.Nodes)
		}
		if _, err := c.fleet.ForgetNode(api.WithCaller(t.Context(), api.Caller{Role: string(pki.Controller)}), false, "lb3", ""); err != nil {
			t.Fatal(err)
		}
		f.run(time.Second)
		if ring := f.expect(c, "lb1", "lb2", "lb4"); len(ring.Nodes) != 3 {
			t.Errorf("%v", ring.Nodes)
		}
	})
}

func TestWithoutReplicatedServicesThereIsNoRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newRingFleet(t, storetest.Open(t), "lb1", "lb2")
		desiredtest.Change(t, stateOf(f.controllers["c1"]), func(fleet *model.Fleet) { fleet.Services = nil })
		f.run(3 * time.Second)
		c := f.controllers[f.leader()]
		ring, err := c.fleet.Replicas(t.Context())
		if err != nil || ring.Needed || ring.Phase != "none" || ring.Version != 0 {
			t.Errorf("%v, %v", ring, err)
		}
		service := fleettest.Service("web", 1)
		service.Service.Fallback = model.FallbackReplicated
		desiredtest.Change(t, stateOf(c), desiredtest.AddService(service))
		f.run(3 * time.Second)
		ring, err = c.fleet.Replicas(t.Context())
		if err != nil || !ring.Needed || ring.Version != 0 || len(ring.Problems) != 1 || !strings.Contains(ring.Problems[0], fmt.Sprintf("chains of %d need %d", model.DefaultChain, model.DefaultChain+1)) {
			t.Errorf("too few: %v, %v", ring, err)
		}
	})
}

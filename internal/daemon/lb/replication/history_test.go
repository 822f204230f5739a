package replication

import (
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// flowModel is a register for each flow that is written once: the first packet that reaches a server decides, and all others find the same.
var flowModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		of := map[any][]porcupine.Operation{}
		for _, o := range history {
			of[o.Input] = append(of[o.Input], o)
		}
		for _, part := range of {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return uint16(0) },
	Step: func(owner, _, seen any) (bool, any) {
		return owner == uint16(0) || owner == seen, seen
	},
}

// observed is a fleet whose packets are handled on several CPUs, while its ring changes.
type observed struct {
	testing.TB
	hosts      map[uint16]*host
	config     replica.Config
	random     *rand.Rand // of the ring's changes
	controller *replica.Controller
	dead       [64]atomic.Bool
	deaf       map[uint16]bool   // the slow path does not reach them: they go on with the view that they have
	messages   []replica.Message // of the slow path
	done       atomic.Bool

	mutex   sync.Mutex
	history []porcupine.Operation
	lost    int
}

// watch sends packets of random flows to random load balancers, of which each message may be lost, until it is done.
func (o *observed) watch(client int, random *rand.Rand, flows int, began time.Time) {
	var seen []porcupine.Operation
	lost := 0
	for !o.done.Load() {
		at := uint16(1 + random.IntN(len(o.hosts)))
		n := random.IntN(flows)
		c := anyConnection(n)
		flags := byte(ack)
		if random.IntN(2) == 0 {
			flags = syn
		}
		if o.dead[at].Load() {
			continue
		}
		call := time.Since(began)
		out := o.hosts[at].run(c.frame(flags))
		for out.message.Kind != 0 {
			if random.IntN(20) == 0 || o.dead[out.to].Load() {
				out = sent{}
				break
			}
			out = o.hosts[out.to].run(out.frame)
		}
		if out.server == 0 {
			lost++
			continue
		}
		seen = append(seen, porcupine.Operation{ClientId: client, Input: n, Call: int64(call), Output: out.server, Return: int64(time.Since(began))})
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.history, o.lost = append(o.history, seen...), o.lost+lost
}

func (o *observed) take(actions []replica.Action) {
	for _, action := range actions {
		if action.Kind == replica.Send {
			o.messages = append(o.messages, action.Message)
		}
	}
}

// settle delivers the messages of the slow path, of which some are lost, until all is synced.
func (o *observed) settle() {
	o.Helper()
	for late := time.Now().Add(2 * time.Minute); o.controller.Phase() != replica.Synced; {
		if time.Now().After(late) {
			o.Fatalf("the ring is not synced: %+v", o.controller.State)
		}
		if len(o.messages) == 0 {
			o.take(slices.Clone(o.controller.Retry()))
			for id, h := range o.hosts {
				if !o.dead[id].Load() && h.machine != nil {
					o.take(slices.Clone(h.machine.Retry()))
				}
			}
		}
		for len(o.messages) > 0 {
			m := o.messages[0]
			o.messages = o.messages[1:]
			switch {
			case o.random.IntN(20) == 0 || o.deaf[m.To]:
			case m.To == replica.None:
				o.take(slices.Clone(o.controller.Receive(m)))
			case !o.dead[m.To].Load():
				o.take(slices.Clone(o.hosts[m.To].machine.Receive(m)))
			}
		}
	}
}

func (o *observed) change(change replica.Change) {
	o.Helper()
	actions, err := o.controller.Change(change)
	if err != nil {
		o.Fatal(err)
	}
	o.take(slices.Clone(actions))
	o.settle()
}

// forget is what a load balancer is that comes back: what it had is gone, and what it was told before does not reach it.
func (o *observed) forget(id uint16) {
	o.Helper()
	o.messages = slices.DeleteFunc(o.messages, func(m replica.Message) bool { return m.To == id || m.From == id })
	o.hosts[id].open(&o.config)
	delete(o.deaf, id)
}

// reconfigure has one load balancer fail and another, or the same, come back; or one lose its entries.
func (o *observed) reconfigure() {
	o.Helper()
	list := o.controller.List()
	var off []uint16
	for id := range o.hosts {
		if _, on := list.Find(id); !on {
			off = append(off, id)
		}
	}
	slices.Sort(off)
	id := list[o.random.IntN(len(list))].Node
	switch {
	case len(off) > 0 && (o.random.IntN(2) == 0 || len(list) <= o.config.Chain+1):
		id = off[o.random.IntN(len(off))]
		o.forget(id)
		o.dead[id].Store(false)
		o.change(replica.Change{Add: []uint16{id}})
	case len(list) > o.config.Chain+1 && o.random.IntN(2) == 0:
		o.deaf[id] = true
		o.change(replica.Change{Fail: []uint16{id}})
	case len(list) > o.config.Chain+1 && o.random.IntN(3) > 0:
		o.dead[id].Store(true)
		o.change(replica.Change{Fail: []uint16{id}})
	default:
		o.dead[id].Store(true) // its packets wait until it has nothing any more
		o.forget(id)
		o.dead[id].Store(false)
		o.change(replica.Change{Restart: []uint16{id}})
	}
}

// A load balancer is taken off the ring and does not learn it, as one does that no controller reaches, or whose daemon is dead.
//
// Promise: Replicated connections, new ones too, are kept at a load balancer that was removed from the ring
// unknowingly: others with a newer ring pass its questions on, and its daemon, if it lives, takes the ring from
// them and is not ready.
// Also held by TestWhatWasAskedOfAnOlderChainIsAskedOfTheNewerOne,
// TestALoadBalancerThatControllersTookOffTheRingIsNotReadyUntilItHearsThem,
// TestARingIsTakenFromALoadBalancerOnlyAsAControllerHasSignedIt and
// TestALoadBalancerThatControllersDoNotHearGoesOn.
func TestALoadBalancerThatIsTakenOffTheRingUnknowinglyLosesNothing(t *testing.T) {
	const hosts, flows = 5, 200
	for _, chain := range []int{2, 3} {
		o := &observed{TB: t, hosts: map[uint16]*host{}, config: replica.DefaultConfig(chain), random: rand.New(rand.NewPCG(seed(t), 0)), deaf: map[uint16]bool{}}
		o.config.DirectToHead, o.config.HopLimit = true, hopLimit
		o.controller = replica.NewController(&o.config, replica.State{})
		var ids []uint16
		for id := uint16(1); id <= hosts; id++ {
			o.hosts[id] = newHost(t, id, hosts)
			o.hosts[id].open(&o.config)
			ids = append(ids, id)
		}
		o.change(replica.Change{Add: ids})
		owners := map[connection]uint16{}
		ask := func(at uint16, c connection, flags byte, what string) {
			t.Helper()
			server, hops := deliverAll(o.hosts, o.hosts[at].run(c.frame(flags)))
			if owner, known := owners[c]; server == 0 || known && server != owner {
				t.Fatalf("chains of %d, %s: node %d, after %d messages: server %d, before %d", chain, what, at, hops, server, owner)
			}
			owners[c] = server
		}
		for n := range flows {
			ask(uint16(1+n%hosts), anyConnection(n), syn, "at first")
		}
		for off, gone := range []uint16{5, 4}[:hosts-chain-1] { // 5 goes, then 4: what each knows is older than the one before
			o.deaf[gone] = true
			o.change(replica.Change{Fail: []uint16{gone}})
			o.hosts[1].machine.NextPeriod() // answers are not fresh any more
			for n := range flows {
				for id := range o.deaf {
					ask(id, anyConnection(n), ack, "known")
					c := anyConnection(n + flows*(1+off)*int(id))
					ask(id, c, syn, "new")
					ask(uint16(1+n%(hosts-2)), c, ack, "new, then by another one")
					ask(id, c, ack, "new, and again")
				}
			}
			for id := range o.deaf { // its daemon may live: then its answers age
				o.hosts[id].machine.NextPeriod()
				for n := range flows {
					ask(id, anyConnection(n), ack, "known, of another period")
				}
			}
		}
	}
}

// Every packet of a flow that reaches a server reaches the same, by whatever load balancer, while one after the other fails, comes and loses its entries.
func TestWhatAllLoadBalancersSayOfAFlowIsLinear(t *testing.T) {
	const hosts = 5
	flows, changes, limits, path := 4000, 12, testLimits, loaded
	if os.Getenv("BALLAST_LONG") != "" {
		flows, changes, limits.Replicated = 100_000, 50, 1<<18
		path = func(t testing.TB, _ uint16) *lb.LB { return openLB(t, limits) }
	}
	s := seed(t)
	o := &observed{TB: t, hosts: map[uint16]*host{}, config: replica.DefaultConfig(2), random: rand.New(rand.NewPCG(s, 0)), deaf: map[uint16]bool{}}
	o.config.DirectToHead, o.config.HopLimit, o.config.CopyEntries = true, hopLimit, 256
	o.controller = replica.NewController(&o.config, replica.State{})
	var ids []uint16
	for id := uint16(1); id <= hosts; id++ {
		h := newHostOn(t, id, hosts, path(t, id), limits)
		h.path.SetRing(true)
		h.open(&o.config)
		o.hosts[id] = h
		ids = append(ids, id)
	}
	o.change(replica.Change{Add: ids})
	var watching sync.WaitGroup
	began := time.Now()
	for client := range 4 {
		random := rand.New(rand.NewPCG(s, uint64(1+client)))
		watching.Go(func() { o.watch(client, random, flows, began) })
	}
	for range changes {
		o.reconfigure()
	}
	if o.controller.State.Lost > 0 {
		t.Errorf("%d ranges were lost: one load balancer fails at a time", o.controller.State.Lost)
	}
	o.done.Store(true)
	watching.Wait()
	seen := map[any]bool{}
	for _, one := range o.history {
		seen[one.Input] = true
	}
	t.Logf("%d packets of %d flows reached a server, %d were lost, %d changes of the ring", len(o.history), len(seen), o.lost, changes)
	if result, _ := porcupine.CheckOperationsVerbose(flowModel, o.history, time.Minute); result != porcupine.Ok {
		t.Errorf("not linear: %v", result)
	}
	if len(seen) < flows/2 || o.lost == 0 {
		t.Errorf("only %d flows, %d lost", len(seen), o.lost)
	}
}

package replication

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/model"
)

// twin is a node twice: in the data path, with the machine on its tables, and the machine alone.
type twin struct {
	*host
	alone *replica.Node
}

// flying is a message on its way, as both have sent it.
type flying struct {
	to     uint16
	frame  []byte // nil: of the slow path
	packet replica.Message
}

// twins are a fleet, its controller and random events.
type twins struct {
	testing.TB
	random     *rand.Rand
	config     *replica.Config
	controller *replica.Controller
	nodes      map[uint16]*twin
	spare      []*host // load balancers without a node
	messages   []flying
	keys       map[ring.Key]connection
	list       []connection
	started    map[ring.Key]bool // of TCP: a SYN was sent
	counts     map[string]int
}

func seed(t testing.TB) uint64 {
	t.Helper()
	s, err := strconv.ParseUint(os.Getenv("BALLAST_SEED"), 10, 64)
	if err != nil {
		s = rand.Uint64()
	}
	t.Logf("BALLAST_SEED=%d", s)
	return s
}

func (f *twins) start(h *host) {
	h.open(f.config)
	node := &twin{h, replica.OpenNode(h.id, f.config, &leaving{Table: replica.NewMemory()}, replica.NewMemory(), unseen{}, 0)}
	node.alone.SetGone(func(_ ring.Key, owner replica.Owner) bool { return h.isOff(uint16(owner)) })
	f.nodes[h.id] = node
}

func (f *twins) ids() (ids []uint16) {
	for id := range f.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (f *twins) any() *twin {
	ids := f.ids()
	return f.nodes[ids[f.random.IntN(len(ids))]]
}

// take is what a machine of the slow path wants done.
func (f *twins) take(actions []replica.Action) {
	for _, action := range actions {
		if action.Kind == replica.Send {
			f.messages = append(f.messages, flying{to: action.Message.To, packet: action.Message})
		}
	}
}

func (f *twins) change(change replica.Change) {
	actions, err := f.controller.Change(change)
	if err != nil {
		f.Fatal(err)
	}
	f.take(slices.Clone(actions))
}

// compare fails unless what the data path did is what the machine wants done, and sends it on.
func (f *twins) compare(n *twin, did sent, key ring.Key, wanted []replica.Action, what string) {
	f.Helper()
	describe := func() string {
		return fmt.Sprintf("node %d, %s, key %#x: the data path sent %+v to node %d, server %d; the machine: %+v", n.id, what, key, did.message, did.to, did.server, wanted)
	}
	if len(wanted) == 0 || wanted[0].Kind == replica.Forward && n.isOff(uint16(wanted[0].Message.Owner)) {
		if did.frame != nil {
			f.Fatal(describe())
		}
		f.counts["nothing"]++
		return
	}
	m := wanted[0].Message
	if wanted[0].Kind == replica.Forward {
		if did.server != uint16(m.Owner) {
			f.Fatal(describe())
		}
		f.counts["forwarded"]++
		return
	}
	kinds := map[replica.Kind]peermessage.Kind{replica.WhoOwns: peermessage.WhoOwns, replica.Write: peermessage.Write, replica.Owns: peermessage.Owns}
	want := peermessage.Message{Kind: kinds[m.Kind], Hops: m.Hops, Forwarder: m.Forwarder, Last: m.Last, Owner: uint16(m.Owner), Chain: m.Chain,
		Proposed: did.message.Proposed, Flags: did.message.Flags}
	if m.Kind == replica.Owns { // it says so to nobody who looks at it
		want.Chain, want.Last = did.message.Chain, did.message.Last
	}
	if m.Kind == replica.WhoOwns {
		want.Last = 0
	}
	recorded := did.message.Flags&peermessage.Recorded != 0
	noted := m.Kind == replica.Owns || recorded == (m.Record != 0) && (!recorded || did.message.Proposed == uint16(m.Record))
	unheard := m.Kind != replica.Owns || (did.message.Flags&peermessage.Lookup != 0) == m.Unheard
	if did.message != want || did.to != m.To || !noted || !unheard {
		f.Fatal(describe())
	}
	f.counts[fmt.Sprint("kind ", want.Kind)]++
	if _, lives := f.nodes[m.To]; lives {
		f.messages = append(f.messages, flying{m.To, did.frame, m})
	}
}

// packet has one of a connection come to a node.
func (f *twins) packet(n *twin, c connection) {
	key := c.key(&n.want.Keys)
	flags, begins := byte(ack), true
	if c.protocol == model.ProtocolTCP {
		if begins = !f.started[key] || f.random.IntN(10) == 0; begins {
			flags = syn
		}
		f.started[key] = true
	}
	if n.path.ViewVersion() == 0 { // then it goes by placement, which the machine knows nothing of
		return
	}
	did := n.run(c.frame(flags))
	proposed := did.message.Proposed
	if did.message.Kind == 0 {
		proposed = did.server
	}
	if proposed == 0 {
		proposed = 1
	}
	f.compare(n, did, key, n.alone.Packet(key, replica.Owner(proposed), begins), fmt.Sprintf("packet (begins: %v)", begins))
}

// deliver gives a message to whom it is for.
func (f *twins) deliver(m flying) {
	f.Helper()
	if m.to == replica.None {
		f.take(slices.Clone(f.controller.Receive(m.packet)))
		return
	}
	n := f.nodes[m.to]
	if n == nil {
		return
	}
	if m.frame != nil {
		did := n.run(m.frame)
		if did.frame != nil && did.message.Kind != 0 && string(did.inner()) != string((&sent{frame: m.frame}).inner()) {
			f.Fatalf("the packet inside has changed: %x, then %x", m.frame, did.frame)
		}
		f.compare(n, did, m.packet.Key, n.alone.Receive(m.packet), fmt.Sprintf("message %d", m.packet.Kind))
		return
	}
	real, alone := slices.Clone(n.machine.Receive(m.packet)), n.alone.Receive(m.packet)
	if len(real) != len(alone) {
		f.Fatalf("node %d, message %d: on the data path's tables %+v, alone %+v", n.id, m.packet.Kind, real, alone)
	}
	for i := range real {
		if string(real[i].Message.Append(nil)) != string(alone[i].Message.Append(nil)) {
			f.Fatalf("node %d, message %d: on the data path's tables %+v, alone %+v", n.id, m.packet.Kind, real[i], alone[i])
		}
	}
	f.counts["slow"]++
	f.take(real)
}

func (f *twins) step() {
	f.Helper()
	switch dice := f.random.IntN(1000); {
	case dice < 140:
		f.packet(f.any(), f.list[f.random.IntN(len(f.list))])
	case dice < 930 && len(f.messages) > 0:
		at := f.random.IntN(min(len(f.messages), 6))
		if f.random.IntN(3) == 0 { // or there would hardly be a sync that ends
			at = max(0, slices.IndexFunc(f.messages, func(m flying) bool { return m.frame == nil }))
		}
		m := f.messages[at]
		switch dice := f.random.IntN(20); {
		case dice == 0: // lost
			f.messages = slices.Delete(f.messages, at, at+1)
		case dice == 1: // repeated
			f.deliver(m)
		default:
			f.messages = slices.Delete(f.messages, at, at+1)
			f.deliver(m)
		}
	case dice < 960:
		f.take(slices.Clone(f.controller.Retry()))
		for _, id := range f.ids() {
			f.take(slices.Clone(f.nodes[id].machine.Retry()))
			f.nodes[id].alone.Retry()
		}
	case dice < 980:
		n := f.any()
		n.machine.NextPeriod()
		n.alone.NextPeriod()
	case dice < 990: // at some nodes later than at others
		state := model.StateActive
		if f.random.IntN(3) == 0 {
			state = model.StateOff
		}
		f.any().setState(uint16(1+f.random.IntN(4)), state)
	case f.controller.Phase() == replica.Synced:
		f.reconfigure()
	}
}

// reconfigure changes the ring: a node comes, goes, or starts again with nothing. Of what the test needs the first two are not left to chance: with long
// chains there are few changes.
func (f *twins) reconfigure() {
	f.Helper()
	list := f.controller.List()
	id := list[f.random.IntN(len(list))].Node
	switch {
	case f.counts["restarted"] < min(2, f.counts["added"]):
		f.restart(id)
	case len(f.spare) == 0 && len(list) < len(f.nodes) && len(list) <= f.config.Chain+1: // one that was taken off comes back
		for _, id := range f.ids() {
			if _, on := list.Find(id); !on {
				f.change(replica.Change{Add: []uint16{id}})
				return
			}
		}
	case len(f.spare) > 0 && (f.random.IntN(2) == 0 || len(list) <= f.config.Chain+1):
		h := f.spare[0]
		f.spare = f.spare[1:]
		f.start(h)
		f.change(replica.Change{Add: []uint16{h.id}})
		f.counts["added"]++
	case len(list) > f.config.Chain+1 && (f.counts["failed"] < 1 || f.random.IntN(3) == 0):
		f.spare = append(f.spare, f.nodes[id].host)
		delete(f.nodes, id)
		f.change(replica.Change{Fail: []uint16{id}})
		f.counts["failed"]++
	case len(list) > f.config.Chain+1 && (f.counts["taken off"] < 2 || f.random.IntN(2) == 0): // it lives, and may never learn it
		f.change(replica.Change{Fail: []uint16{id}})
		f.counts["taken off"]++
	default:
		f.restart(id)
	}
}

func (f *twins) restart(id uint16) {
	f.Helper()
	f.messages = slices.DeleteFunc(f.messages, func(m flying) bool { return m.to == id && m.packet.From == replica.None && m.frame == nil })
	f.start(f.nodes[id].host)
	f.change(replica.Change{Restart: []uint16{id}})
	f.counts["restarted"]++
}

// same fails unless both have the same records.
func (f *twins) same() {
	f.Helper()
	for _, id := range f.ids() {
		n := f.nodes[id]
		if got, want := n.machine.Append(nil), n.alone.Append(nil); string(got) != string(want) {
			f.Fatalf("node %d: the tables of the data path and those of the machine alone differ:\n%x\n%x", id, got, want)
		}
	}
}

// What the data path does with packets and messages, the machine does, message by message and entry by entry; and what the machine does on the data
// path's tables it does on its own.
func TestTheDataPathDoesWhatTheMachineDoes(t *testing.T) {
	const hosts = 5
	var all []*host
	for id := uint16(1); id <= hosts; id++ {
		all = append(all, newHost(t, id, hosts))
	}
	steps, rounds := 3000, 3
	if os.Getenv("BALLAST_LONG") != "" {
		steps, rounds = 20000, 30
	}
	s := seed(t)
	for round := range rounds {
		chain := 1 + round%3
		config := replica.DefaultConfig(chain)
		config.CopyEntries, config.CopyWindow, config.DirectToHead, config.HopLimit = 3, 2, true, hopLimit // the data path always does
		f := &twins{TB: t, random: rand.New(rand.NewPCG(s, uint64(round))), config: &config, controller: replica.NewController(&config, replica.State{}),
			nodes: map[uint16]*twin{}, keys: map[ring.Key]connection{}, started: map[ring.Key]bool{}, counts: map[string]int{}}
		for range 12 {
			c := anyConnection(f.random.IntN(1 << 16))
			f.list = append(f.list, c)
		}
		var ids []uint16
		for _, h := range all {
			for server := uint16(1); server <= 5; server++ {
				h.setState(server, model.StateActive)
			}
			if len(ids) <= chain {
				f.start(h)
				ids = append(ids, h.id)
				continue
			}
			h.open(f.config)
			f.spare = append(f.spare, h)
		}
		f.change(replica.Change{Add: ids})
		few := func() bool {
			for _, kind := range []string{"kind 2", "kind 3", "forwarded", "slow", "added", "restarted", "taken off"} {
				if f.counts[kind] < 2 {
					return true
				}
			}
			return false
		}
		for n := 0; n < steps || few() && n < 30*steps; n++ { // what is drawn is chance
			f.step()
			if n%500 == 0 {
				f.same()
			}
		}
		f.same()
		t.Logf("chains of %d: %v", chain, f.counts)
		if few() {
			t.Errorf("chains of %d: too little of something", chain)
		}
	}
}

// leaving is a table in memory that leaves out what tables of the data path do.
type leaving struct {
	replica.Table
	view uint32
	old  map[ring.Key]bool
}

func (l *leaving) EachOf(view uint32, low, high ring.Key, do func(r replica.Record) bool) {
	if l.old == nil || l.view != view {
		l.view, l.old = view, map[ring.Key]bool{}
		l.Each(0, math.MaxUint64, func(r replica.Record) bool { l.old[r.Key] = true; return true })
	}
	l.Each(low, high, func(r replica.Record) bool { return !l.old[r.Key] || do(r) })
}

// unseen is the path of a machine that has no packets.
type unseen struct{}

func (unseen) Publish(replica.View) {}
func (unseen) Period(uint32)        {}

// publish makes packets go by a view.
func publish(path *lb.LB, v replica.View, hopLimit uint8) error {
	return path.PublishView(&lb.ReplicaView{Version: v.Version, HopLimit: hopLimit, List: v.List, Chains: v.Chains, Since: v.Since})
}

package replica

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// hosts are load balancers with their daemons, a controller with a store, and time.
type hosts struct {
	t       testing.TB
	now     time.Time
	random  *rand.Rand
	wanted  Wanted
	who     *Membership
	stored  Members
	hosts   map[string]*host
	cut     map[[2]string]bool // pairs that do not hear each other
	answers map[ring.Key]Owner
	waits   []Message
}

// host is one load balancer: its number is known to it from what controllers tell.
type host struct {
	name        string
	up          bool
	old         bool // an earlier version, which cannot do a share of a sync
	incarnation uint64
	number      uint16
	node        *Node
	done        []uint32
	said        time.Time // when controllers heard it last
	last        Report    // what it said then
}

func newHosts(t testing.TB, seed uint64, names ...string) *hosts {
	h := &hosts{t: t, now: time.Unix(1000, 0), random: rand.New(rand.NewPCG(seed, 0)), wanted: Wanted{On: true, Chain: 2}, hosts: map[string]*host{},
		cut: map[[2]string]bool{}, answers: map[ring.Key]Owner{}}
	h.who = NewMembership(Members{}, h.now)
	for _, name := range names {
		h.start(name)
	}
	return h
}

// start begins a load balancer that knows nothing.
func (h *hosts) start(name string) {
	h.hosts[name] = &host{name: name, up: true, incarnation: h.random.Uint64() | 1, said: h.now}
}

// hear reports whether a answers b's pings.
func (h *hosts) hear(a, b string) bool {
	return h.hosts[b].up && !h.cut[[2]string{min(a, b), max(a, b)}]
}

func (h *hosts) names() (names []string) {
	for name := range h.hosts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (h *hosts) report(o *host) Report {
	if o.up {
		o.said = h.now
		o.last = Report{Name: o.name, Address: netip.MustParseAddrPort("192.0.2." + strings.TrimPrefix(o.name, "lb") + ":7475"), Incarnation: o.incarnation, Done: o.done, Shares: !o.old}
		if o.node != nil {
			o.last.View, o.last.Synced = o.node.View()
		}
		for i := range h.stored.Nodes {
			other := &h.stored.Nodes[i]
			if other.Name == o.name {
				continue
			}
			if h.hosts[other.Name] != nil && h.hear(o.name, other.Name) {
				o.last.Heard = append(o.last.Heard, other.Number)
			} else {
				o.last.Silent = append(o.last.Silent, other.Number)
			}
		}
	}
	r := o.last
	r.Age = h.now.Sub(o.said)
	return r
}

// tick is 200 ms: what nodes say, what follows, what they are told, and all messages between them.
func (h *hosts) tick() {
	h.t.Helper()
	h.now = h.now.Add(200 * time.Millisecond)
	var reports []Report
	for _, name := range h.names() {
		if o := h.hosts[name]; o.up || o.last.Name != "" {
			reports = append(reports, h.report(o))
		}
	}
	if h.who.Step(h.now, h.wanted, reports) {
		h.store()
	}
	starts := h.who.Starts()
	for _, name := range h.names() {
		if o := h.hosts[name]; o.up {
			h.tell(o, starts)
		}
	}
	h.deliver()
}

// store writes the document and reads it again, as controllers do.
func (h *hosts) store() {
	h.t.Helper()
	text, err := json.Marshal(h.who.Members)
	if err == nil {
		h.stored = Members{}
		err = json.Unmarshal(text, &h.stored)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// tell tells what is stored: who has lost its entries waits until that is known.
func (h *hosts) tell(o *host, starts map[uint16][]ring.Sync) {
	me := h.stored.Node(o.name)
	if me == nil || h.stored.Ring.Version == 0 {
		return
	}
	if o.node == nil || o.number != me.Number {
		config := DefaultConfig(h.stored.Chain)
		o.node, o.number = NewNode(me.Number, &config), me.Number
	}
	list := h.stored.Current()
	if _, on := list.Find(me.Number); on && me.Incarnation != o.incarnation {
		return
	}
	s := &h.stored.Ring
	o.node.config.Chain = h.stored.Chain
	h.take(o, o.node.Receive(Message{Kind: NewView, To: o.number, View: s.Version, Peers: &Peers{List: list, Since: s.Since, Synced: s.Synced, Cancelled: s.Cancelled}}))
	for _, sync := range starts[o.number] {
		if o.old && sync.To != (ring.Places{}) {
			continue // it does not know such a message
		}
		h.take(o, o.node.Receive(Message{Kind: StartSync, To: o.number, View: s.Version, Sync: sync.ID, Range: sync.Range, Places: sync.To}))
	}
	h.take(o, o.node.Retry())
}

func (h *hosts) take(o *host, actions []Action) {
	h.t.Helper()
	for _, action := range actions {
		switch m := action.Message; {
		case action.Kind == Forward:
			if first, ok := h.answers[m.Key]; ok && first != m.Owner {
				h.t.Fatalf("connection %#x was %d's, now %s says %d", m.Key, first, o.name, m.Owner)
			}
			h.answers[m.Key] = m.Owner
		case m.Kind == SyncDone:
			o.done = append(o.done, m.Sync)
		case m.To != None:
			h.waits = append(h.waits, m)
		}
	}
}

func (h *hosts) byNumber(number uint16) *host {
	for _, o := range h.hosts {
		if o.number == number {
			return o
		}
	}
	return nil
}

func (h *hosts) deliver() {
	h.t.Helper()
	for len(h.waits) > 0 {
		m := h.waits[0]
		h.waits = h.waits[1:]
		from, to := h.byNumber(m.From), h.byNumber(m.To)
		if from == nil || to == nil || to.node == nil || !h.hear(from.name, to.name) || !from.up {
			continue
		}
		h.take(to, to.node.Receive(m))
	}
}

// packet comes to some load balancer that lives. A connection is proposed another owner each time.
func (h *hosts) packet() {
	h.t.Helper()
	names := slices.DeleteFunc(h.names(), func(name string) bool { o := h.hosts[name]; return !o.up || o.node == nil })
	if len(names) == 0 {
		return
	}
	o := h.hosts[names[h.random.IntN(len(names))]]
	key := ring.Key(h.random.Uint64N(500)) * 0x9e3779b97f4a7c15
	h.take(o, o.node.Packet(key, Owner(1+h.random.IntN(1000)), h.random.IntN(2) == 0))
	h.deliver()
}

func (h *hosts) on() (names []string) {
	for _, member := range h.stored.Current() {
		for i := range h.stored.Nodes {
			if h.stored.Nodes[i].Number == member.Node {
				names = append(names, h.stored.Nodes[i].Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// await ticks until a ring of these is synced, at most for some time.
func (h *hosts) await(within time.Duration, names ...string) {
	h.t.Helper()
	for end := h.now.Add(within); ; h.tick() {
		if h.who.Phase() == Synced && slices.Equal(h.on(), names) {
			return
		}
		if h.now.After(end) {
			h.t.Fatalf("after %v on the ring: %v, phase %d, want %v; %v", within, h.on(), h.who.Phase(), names, h.who.Blocked())
		}
	}
}

func (h *hosts) stays(during time.Duration, names ...string) {
	h.t.Helper()
	for end := h.now.Add(during); h.now.Before(end); h.tick() {
		if !slices.Equal(h.on(), names) {
			h.t.Fatalf("on the ring: %v, want %v", h.on(), names)
		}
	}
}

func TestWhoFailsLeavesTheRingAndComesBack(t *testing.T) {
	h := newHosts(t, 1, "lb1", "lb2", "lb3", "lb4")
	h.await(3*time.Second, "lb1", "lb2", "lb3", "lb4")
	h.hosts["lb2"].up = false
	h.tick()
	h.tick() // at once: detection is what takes time
	if on := h.on(); !slices.Equal(on, []string{"lb1", "lb3", "lb4"}) {
		t.Fatal(on)
	}
	h.await(time.Second, "lb1", "lb3", "lb4")
	h.start("lb2")
	h.stays(4*time.Second, "lb1", "lb3", "lb4")
	h.await(3*time.Second, "lb1", "lb2", "lb3", "lb4")
	life, _ := h.stored.Current().Find(h.stored.Node("lb2").Number)
	h.start("lb2") // it was away for so short that nobody has missed it, but has lost its entries
	h.tick()
	h.await(time.Second, "lb1", "lb2", "lb3", "lb4")
	if now, _ := h.stored.Current().Find(h.stored.Node("lb2").Number); now.Life == life.Life {
		t.Error("it is still in the life before")
	}
}

func TestAnotherControllerTakesNobodyBackAtOnce(t *testing.T) {
	h := newHosts(t, 1, "lb1", "lb2", "lb3", "lb4")
	h.await(3*time.Second, "lb1", "lb2", "lb3", "lb4")
	h.hosts["lb2"].up = false
	h.await(time.Second, "lb1", "lb3", "lb4")
	h.who = NewMembership(h.stored, h.now)
	h.start("lb2")
	h.start("lb4") // which would be one too many
	h.stays(4*time.Second, "lb1", "lb3", "lb4")
	h.await(3*time.Second, "lb1", "lb2", "lb3", "lb4")
	if h.stored.Ring.Lost != 0 {
		t.Errorf("%d ranges were lost", h.stored.Ring.Lost)
	}
}

func TestAFirstRingWaitsForEnoughLoadBalancers(t *testing.T) {
	h := newHosts(t, 1, "lb1", "lb2")
	h.stays(5 * time.Second)
	if blocked := h.who.Blocked(); len(blocked) != 1 || !strings.Contains(blocked[0], "chains of 2 need 3") {
		t.Error(blocked)
	}
	h.start("lb3")
	h.await(3*time.Second, "lb1", "lb2", "lb3")
	h.start("lb4")
	h.await(3*time.Second, "lb1", "lb2", "lb3", "lb4")
}

func TestNobodyIsTakenOffByFewOrByHalf(t *testing.T) {
	h := newHosts(t, 1, "lb1", "lb2", "lb3", "lb4")
	all := []string{"lb1", "lb2", "lb3", "lb4"}
	h.await(3*time.Second, all...)
	for _, pair := range [][2]string{{"lb1", "lb2"}, {"lb1", "lb3"}, {"lb1", "lb4"}} { // lb1 hears nobody: that is its fault
		h.cut[pair] = true
	}
	h.await(time.Second, "lb2", "lb3", "lb4")
	clear(h.cut)
	h.await(7*time.Second, all...)
	h.cut[[2]string{"lb1", "lb2"}] = true // either may be at fault
	h.stays(20*time.Second, all...)
	for _, pair := range [][2]string{{"lb1", "lb3"}, {"lb1", "lb4"}, {"lb2", "lb3"}, {"lb2", "lb4"}} {
		h.cut[pair] = true
	}
	delete(h.cut, [2]string{"lb1", "lb2"})
	h.stays(20*time.Second, all...) // halves
	h.cut[[2]string{"lb1", "lb2"}], h.cut[[2]string{"lb3", "lb4"}] = true, true
	h.stays(20*time.Second, all...) // nobody hears anybody
}

func TestADrainedLoadBalancerIsOffTheRing(t *testing.T) {
	h := newHosts(t, 1, "lb1", "lb2", "lb3", "lb4")
	h.await(3*time.Second, "lb1", "lb2", "lb3", "lb4")
	drain := func(names ...string) {
		h.stored.Drained = names
		h.who.Reload(h.stored)
	}
	drain("lb3")
	h.await(time.Second, "lb1", "lb2", "lb4")
	drain("lb3", "lb1")
	h.stays(3*time.Second, "lb1", "lb2", "lb4")
	if blocked := h.who.Blocked(); len(blocked) != 1 || !strings.Contains(blocked[0], "lb1 stays where it is: chains of 2 need 3") {
		t.Error(blocked)
	}
	drain("lb1")
	h.await(5*time.Second, "lb2", "lb3", "lb4")
	drain()
	h.await(5*time.Second, "lb1", "lb2", "lb3", "lb4")
}

func TestAStoreThatWasRestoredOrEmptiedStartsTheRingAgain(t *testing.T) {
	h := newHosts(t, 1, "lb1", "lb2", "lb3", "lb4")
	h.await(3*time.Second, "lb1", "lb2", "lb3", "lb4")
	copied := h.stored
	h.hosts["lb4"].up = false
	h.await(3*time.Second, "lb1", "lb2", "lb3")
	h.start("lb4")
	h.await(10*time.Second, "lb1", "lb2", "lb3", "lb4")
	newest := h.stored.Ring.Version
	for _, restored := range []Members{copied, {}} {
		h.stored = restored
		h.who = NewMembership(restored, h.now)
		h.tick()
		h.await(5*time.Second, "lb1", "lb2", "lb3", "lb4")
		if h.stored.Ring.Version <= newest {
			t.Fatalf("version %d, nodes had %d", h.stored.Ring.Version, newest)
		}
		for _, o := range h.hosts {
			if view, _ := o.node.View(); view != h.stored.Ring.Version {
				t.Errorf("%s has version %d, not %d", o.name, view, h.stored.Ring.Version)
			}
		}
		newest = h.stored.Ring.Version
	}
}

func TestChainsOfAnotherLengthStartTheRingAgain(t *testing.T) {
	h := newHosts(t, 1, "lb1", "lb2", "lb3", "lb4")
	h.await(3*time.Second, "lb1", "lb2", "lb3", "lb4")
	h.wanted.Chain = 4
	h.stays(2*time.Second, "lb1", "lb2", "lb3", "lb4")
	if blocked := h.who.Blocked(); h.stored.Chain != 2 || len(blocked) != 1 || !strings.Contains(blocked[0], "chains of 4 need 5") {
		t.Error(h.stored.Chain, blocked)
	}
	h.wanted.Chain = 3
	h.tick()
	h.await(2*time.Second, "lb1", "lb2", "lb3", "lb4")
	if h.stored.Chain != 3 || len(h.stored.Ring.Lists) != 1 {
		t.Errorf("%+v", h.stored)
	}
}

func TestMoreLoadBalancersThanARingHasPlacesFor(t *testing.T) {
	var names []string
	for i := range NodesMax + 2 {
		names = append(names, fmt.Sprintf("lb%d", i+1))
	}
	h := newHosts(t, 1, names...)
	for range 1000 {
		if h.tick(); len(h.on()) == NodesMax {
			break
		}
	}
	if len(h.on()) != NodesMax || len(h.who.Blocked()) != 2 {
		t.Fatal(len(h.on()), h.who.Blocked())
	}
	gone := h.on()[5]
	delete(h.hosts, gone) // nobody remembers it
	for range 100 {
		h.tick()
	}
	if len(h.on()) != NodesMax || slices.Contains(h.on(), gone) || len(h.who.Blocked()) != 1 {
		t.Fatal(len(h.on()), h.who.Blocked())
	}
}

func TestAnAddressOfAnotherFamilyIsRefused(t *testing.T) {
	h := newHosts(t, 1, "lb1", "lb2", "lb3")
	h.await(3*time.Second, "lb1", "lb2", "lb3")
	h.who.Step(h.now, h.wanted, []Report{{Name: "lb9", Address: netip.MustParseAddrPort("[2001:db8::1]:7475"), Incarnation: 1}})
	if blocked := h.who.Blocked(); h.who.Members.Node("lb9") != nil || !slices.ContainsFunc(blocked, func(why string) bool { return strings.Contains(why, "one of IPv4 and IPv6") }) {
		t.Error(blocked)
	}
}

// One at a time fails, is drained or comes back, while packets come everywhere and controllers change: every connection keeps its owner.
//
// Promise: With `affinity: replicated` (UDP) or `fallback: replicated`, connections are kept when load balancers
// come, go and fail.
// Also held by TestConnectionsWithoutCookiesSurviveTheLossOfLoadBalancers.
func TestWhateverHappensToOneLoadBalancerNoConnectionMoves(t *testing.T) {
	seed := rand.Uint64()
	for chain := 2; chain <= 3; chain++ {
		t.Run(fmt.Sprintf("L=%d,seed=%d", chain, seed), func(t *testing.T) { loseAndMove(t, chain, seed) })
	}
}

// loseAndMove lets things happen to load balancers, some of which run an earlier version.
func loseAndMove(t *testing.T, chain int, seed uint64) {
	all := []string{"lb1", "lb2", "lb3", "lb4", "lb5", "lb6"}[:chain+3]
	h := newHosts(t, seed, all...)
	h.wanted.Chain = chain
	h.await(3*time.Second, all...)
	some := func() string { return all[h.random.IntN(len(all))] }
	var down string
	for range 150 {
		switch event := h.random.IntN(4); {
		case down != "":
			h.start(down)
			down = ""
		case event == 0:
			down = some()
			h.hosts[down].up = false
		case event == 1:
			h.stored.Drained = nil
			if h.random.IntN(3) > 0 {
				h.stored.Drained = []string{some()}
			}
			h.who.Reload(h.stored)
		case event == 2:
			h.who = NewMembership(h.stored, h.now)
		case event == 3:
			name := some()
			h.start(name)
			h.hosts[name].old = h.random.IntN(3) == 0
		}
		settled := false
		for tick := 0; !settled; tick++ {
			for range 20 {
				h.packet()
			}
			h.tick()
			want := slices.DeleteFunc(h.names(), func(name string) bool { return name == down || slices.Contains(h.stored.Drained, name) })
			settled = tick > 2 && h.who.Phase() == Synced && slices.Equal(h.on(), want)
			if tick > int((waitMax+time.Minute)/(200*time.Millisecond)) {
				t.Fatalf("the ring does not settle: %v, %v, phase %d", h.on(), h.who.Blocked(), h.who.Phase())
			}
		}
	}
	if len(h.answers) < 400 {
		t.Errorf("only %d connections", len(h.answers))
	}
}

package segment

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

const step = 5 * time.Millisecond

// host is a load balancer on a simulated segment.
type host struct {
	name    string
	mac     MAC
	machine *Machine // nil: its daemon is not there
	up      bool     // its data path answers
	rows    map[netip.Addr]bool
	able    map[netip.Addr]string
	part    int // of the segment; hosts of different parts do not hear each other
}

// world is a segment with hosts, at a time of its own.
type world struct {
	*testing.T
	now    time.Time
	hosts  []*host
	vips   []netip.Addr
	loss   float64
	rand   *rand.Rand
	moves  int
	flying []func() // frames
	seen   []Action

	exclusive bool // nobody may be lost, and no VIP may have two owners when a frame has had time to arrive
}

func newWorld(t *testing.T, hosts, vips int) *world {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := &world{T: t, now: time.Unix(1e9, 0), rand: rand.New(rand.NewPCG(seed, 1))}
	for i := range vips {
		w.vips = append(w.vips, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}))
	}
	for i := range hosts {
		h := &host{name: fmt.Sprintf("lb%d", i+1), mac: MAC{2, 0, 0, 0, 0, byte(i + 1)}, up: true, rows: map[netip.Addr]bool{}, able: map[netip.Addr]string{}}
		for _, vip := range w.vips {
			h.able[vip] = ""
		}
		w.hosts = append(w.hosts, h)
		w.start(h, nil)
	}
	return w
}

// start starts a daemon, which finds what its data path answers for.
func (w *world) start(h *host, peers map[string]MAC) {
	h.machine = New(h.name, h.mac, slices.Collect(maps.Keys(h.rows)), peers, w.now)
	w.do(h, h.machine.SetAble(w.now, h.able))
}

func (w *world) arrives() bool { return w.rand.Float64() >= w.loss }

func (w *world) others(h *host) (list []*host) {
	for _, other := range w.hosts {
		if other != h && other.part == h.part {
			list = append(list, other)
		}
	}
	return list
}

// send has a frame arrive at another one's daemon, in the order of sending, if it is not lost.
func (w *world) send(to *host, frame func(m *Machine) []Action) {
	if w.arrives() {
		w.flying = append(w.flying, func() {
			if to.machine != nil {
				w.do(to, frame(to.machine))
				w.step(to)
			}
		})
	}
}

func (w *world) do(h *host, actions []Action) {
	for _, a := range actions {
		w.seen = append(w.seen, a)
		switch a.Kind {
		case Take:
			h.rows[a.VIP] = true
			w.moves++
		case Leave:
			delete(h.rows, a.VIP)
		case Probe:
			for _, other := range w.others(h) {
				if other.up && other.rows[a.VIP] && (a.To == (MAC{}) || a.To == other.mac) && w.arrives() {
					w.send(h, func(m *Machine) []Action { return m.Answered(w.now, a.VIP, other.mac) })
				}
			}
		case Announce:
			for _, other := range w.others(h) {
				w.send(other, func(m *Machine) []Action { return m.Answered(w.now, a.VIP, h.mac) })
			}
		case Advertise:
			for _, advert := range h.machine.Adverts(w.now, EntriesMax) {
				for _, other := range w.others(h) {
					w.send(other, func(m *Machine) []Action { return m.Heard(w.now, &advert) })
				}
			}
		}
	}
}

func (w *world) step(h *host) {
	actions, next := h.machine.Step(w.now)
	w.do(h, actions)
	if next.Before(w.now) && len(actions) == 0 {
		w.Fatalf("%s wants to be called at %v, which was", h.name, next)
	}
}

func (w *world) tick() {
	w.now = w.now.Add(step)
	for _, h := range w.hosts {
		if h.machine != nil {
			w.step(h)
		}
	}
	for len(w.flying) > 0 {
		next := w.flying[0]
		w.flying = w.flying[1:]
		next()
	}
	for _, vip := range w.vips {
		if owners := w.owners(vip, 0); w.exclusive && len(owners) > 1 {
			w.Fatalf("%s is owned by %v", vip, owners)
		}
	}
}

// owners are those that answer for a VIP in a part of the segment.
func (w *world) owners(vip netip.Addr, part int) (names []string) {
	for _, h := range w.hosts {
		if h.up && h.part == part && h.rows[vip] {
			names = append(names, h.name)
		}
	}
	return names
}

// settled: each VIP has one owner in each part that has somebody who can own it.
func (w *world) settled() error {
	parts := map[int]bool{}
	for _, h := range w.hosts {
		parts[h.part] = true
	}
	for part := range parts {
		for _, vip := range w.vips {
			able := slices.ContainsFunc(w.hosts, func(h *host) bool { return h.part == part && h.up && h.machine != nil && h.able[vip] == "" })
			if owners := w.owners(vip, part); len(owners) > 1 || able && len(owners) == 0 {
				return fmt.Errorf("part %d: %s is owned by %v", part, vip, owners)
			}
		}
	}
	return nil
}

// await lets time pass until all is settled, at most so long, and returns how long it took.
func (w *world) await(limit time.Duration) time.Duration {
	w.Helper()
	began := w.now
	for w.settled() != nil {
		if w.now.Sub(began) > limit {
			w.Fatalf("after %v: %v", limit, w.settled())
		}
		w.tick()
	}
	return w.now.Sub(began)
}

// pass lets time pass in which nothing may be other than settled.
func (w *world) pass(long time.Duration) {
	w.Helper()
	for end := w.now.Add(long); w.now.Before(end); {
		w.tick()
		if err := w.settled(); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *world) kill(h *host) { h.up, h.machine, h.rows = false, nil, map[netip.Addr]bool{} }

func TestADeadOwnersVIPsMoveWithinASecond(t *testing.T) {
	w := newWorld(t, 3, 40)
	w.await(2 * time.Second)
	w.exclusive = true
	w.pass(30 * time.Second)
	for range 10 {
		h := w.hosts[w.rand.IntN(3)]
		w.kill(h)
		w.await(time.Second)
		w.pass(3 * time.Second)
		h.up = true
		w.start(h, nil)
		w.pass(30 * time.Second)
		for _, h := range w.hosts { // nobody has all
			if n := len(h.rows); n < 40/3-1 || n > 40/3+2 {
				t.Errorf("%s owns %d of 40", h.name, n)
			}
		}
	}
}

func TestASingleVIPStaysWhereItIs(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.await(2 * time.Second)
	first := w.owners(w.vips[0], 0)[0]
	for range 10 {
		other := w.hosts[0]
		if other.name == first {
			other = w.hosts[1]
		}
		w.kill(other)
		w.pass(3 * time.Second)
		other.up = true
		w.start(other, nil)
		w.pass(30 * time.Second)
	}
	if w.moves != 1 {
		t.Errorf("it moved %d times", w.moves-1)
	}
}

func TestADaemonThatIsGoneLosesNothing(t *testing.T) {
	w := newWorld(t, 3, 12)
	w.await(2 * time.Second)
	w.pass(20 * time.Second)
	moved := w.moves
	for range 10 {
		h := w.hosts[w.rand.IntN(3)]
		peers := h.machine.Kept()
		h.machine = nil
		w.pass(10 * time.Second)
		w.start(h, peers)
		w.pass(5 * time.Second)
	}
	if w.moves != moved {
		t.Errorf("%d VIPs moved", w.moves-moved)
	}
}

func TestWhoCannotCarryAVIPLeavesItAtOnce(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.await(2 * time.Second)
	w.pass(5 * time.Second)
	for range 10 {
		vip := w.vips[0]
		for _, h := range w.hosts {
			if h.rows[vip] {
				h.able[vip] = "no way is known to any server"
				w.do(h, h.machine.SetAble(w.now, h.able))
			}
		}
		if took := w.await(time.Second); took > 2*step {
			t.Errorf("it moved after %v", took)
		}
		for _, h := range w.hosts {
			h.able[vip] = ""
			w.do(h, h.machine.SetAble(w.now, h.able))
		}
		w.pass(5 * time.Second)
	}
	for _, h := range w.hosts { // nobody can
		h.able[w.vips[0]] = "no server"
		w.do(h, h.machine.SetAble(w.now, h.able))
	}
	for range 1000 {
		w.tick()
		if owners := w.owners(w.vips[0], 0); len(owners) > 0 {
			t.Fatalf("owned by %v", owners)
		}
	}
}

func TestHalvesOfASegmentHaveOwnersEachAndOneAfterwards(t *testing.T) {
	w := newWorld(t, 4, 10)
	w.await(2 * time.Second)
	for range 10 {
		for _, h := range w.hosts {
			h.part = w.rand.IntN(2)
		}
		w.await(time.Second)
		w.pass(10 * time.Second)
		for _, h := range w.hosts {
			h.part = 0
		}
		w.await(2 * time.Second)
		w.pass(5 * time.Second)
	}
}

// TestChaos: whatever happens, each VIP has one owner soon after it ends, and nothing moves then.
func TestChaos(t *testing.T) {
	for range 12 {
		w := newWorld(t, 2+rand.IntN(4), 1+rand.IntN(20))
		w.loss = 0.05
		for range 40 {
			h := w.hosts[w.rand.IntN(len(w.hosts))]
			switch w.rand.IntN(6) {
			case 0:
				w.kill(h)
			case 1:
				if h.machine != nil && w.rand.IntN(2) == 0 {
					h.machine = nil
				}
			case 2:
				if h.machine == nil {
					h.up = true
					w.start(h, nil) // it has forgotten its peers
				}
			case 3:
				h.part = w.rand.IntN(2)
			case 4:
				if h.machine != nil {
					h.able[w.vips[w.rand.IntN(len(w.vips))]] = []string{"", "no server"}[w.rand.IntN(2)]
					w.do(h, h.machine.SetAble(w.now, h.able))
				}
			}
			for range w.rand.IntN(400) {
				w.tick()
			}
		}
		w.loss = 0
		for _, h := range w.hosts {
			if h.part = 0; h.machine == nil {
				h.up = true
				w.start(h, nil)
			}
		}
		for range int(7 * time.Second / step) { // look again whether another one answers
			w.tick()
		}
		w.pass(20 * time.Second)
	}
}

func TestForeignHostsMoveNothing(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.await(2 * time.Second)
	w.pass(3 * time.Second)
	foreign, moved := MAC{6, 6, 6, 6, 6, 6}, w.moves
	for range 1000 {
		w.tick()
		for _, h := range w.hosts {
			w.do(h, h.machine.Answered(w.now, w.vips[0], foreign))
		}
		if err := w.settled(); err != nil || w.moves != moved {
			t.Fatalf("%d VIPs moved, %v", w.moves-moved, err)
		}
	}
	for _, h := range w.hosts {
		if s := h.machine.Status(w.now)[0]; s.Foreign != foreign {
			t.Errorf("%s does not report it: %+v", h.name, s)
		}
	}
	late := New("late", MAC{2, 9, 9, 9, 9, 9}, nil, nil, w.now)
	late.SetAble(w.now, map[netip.Addr]string{w.vips[0]: ""})
	late.Answered(w.now, w.vips[0], w.hosts[0].mac)
	if s := late.Status(w.now)[0]; s.Foreign != w.hosts[0].mac {
		t.Errorf("before the advertisement: %+v", s)
	}
	for _, advert := range w.hosts[0].machine.Adverts(w.now, EntriesMax) {
		late.Heard(w.now, &advert)
	}
	if s := late.Status(w.now)[0]; s.Foreign != (MAC{}) {
		t.Errorf("a load balancer that answered before it was known is reported: %+v", s)
	}
	w.seen = nil
	for range int(defend / step) {
		w.tick()
		for _, h := range w.hosts {
			w.do(h, h.machine.Answered(w.now, w.vips[0], foreign))
		}
	}
	if n := len(slices.DeleteFunc(w.seen, func(a Action) bool { return a.Kind != Announce })); n > 1 {
		t.Errorf("%d announcements against it in %v", n, defend)
	}
}

// TestAdvertisementsSentAgainMoveNothing: what a load balancer said once is no claim, nor an inheritance, later on.
func TestAdvertisementsSentAgainMoveNothing(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.await(2 * time.Second)
	vip := w.vips[0]
	a, b := w.hosts[0], w.hosts[1]
	if !a.rows[vip] {
		a, b = b, a
	}
	w.pass(2 * time.Second)
	a.able[vip] = "no server"
	w.do(a, a.machine.SetAble(w.now, a.able))
	left := a.machine.Adverts(w.now, EntriesMax)
	for i := range left {
		w.do(b, b.machine.Heard(w.now, &left[i]))
	}
	a.able[vip] = ""
	w.do(a, a.machine.SetAble(w.now, a.able))
	w.pass(2 * time.Second)
	b.able[vip] = "no server"
	w.do(b, b.machine.SetAble(w.now, b.able))
	w.await(time.Second)
	b.able[vip] = ""
	w.do(b, b.machine.SetAble(w.now, b.able))
	w.pass(2 * time.Second)
	if !a.rows[vip] {
		t.Fatal("it is not where this test has moved it")
	}
	moved := w.moves
	for i := range left {
		w.do(b, b.machine.Heard(w.now, &left[i]))
	}
	w.pass(time.Second)
	if !a.rows[vip] || w.moves != moved {
		t.Error("it moved by what was said before")
	}
}

// TestWhatWasHandedOverWhileTheDeviceWasAwayIsNotSaidLater: the VIP is elsewhere by then.
func TestWhatWasHandedOverWhileTheDeviceWasAwayIsNotSaidLater(t *testing.T) {
	w := newWorld(t, 3, 1)
	w.await(2 * time.Second)
	w.pass(2 * time.Second)
	vip := w.vips[0]
	i := slices.IndexFunc(w.hosts, func(h *host) bool { return h.rows[vip] })
	h := w.hosts[i]
	for _, a := range h.machine.SetAble(w.now, map[netip.Addr]string{vip: "interface eth0 is down"}) {
		if a.Kind == Leave {
			delete(h.rows, vip)
		}
	}
	if h.machine.handed[vip] == "" {
		t.Fatal("nobody inherits it")
	}
	h.machine.SetMAC(h.mac, w.now)
	for _, advert := range h.machine.Adverts(w.now, EntriesMax) {
		if slices.ContainsFunc(advert.Entries, func(e Entry) bool { return e.Handed }) {
			t.Errorf("said when the device is there again: %+v", advert)
		}
	}
}

// TestThousandsOfVIPsAreAskedForInPieces: answers to all at once would not fit into a socket's buffer.
func TestThousandsOfVIPsAreAskedForInPieces(t *testing.T) {
	m := New("lb1", MAC{2}, nil, nil, now)
	able := map[netip.Addr]string{}
	for i := range 4000 {
		able[netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})] = ""
	}
	m.SetAble(now, able)
	asked := map[netip.Addr]bool{}
	for at := now; len(asked) < len(able); {
		actions, next := m.Step(at)
		if len(actions) > actionsMax+1 || !next.After(at) {
			t.Fatalf("%d actions, and the next at once: %t", len(actions), !next.After(at))
		}
		for _, a := range actions {
			if a.Kind == Probe {
				asked[a.VIP] = true
				m.Heard(at, &Advert{Name: "lb2", MAC: MAC{3}, Sent: at.UnixNano()})
				m.Answered(at, a.VIP, MAC{3})
			}
		}
		if at = next; at.Sub(now) > time.Second {
			t.Fatalf("%d of %d are asked for in a second", len(asked), len(able))
		}
	}
}

func TestAPeerThatSpeaksIsNotForgotten(t *testing.T) {
	m := New("lb1", MAC{2}, nil, nil, now)
	m.Heard(now, &Advert{Name: "lb2", MAC: MAC{3}, Sent: now.UnixNano()})
	none := func(string) bool { return false }
	if m.Forget(now, none); len(m.Peers()) != 1 {
		t.Error("forgotten while it speaks")
	}
	if m.Forget(now.Add(stale), none); len(m.Peers()) != 0 {
		t.Error("it is known for ever")
	}
}

package segment

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

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
			switch w.rand.IntN(7) {
			case 6:
				h.hung = h.machine != nil && !h.hung
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
				if w.runs(h) {
					h.able[w.vips[w.rand.IntN(len(w.vips))]] = []string{"", "no server"}[w.rand.IntN(2)]
					w.do(h, h.machine.SetAble(w.now, h.able))
				}
			}
			for range w.rand.IntN(400) {
				w.tick()
			}
			if w.rand.IntN(8) == 0 {
				for range int(Lease / step) {
					w.tick()
				}
			}
		}
		w.loss = 0
		for _, h := range w.hosts {
			if h.part, h.hung = 0, false; h.machine == nil {
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
	late := New("late", MAC{2, 9, 9, 9, 9, 9}, nil, false, nil, w.now)
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
	m := New("lb1", MAC{2}, nil, false, nil, now)
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
	m := New("lb1", MAC{2}, nil, false, nil, now)
	m.Heard(now, &Advert{Name: "lb2", MAC: MAC{3}, Sent: now.UnixNano()})
	none := func(string) bool { return false }
	if m.Forget(now, none); len(m.Peers()) != 1 {
		t.Error("forgotten while it speaks")
	}
	if m.Forget(now.Add(stale), none); len(m.Peers()) != 0 {
		t.Error("it is known for ever")
	}
}

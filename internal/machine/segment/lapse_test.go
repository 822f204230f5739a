package segment

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// away takes a daemon away: it has ended, or it hangs.
func (w *world) away(h *host, hangs bool) (back func()) {
	if hangs {
		h.hung = true
		return func() { h.hung = false }
	}
	peers := h.machine.Kept()
	h.machine = nil
	return func() { w.start(h, peers) }
}

func (w *world) owner() *host {
	w.Helper()
	for _, h := range w.hosts {
		if h.rows[w.vips[0]] {
			return h
		}
	}
	w.Fatal("nobody owns it")
	return nil
}

// TestAVIPWhoseDaemonIsAwayForLongMoves, once nothing but the lease kept it, and never has two owners.
func TestAVIPWhoseDaemonIsAwayForLongMoves(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		w := newWorld(t, 3, 1)
		w.await(2 * time.Second)
		w.pass(5 * time.Second)
		w.exclusive = true
		for range 5 {
			h := w.owner()
			back := w.away(h, hangs)
			w.pass(Lease - time.Second)
			if h.rows[w.vips[0]] != true {
				t.Fatal("it moved within the lease")
			}
			for range int((2 * time.Second) / step) {
				w.tick()
				if w.settled() != nil && len(w.owners(w.vips[0], 0)) == 0 {
					t.Fatal("nobody answers hosts meanwhile")
				}
			}
			if _, still := h.rows[w.vips[0]]; still {
				t.Fatalf("hangs %t: it has not moved after the lease: %v", hangs, w.owners(w.vips[0], 0))
			}
			moved := w.moves
			back()
			w.pass(10 * time.Second)
			if w.moves != moved {
				t.Errorf("hangs %t: it moved when the daemon was back", hangs)
			}
		}
	}
}

// TestAVIPThatNobodyElseCouldCarryStays: alone, or beside one that has no server, or where all daemons are away.
func TestAVIPThatNobodyElseCouldCarryStays(t *testing.T) {
	for name, change := range map[string]func(w *world, other *host){
		"alone": func(w *world, other *host) { w.kill(other) },
		"beside one that could not carry it": func(w *world, other *host) {
			other.able[w.vips[0]] = "no server"
			w.do(other, other.machine.SetAble(w.now, other.able))
		},
		"all away": func(w *world, other *host) { other.machine = nil },
	} {
		for _, hangs := range []bool{false, true} {
			w := newWorld(t, 2, 1)
			w.await(2 * time.Second)
			w.pass(5 * time.Second)
			h := w.owner()
			other := w.hosts[(slices.Index(w.hosts, h)+1)%2]
			change(w, other)
			back := w.away(h, hangs)
			for range int(10 * Lease / step) {
				w.tick()
				if owners := w.owners(w.vips[0], 0); !slices.Equal(owners, []string{h.name}) {
					t.Fatalf("%s: owned by %v", name, owners)
				}
			}
			back()
			w.pass(10 * time.Second)
			if !h.rows[w.vips[0]] {
				t.Errorf("%s: hosts are answered, but it is not owned again", name)
			}
		}
	}
}

// TestWhoHoldsAVIPLeavesItToWhoSaysThatItHasTakenIt, by an advertisement or an answer; a host that is no load balancer changes nothing.
func TestWhoHoldsAVIPLeavesItToWhoSaysThatItHasTakenIt(t *testing.T) {
	vip := netip.MustParseAddr("198.51.100.10")
	for name, tell := range map[string]func(m *Machine) []Action{
		"advertisement": func(m *Machine) []Action {
			return m.Heard(now, &Advert{Name: "lb2", MAC: MAC{3}, Sent: now.UnixNano(), Entries: []Entry{{VIP: vip, Able: true, Owned: true}}})
		},
		"answer": func(m *Machine) []Action { return m.Answered(now, vip, MAC{3}) },
	} {
		m := New("lb1", MAC{2}, []netip.Addr{vip}, true, map[string]MAC{"lb2": {3}}, now)
		if s := m.Status(now)[0]; !s.Held || s.Owned || s.Owner != "" {
			t.Errorf("%s: %+v", name, s)
		}
		if actions := m.Answered(now, vip, MAC{9}); len(actions) != 0 {
			t.Errorf("%s: a host that is no load balancer: %+v", name, actions)
		}
		if actions := tell(m); len(actions) != 1 || actions[0].Kind != Leave || m.Status(now)[0].Held {
			t.Errorf("%s: %+v, %+v", name, actions, m.Status(now))
		}
	}
}

// TestWhatWasSaidBeforeALapseIsNoInheritance: nobody is heard, and nothing is handed over, until it is said again.
func TestWhatWasSaidBeforeALapseIsNoInheritance(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.await(2 * time.Second)
	w.pass(5 * time.Second)
	h := w.owner()
	if s := h.machine.Status(w.now)[0]; s.Heir == "" {
		t.Errorf("nobody could take it: %+v", s)
	}
	actions := h.machine.Lapse(w.now, func(netip.Addr) bool { return false })
	if len(actions) != 1 || actions[0].Kind != Leave {
		t.Errorf("what the data path has left: %+v", actions)
	}
	if heir := h.machine.heir(w.now, w.vips[0]); heir != "" {
		t.Errorf("%s is an heir, and was not heard since", heir)
	}
	if actions, _ := h.machine.Step(w.now.Add(settle - 1)); slices.ContainsFunc(actions, func(a Action) bool { return a.Kind == Take }) {
		t.Error("taken before the others were asked")
	}
}

package segment

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// predecessor is the host that has a VIP outside of the fleet.
var predecessor = MAC{6, 6, 6, 6, 6, 6}

// newSegment has load balancers that have never had the VIP, which another host answers for.
func newSegment(t *testing.T, hosts int) (w *world, vip netip.Addr) {
	w = newWorld(t, 0, 1)
	vip = w.vips[0]
	w.foreign = map[netip.Addr]MAC{vip: predecessor}
	for i := range hosts {
		h := &host{name: []string{"lb1", "lb2", "lb3"}[i], mac: MAC{2, 0, 0, 0, 0, byte(i + 1)}, up: true, rows: map[netip.Addr]bool{},
			able: map[netip.Addr]string{vip: ""}, how: map[netip.Addr]model.VIPAnnouncement{}}
		w.hosts = append(w.hosts, h)
		w.start(h, nil)
	}
	return w, vip
}

// untaken lets time pass in which nobody may take the VIP.
func (w *world) untaken(when string, long time.Duration) {
	w.Helper()
	for end := w.now.Add(long); w.now.Before(end); {
		if w.tick(); len(w.owners(w.vips[0], 0)) > 0 {
			w.Fatalf("%s: %v took it", when, w.owners(w.vips[0], 0))
		}
	}
}

// announce changes the configuration of load balancers.
func (w *world) announce(how model.VIPAnnouncement, hosts ...*host) {
	for _, h := range hosts {
		h.how, h.able = map[netip.Addr]model.VIPAnnouncement{}, map[netip.Addr]string{}
		for _, vip := range w.vips {
			if h.able[vip] = ""; how == model.VIPOff {
				h.able[vip] = "announce is off"
			}
			if how != model.VIPAuto {
				h.how[vip] = how
			}
		}
		if w.runs(h) {
			w.configure(h)
		}
	}
}

// Promise: Load balancers that start take no VIP that another host answers for, and take it when that host stops, or they are told to.
func TestAVIPThatAnotherHostAnswersForIsLeftToIt(t *testing.T) {
	for name, end := range map[string]func(w *world, vip netip.Addr){
		"it stops":          func(w *world, vip netip.Addr) { delete(w.foreign, vip) },
		"announce is force": func(w *world, _ netip.Addr) { w.announce(model.VIPForce, w.hosts...) },
	} {
		t.Run(name, func(t *testing.T) {
			w, vip := newSegment(t, 2)
			w.untaken("while it answers", time.Minute)
			if n := len(slices.DeleteFunc(slices.Clone(w.seen), func(a Action) bool { return a.Kind != Probe })); n > 2*2*60+20 {
				t.Errorf("%d probes in a minute", n)
			}
			for _, h := range w.hosts {
				if s := h.machine.Status(w.now)[0]; !s.Barred || s.Foreign != predecessor || w.now.Sub(s.ForeignAt) > time.Second {
					t.Errorf("%s says %+v", h.name, s)
				}
			}
			w.kill(w.hosts[1]) // nobody has had it: a restart moves nothing either
			w.hosts[1].up = true
			w.start(w.hosts[1], nil)
			w.untaken("after a restart", 10*time.Second)
			end(w, vip)
			if took := w.await(vacant + time.Second); name == "it stops" && took < vacant-askForeign {
				t.Errorf("taken %v after the last answer", took)
			}
			w.pass(10 * time.Second)
		})
	}
}

// Promise: Whoever answers ARP for a VIP that the fleet has had holds up no failover, nor a start after a loss of power.
func TestNobodyWhoAnswersHoldsUpAFailover(t *testing.T) {
	w, vip := newSegment(t, 2)
	delete(w.foreign, vip)
	w.await(vacant + time.Second)
	w.pass(3 * time.Second)
	w.foreign[vip] = predecessor
	w.pass(10 * time.Second)
	owner := slices.IndexFunc(w.hosts, func(h *host) bool { return len(h.rows) > 0 })
	for end := w.now.Add(3 * doubles); w.now.Before(end); { // also between two looks
		if w.tick(); w.hosts[owner].machine.Status(w.now)[0].Foreign != predecessor || w.hosts[owner].machine.Status(w.now)[0].Barred {
			t.Fatalf("the conflict: %+v", w.hosts[owner].machine.Status(w.now)[0])
		}
	}
	w.kill(w.hosts[owner])
	if took := w.await(time.Second); took > 700*time.Millisecond {
		t.Errorf("a failover took %v", took)
	}
	for _, h := range w.hosts {
		w.kill(h)
		h.up = true
	}
	w.start(w.hosts[owner], nil)
	w.await(2 * time.Second)
	other := w.hosts[1-owner]
	if s := w.hosts[owner].machine.Status(w.now)[0]; s.Why != "no load balancer answers for it" {
		t.Errorf("why: %q", s.Why)
	}
	other.history = nil // it has lost its state, and hears of the VIP by the others
	w.start(other, nil)
	w.pass(5 * time.Second)
	w.kill(w.hosts[owner])
	w.await(time.Second)
	delete(w.foreign, vip)
	for range int(6 * time.Second / step) {
		w.tick()
	}
	if s := other.machine.Status(w.now)[0]; s.Foreign != (MAC{}) {
		t.Errorf("a host that has ceased to answer is reported: %+v", s)
	}
}

// Promise: A VIP that is given up is nobody's of the fleet, also with one that was away meanwhile, and comes back when nobody else answers.
func TestAVIPThatIsGivenUpIsLeftToWhoAnswers(t *testing.T) {
	w, vip := newSegment(t, 2)
	delete(w.foreign, vip)
	w.await(vacant + time.Second)
	w.pass(3 * time.Second)
	away := w.hosts[1]
	w.kill(away)
	w.await(time.Second)
	w.pass(3 * time.Second)
	w.announce(model.VIPOff, w.hosts[0])
	w.untaken("given up", 10*time.Second)
	if s := w.hosts[0].machine.Status(w.now)[0]; !s.Off || !s.Looked || s.Foreign != (MAC{}) {
		t.Errorf("nobody answers: %+v", s)
	}
	w.foreign[vip] = predecessor
	away.up = true
	w.start(away, nil) // by the configuration of before
	w.untaken("with one that was away", time.Minute)
	w.announce(model.VIPOff, away)
	w.untaken("which was told", 10*time.Second)
	for _, h := range w.hosts {
		if s := h.machine.Status(w.now)[0]; !s.Off || s.Foreign != predecessor || s.Barred {
			t.Errorf("%s says %+v", h.name, s)
		}
	}
	w.announce(model.VIPAuto, w.hosts...)
	w.untaken("while the other host answers", 10*time.Second)
	delete(w.foreign, vip)
	w.await(vacant + time.Second)
	w.pass(5 * time.Second)
	owner := slices.IndexFunc(w.hosts, func(h *host) bool { return len(h.rows) > 0 })
	w.announce(model.VIPOff, w.hosts[owner])
	w.untaken("while the other load balancer has yet to be told", 100*time.Millisecond)
	w.announce(model.VIPOff, w.hosts[1-owner])
	w.untaken("given up by both", 5*time.Second)
	w.announce(model.VIPAuto, w.hosts...)
	w.await(vacant + time.Second)
	w.pass(5 * time.Second)

	// Whoever is behind with its configuration holds up nothing.
	w.announce(model.VIPOff, w.hosts[0])
	w.await(time.Second)
	w.foreign[vip] = predecessor
	w.pass(5 * time.Second)
}

// Promise: Many VIPs of another host are left to it, though each is asked for less often.
func TestManyVIPsOfAnotherHostAreLeftToIt(t *testing.T) {
	w := newWorld(t, 0, 0)
	w.foreign = map[netip.Addr]MAC{}
	h := &host{name: "lb1", mac: MAC{2, 0, 0, 0, 0, 1}, up: true, rows: map[netip.Addr]bool{}, able: map[netip.Addr]string{}}
	for i := range 600 {
		vip := netip.AddrFrom4([4]byte{198, 51, byte(100 + i/200), byte(i%200 + 1)})
		w.vips, w.foreign[vip], h.able[vip] = append(w.vips, vip), predecessor, ""
	}
	w.hosts = []*host{h}
	w.start(h, nil)
	for end := w.now.Add(30 * time.Second); w.now.Before(end); {
		if w.tick(); len(h.rows) > 0 {
			t.Fatalf("%d were taken at %v", len(h.rows), w.now)
		}
	}
	for _, s := range h.machine.Status(w.now) {
		if !s.Barred {
			t.Fatalf("%+v", s)
		}
	}
}

// Promise: A load balancer takes a VIP for the first time when others have had 2 s to answer, without a gap in which it did not ask.
func TestAGapInAskingBeginsTheWaitAnew(t *testing.T) {
	vip := netip.MustParseAddr("198.51.100.1")
	able := func(why string) map[netip.Addr]string { return map[netip.Addr]string{vip: why} }
	for name, gap := range map[string]func(m *Machine, now time.Time) (lost bool){
		"probes are not sent": func(*Machine, time.Time) bool { return true },
		"another device":      func(m *Machine, now time.Time) bool { m.SetMAC(MAC{2, 0, 0, 0, 0, 2}, now); return false },
		"it could not carry it": func(m *Machine, now time.Time) bool {
			m.SetAble(now, able("no server"))
			m.SetAble(now, able(""))
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			m := New("lb1", MAC{2, 0, 0, 0, 0, 1}, nil, false, nil, now)
			m.SetAble(now, able(""))
			play := func(long time.Duration, lost bool) (took bool) {
				for end := now.Add(long); now.Before(end) && !took; now = now.Add(step) {
					actions, _ := m.Step(now)
					for _, a := range actions {
						if took = took || a.Kind == Take; a.Kind == Probe && lost {
							m.NotSent(vip)
						}
					}
				}
				return took
			}
			if play(vacant/2, false) || play(askForeign+step, gap(m, now)) || play(vacant-askForeign-2*step, false) {
				t.Error("taken although it was not asked for without a gap")
			}
			if !play(time.Second, false) {
				t.Error("it is not taken")
			}
		})
	}
}

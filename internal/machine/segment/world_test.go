// A segment that is simulated.
package segment

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

const step = 5 * time.Millisecond

// host is a load balancer on a simulated segment.
type host struct {
	name    string
	mac     MAC
	machine *Machine // nil: its daemon is not there
	hung    bool     // its daemon does nothing
	up      bool     // its data path answers
	until   time.Time
	rows    map[netip.Addr]bool // true: owned, false: held
	peers   []MAC               // as its data path knows them
	able    map[netip.Addr]string
	how     map[netip.Addr]model.VIPAnnouncement
	history []netip.Addr // as its state file says
	part    int          // of the segment; hosts of different parts do not hear each other
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

	foreign map[netip.Addr]MAC // hosts that are no load balancers, by the VIP that they answer for

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
		h := &host{name: fmt.Sprintf("lb%d", i+1), mac: MAC{2, 0, 0, 0, 0, byte(i + 1)}, up: true, rows: map[netip.Addr]bool{}, able: map[netip.Addr]string{}, history: w.vips}
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
	lapsed := !h.until.IsZero() && !w.now.Before(h.until) || slices.Contains(slices.Collect(maps.Values(h.rows)), false)
	for vip := range h.rows {
		h.rows[vip] = !lapsed
	}
	h.machine, h.hung, h.until = New(h.name, h.mac, slices.Collect(maps.Keys(h.rows)), lapsed, peers, w.now), false, w.now.Add(Lease)
	h.machine.Remember(w.now, h.history)
	w.configure(h)
}

// configure has a daemon follow its configuration.
func (w *world) configure(h *host) {
	h.machine.SetAnnouncements(h.how)
	w.do(h, h.machine.SetAble(w.now, h.able))
}

func (w *world) runs(h *host) bool { return h.machine != nil && !h.hung }

// answers for a VIP, to who asks.
func (w *world) answers(h *host, vip netip.Addr, asks MAC) bool {
	owned, there := h.rows[vip]
	return h.up && there && (owned && w.now.Before(h.until) || !slices.Contains(h.peers, asks))
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
			if w.runs(to) {
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
		case Hold:
			h.rows[a.VIP] = false
		case Probe:
			if by, answers := w.foreign[a.VIP]; answers && (a.To == (MAC{}) || a.To == by) {
				w.send(h, func(m *Machine) []Action { return m.Answered(w.now, a.VIP, by) })
			}
			for _, other := range w.others(h) {
				if w.answers(other, a.VIP, h.mac) && (a.To == (MAC{}) || a.To == other.mac) && w.arrives() {
					w.send(h, func(m *Machine) []Action { return m.Answered(w.now, a.VIP, other.mac) })
				}
			}
		case Announce:
			for _, other := range w.others(h) {
				if w.arrives() {
					w.flying = append(w.flying, func() {
						if !w.answers(other, a.VIP, h.mac) {
							delete(other.rows, a.VIP)
						}
					})
				}
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

// step has a daemon do what it does in a turn.
func (w *world) step(h *host) {
	if !w.now.Before(h.until) {
		w.do(h, h.machine.Lapse(w.now, func(vip netip.Addr) bool { _, there := h.rows[vip]; return there }))
	}
	h.until, h.peers = w.now.Add(Lease), slices.Collect(maps.Values(h.machine.Kept()))
	actions, next := h.machine.Step(w.now)
	w.do(h, actions)
	h.history = h.machine.History()
	if next.Before(w.now) && len(actions) == 0 {
		w.Fatalf("%s wants to be called at %v, which was", h.name, next)
	}
}

func (w *world) tick() {
	w.now = w.now.Add(step)
	for _, h := range w.hosts {
		if w.runs(h) {
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
		if _, there := h.rows[vip]; h.up && h.part == part && there {
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
			able := slices.ContainsFunc(w.hosts, func(h *host) bool { return h.part == part && h.up && w.runs(h) && h.able[vip] == "" })
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

func (w *world) kill(h *host) {
	h.up, h.machine, h.until, h.rows = false, nil, time.Time{}, map[netip.Addr]bool{}
}

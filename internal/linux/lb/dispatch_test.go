package lb

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// connect sends the SYNs of n clients and counts which server got how many.
func (w *world) connect(n int) map[uint16]int { return w.connectTo(vip4, n) }

func (w *world) connectTo(vip netip.Addr, n int) map[uint16]int {
	w.Helper()
	served := map[uint16]int{}
	for i := range n {
		f := flowTo(vip, 80, i)
		out := make([]byte, 256)
		options := ebpf.RunOptions{Data: f.frame(f.tcp(syn, synOptions(), nil)), DataOut: out}
		if _, err := w.lb.Program().Run(&options); err != nil {
			w.Fatal(err)
		}
		served[binary.BigEndian.Uint16(options.DataOut[4:6])]++ // testPath: the MAC ends like the address
	}
	return served
}

func weighted(weights ...uint16) func(*model.Service) {
	return func(s *model.Service) {
		s.Servers = nil
		for i, weight := range weights {
			server := serverOf(uint16(i+1), false)
			server.Weight = weight
			s.Servers = append(s.Servers, server)
		}
	}
}

// idAt turns what connect counts, the last two bytes of 10.1.1.ID, into the id.
func idAt(id uint16) uint16 { return 1<<8 | id }

func TestTwoChoicesPreferTheLessLoaded(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) {
		weighted(1, 1, 1, 1)(s)
		s.Dispatch = model.DispatchP2C
	}))
	place := w.tables.Places()["web"]
	w.lb.tables.loads[place.Counters[3]].value = 10000
	served := w.connect(320)
	// Server 3 gets a connection only when it is drawn twice: 1 in 16.
	if got := served[idAt(3)]; got > 50 {
		t.Errorf("the loaded server got %d of 320", got)
	}
	for _, id := range []uint16{1, 2, 4} {
		if got := served[idAt(id)]; math.Abs(float64(got)-100) > 15 {
			t.Errorf("server %d got %d of 320, want about 100", id, got)
		}
	}
}

func TestTwoChoicesCountWhatOpensAndCloses(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) {
		weighted(1)(s)
		s.Dispatch = model.DispatchP2C
	}))
	counter := w.tables.Places()["web"].Counters[1]
	w.connect(5)
	f := flowTo(vip4, 80, 1)
	expectOpen := func(want int32) {
		t.Helper()
		if got := w.lb.OpenConnections(counter); got != want {
			t.Fatalf("%d open, want %d", got, want)
		}
	}
	expectOpen(5)
	w.check(f.frame(f.tcp(fin|ack, timestamps(1, w.cookieFor("web", f, 1, 1)), nil)))
	w.check(f.frame(f.tcp(rst, timestamps(1, w.cookieFor("web", f, 1, 1)), nil)))
	expectOpen(4) // it had ended
	for i := range 9 {
		f := flowTo(vip4, 80, 2+i)
		w.check(f.frame(f.tcp(rst, timestamps(1, w.cookieFor("web", f, 1, 1)), nil)))
	}
	expectOpen(0)
}

func TestMaglevSlotsAreThoseOfTheTable(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) {
		weighted(3, 1, 2, 7)(s)
		s.Dispatch, s.TableSlots = model.DispatchMaglev, 1021
	}))
	s := service(&w.want, "web")
	table := maglev.Table(s.TableSlots, s.Shares())
	key := cookie.ServiceKey(w.want.Keys.Placement, s.VIP, s.Protocol)
	for n := range 200 {
		f := flowTo(vip4, 443, n)
		owner := table[cookie.Slot(cookie.FlowHash(key, f.client, 443), s.TableSlots)]
		for _, frame := range [][]byte{f.frame(f.tcp(syn, synOptions(), nil)), f.frame(f.tcp(syn, nil, nil)), f.frame(f.tcp(ack, nil, nil))} {
			got, want := w.check(frame)
			if want.serverOf(got.frame) != owner {
				t.Fatalf("flow %d went to %d, the table says %d", n, want.serverOf(got.frame), owner)
			}
		}
	}
}

func TestHashAffinityNeverReadsCookies(t *testing.T) {
	for _, dispatch := range []model.Dispatch{model.DispatchHash, model.DispatchMaglev, model.DispatchWCMP} {
		t.Run(fmt.Sprint(dispatch), func(t *testing.T) {
			w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) { s.Affinity, s.Dispatch = model.AffinityHash, dispatch }))
			f := flowTo(vip4, 80, 1)
			_, first := w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_BY_HASH)
			for id := range uint16(4) {
				_, again := w.checkVerdict(f.carrying(w.cookieFor("web", f, id, 1)), lbVerdictFORWARDED_BY_HASH)
				if again.ids[0] != first.ids[0] {
					t.Fatal("the flow moved")
				}
			}
		})
	}
}

// Promise: A server without neighbour or route gets no new connections by `rr`, `wrr` or `p2c`, and an old next
// hop is kept until there is a new one.
// Also held by TestAServerWithoutNextHopGetsNothing.
func TestWithoutAWayToAServerItsTurnsGoToTheOthers(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, weighted(1, 1, 1)))
	w.update(func(want *plan.Want) { want.Paths[serverOf(2, false).Address] = plan.Path{} })
	if served := w.connect(60); served[idAt(2)] != 0 || served[idAt(1)] < 25 || served[idAt(3)] < 25 {
		t.Errorf("served %v", served)
	}
}

package dataplane

import (
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// slowStart makes tables of one service with slow_start, and what makes it one of so many servers.
func slowStart(t *testing.T, dispatch model.Dispatch, over time.Duration) (tables *Tables, serve func(servers int)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading BPF programs needs root")
	}
	tables, err := Open(Options{Self: "lb1", Log: slog.New(slog.DiscardHandler), NoCookie: func(*Snapshot, *model.Service) map[uint16]bool { return nil },
		Limits: plan.Limits{Services: 2, Servers: 8, ServerIDs: 512, Slots: 8192, Rounds: 1024}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tables.Path().Close() })
	return tables, func(servers int) {
		t.Helper()
		web := model.NewService()
		web.Name, web.VIP, web.Ports, web.Dispatch, web.SlowStart = "web", netip.MustParseAddr("198.51.100.10"), []uint16{80}, dispatch, model.Duration(over)
		for id := range uint16(servers) {
			server := model.NewServer()
			server.ID, server.Name, server.Address = id+1, "s"+string('1'+rune(id)), netip.AddrFrom4([4]byte{127, 0, 0, byte(id + 1)})
			web.Servers = append(web.Servers, server)
		}
		web.ApplyDefaults()
		running := model.Fleet{Keys: model.Keys{Cookie: map[uint32][16]byte{0: {1}}}, Services: []model.Service{web}}
		if err := tables.Reconcile(&desired.State{Desired: fleet.Desired{Running: running}, Self: "lb1"}); err != nil {
			t.Fatal(err)
		}
	}
}

// Promise: With slow_start a server that is added begins with a tenth, and has all when the time is over; servers of a new service do not start.
func TestAServerThatIsAddedStartsSlowly(t *testing.T) {
	tables, serve := slowStart(t, model.DispatchRR, 90*time.Second)
	serve(2)
	began := time.Now()
	if next := tables.grow(began); !next.IsZero() || len(tables.Starting()) > 0 {
		t.Errorf("servers of a new service start: again at %v, %v", next, tables.Starting())
	}
	expect := func(when string, tenths uint8) {
		t.Helper()
		if parts := tables.Starting()["web"]; parts[3].Tenths != tenths || len(parts) != 1 {
			t.Errorf("%s: %v start, want %d tenths of server 3", when, parts, tenths)
		}
	}
	serve(3)
	expect("it is added", 1)
	next := tables.grow(began)
	if next.Before(began.Add(10*time.Second)) || next.After(time.Now().Add(10*time.Second)) {
		t.Errorf("it grows in %v", next.Sub(began))
	}
	expect("before its time", 1)
	if further := tables.grow(next); !further.Equal(next.Add(10 * time.Second)) {
		t.Errorf("and again %v later", further.Sub(next))
	}
	expect("it has grown", 2)
	serve(3)
	expect("by the clock of now", 1)
	if last := tables.grow(time.Now().Add(90 * time.Second)); !last.IsZero() || len(tables.Starting()) > 0 {
		t.Errorf("it is whole at %v, and %v start", last, tables.Starting())
	}
}

// With as many open as others have, it would get nothing for as long as it starts, and with none everything.
func TestAServerThatStartsBeginsWithAPartOfTheMean(t *testing.T) {
	tables, serve := slowStart(t, model.DispatchLeast, time.Minute)
	serve(2)
	tables.Path().AdjustOpenConnections(tables.Now().Places["web"], map[uint16]int32{1: 900, 2: 1100})
	serve(3)
	if open := tables.Path().OpenConnections(tables.Now().Places["web"].Counters[3]); open < 100 || open > 101 {
		t.Errorf("it begins with %d, want a tenth of 1000", open)
	}
}

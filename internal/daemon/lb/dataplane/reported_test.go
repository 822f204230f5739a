package dataplane

import (
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/machine/estimate"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// byReports are tables of one service that compares CPU in use of two servers.
func byReports(t *testing.T) (tables *Tables, open func() [2]int32) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loading BPF programs needs root")
	}
	tables, err := Open(Options{Self: "lb1", Log: slog.New(slog.DiscardHandler), NoCookie: func(*Snapshot, *model.Service) map[uint16]bool { return nil },
		Limits: plan.Limits{Services: 2, Servers: 8, ServerIDs: 512, Slots: 8192, Rounds: 256}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tables.Path().Close() })
	web := model.NewService()
	web.Name, web.VIP, web.Ports, web.Dispatch, web.Load.Source = "web", netip.MustParseAddr("198.51.100.10"), []uint16{80}, model.DispatchLeast, model.LoadCPU
	for id := range uint16(2) {
		server := model.NewServer()
		server.ID, server.Name, server.Address = id+1, "s"+string('1'+rune(id)), netip.AddrFrom4([4]byte{127, 0, 0, byte(id + 1)})
		web.Servers = append(web.Servers, server)
	}
	web.ApplyDefaults()
	running := model.Fleet{Keys: model.Keys{Cookie: map[uint32][16]byte{0: {1}}}, Services: []model.Service{web}}
	if err := tables.Reconcile(&desired.State{Desired: fleet.Desired{Running: running}, Self: "lb1"}); err != nil {
		t.Fatal(err)
	}
	return tables, func() [2]int32 {
		counters := tables.Now().Places["web"].Counters
		return [2]int32{tables.Path().OpenConnections(counters[1]), tables.Path().OpenConnections(counters[2])}
	}
}

func TestLoadsThatComeLateAreIgnoredAndThoseThatStopAreReplacedByCounts(t *testing.T) {
	tables, open := byReports(t)
	report := func(term, version uint64, loads ...float64) {
		l := &follow.Loads{Term: term, Version: version, Share: 1}
		for i, load := range loads {
			l.Servers = append(l.Servers, follow.Load{ID: uint16(i + 1), Load: load})
		}
		tables.Load("web", l)
	}
	tables.Load("gone", &follow.Loads{Term: 9, Version: 9})
	report(2, 5, 0.6, 0.5)
	now := open()
	if now[0] <= now[1] || now[1] <= 0 || now[0]+now[1] > 2*estimate.Unit {
		t.Fatalf("loads are %v", now)
	}
	report(2, 5, 0.1, 0.9)
	report(2, 4, 0.1, 0.9)
	report(1, 9, 0.1, 0.9)
	if have := open(); have != now {
		t.Errorf("older loads made %v of %v", have, now)
	}
	if problems := tables.Unreported(time.Now()); len(problems) != 0 {
		t.Errorf("problems %q", problems)
	}
	later := time.Now().Add(time.Minute)
	if problems := tables.Unreported(later); len(problems) != 1 || !strings.Contains(problems[0], "service web: no loads by load.source cpu for") {
		t.Errorf("a minute later: problems %q", problems)
	}
	tables.ageEstimates(later, time.Second)
	if have := open(); have != [2]int32{} {
		t.Errorf("a minute later nothing is open, and loads are %v", have)
	}
	report(3, 1, 0.6, 0.5)
	if have := open(); have[0] <= have[1] || have[1] <= 0 {
		t.Errorf("loads that came again are %v", have)
	}
	if problems := tables.Unreported(time.Now()); len(problems) != 0 {
		t.Errorf("loads came again: problems %q", problems)
	}
}

package engine_test

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/balance"
)

func TestActivityGrowsAsLongAsSomebodySpeaksToAServer(t *testing.T) {
	e := engine.New(engine.Options{})
	web := fleettest.Service("web", 1)
	web.Removed = fleettest.Service("", 2).Service.Servers
	e.SetState(fleettest.View(1, web))
	report := func(lb string, packets uint64) uint64 {
		e.Traffic(lb, []engine.ServerTraffic{{Service: "web", ID: 2, Seen: balance.Seen{Packets: packets}}})
		if told := e.Servers("web"); told[1].Server.ID != 2 || told[1].Activity != e.Activity("web", 2) {
			t.Errorf("told of servers is %+v", told)
		}
		return e.Activity("web", 2)
	}
	first := report("lb1", 10)
	if second := report("lb1", 10); second != first {
		t.Error("silence counted as activity")
	}
	if report("lb1", 11) == first {
		t.Error("a packet did not count")
	}
	second := report("lb2", 4)
	if report("lb2", 1) == second {
		t.Error("a load balancer that began to count anew did not count")
	}
}

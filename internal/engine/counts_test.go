package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/balance"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestCountsOfAgentsAreToldOfServicesThatAreDispatchedByThemAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		e := startEngine(t, &d, fleettest.View(1, fleettest.LoadedService("least", model.DispatchLeast, 1, 2), fleettest.LoadedService("rr", model.DispatchRR, 1, 2)))
		minute := func(open func(second int) float64) []countsSaid {
			d.take()
			for second := range 60 {
				e.Traffic("lb1", []engine.ServerTraffic{{Service: "least", ID: 1, Seen: balance.Seen{Connections: uint64(second)}}})
				queue := engine.Queue{Connections: uint32(open(second))}
				e.Load(agent(1), &engine.Load{Queues: map[string]engine.Queue{"least": queue, "rr": queue}})
				time.Sleep(time.Second)
			}
			return d.take().counts
		}
		busy := minute(func(second int) float64 { return float64(second) })
		if len(busy) < 20 || len(busy) > 31 {
			t.Errorf("told %d times within a minute", len(busy))
		}
		for i, told := range busy {
			if told.service != "least" || len(told.counts.Servers) != 1 || told.counts.Servers[0].ID != 1 || told.shares["lb1"] != 1 {
				t.Errorf("told %+v", told)
			}
			if told.counts.Version != uint64(i+1) || told.counts.Term != 1 {
				t.Errorf("%d. is version %d of term %d", i+1, told.counts.Version, told.counts.Term)
			}
		}
		minute(func(int) float64 { return 5 })
		if idle := minute(func(int) float64 { return 5 }); len(idle) < 5 || len(idle) > 7 {
			t.Errorf("told %d times within a minute in which nothing changed", len(idle))
		}
		d.take()
		time.Sleep(10 * time.Second)
		d.take()
		time.Sleep(time.Minute)
		if silent := d.take().counts; len(silent) != 0 {
			t.Errorf("told %d times of an agent that is silent", len(silent))
		}
	})
}

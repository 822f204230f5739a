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

// An agent that stops is replaced by the next source, and `ballast ctl server list` names it.
func TestReportedLoadsAreSentInEachIntervalAndAnAgentThatStopsIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		least, counting := fleettest.LoadedService("least", model.DispatchLeast, 1, 2), fleettest.LoadedService("counting", model.DispatchP2C, 1, 2)
		least.Service.Load.Source = model.LoadCPU
		e := startEngine(t, &d, fleettest.View(1, least, counting))
		interval := time.Duration(least.Service.Load.Interval)
		seconds := func(n int, agents ...int) said {
			d.take()
			for range n * int(time.Second/interval) {
				e.Traffic("lb1", []engine.ServerTraffic{
					{Service: "least", ID: 1, Seen: balance.Seen{Connections: 30}}, {Service: "least", ID: 2, Seen: balance.Seen{Connections: 10}}})
				for _, id := range agents {
					e.Load(agent(id), &engine.Load{HasCPU: true, CPUPermille: uint16(200 * id), CPUs: 1})
				}
				time.Sleep(interval)
			}
			return d.take()
		}
		loads := seconds(10, 1, 2).loads
		if want := int(10 * time.Second / interval); len(loads) < want-2 || len(loads) > want+2 {
			t.Errorf("sent %d times in %d intervals", len(loads), want)
		}
		for i, l := range loads[1:] {
			if l.Version != loads[i].Version+1 || l.Term != 1 {
				t.Fatalf("version %d of term %d after %d", l.Version, l.Term, loads[i].Version)
			}
		}
		last := loads[len(loads)-1]
		if len(last.Servers) != 2 || last.Servers[0].Load != 0.2 || last.Servers[1].Load != 0.4 || last.Requests {
			t.Errorf("loads are %+v", last)
		}
		sources := func() (all [2]string) {
			for _, s := range e.Servers("least") {
				all[s.Server.ID-1] = s.Source
			}
			return all
		}
		seconds(10, 1)
		if have := sources(); have != [2]string{"cpu", "estimate"} {
			t.Errorf("of one agent the sources are %v", have)
		}
		loads = seconds(10).loads
		last = loads[len(loads)-1]
		if have := sources(); have != [2]string{"estimate", "estimate"} || !last.Requests || last.Servers[0].Load <= last.Servers[1].Load {
			t.Errorf("without agents the sources are %v and the loads %+v", have, last)
		}
	})
}

// Without agents, and for traffic whose ends nobody sees.
func TestRatesOfTrafficAreSentAsLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		least := fleettest.LoadedService("least", model.DispatchLeast, 1, 2)
		least.Service.Load.Source = model.LoadBytes
		e := startEngine(t, &d, fleettest.View(1, least))
		for n := range uint64(40) {
			for _, lb := range []string{"lb1", "lb2"} {
				e.Traffic(lb, []engine.ServerTraffic{
					{Service: "least", ID: 1, Seen: balance.Seen{Bytes: 3000 * n}}, {Service: "least", ID: 2, Seen: balance.Seen{Bytes: 1000 * n}}})
			}
			time.Sleep(time.Duration(least.Service.Load.Interval))
		}
		loads := d.take().loads
		last := loads[len(loads)-1]
		if quotient := last.Servers[0].Load / last.Servers[1].Load; last.Requests || quotient < 2.9 || quotient > 3.1 {
			t.Errorf("loads of 3000 and 1000 bytes are %+v", last)
		}
		for _, s := range e.Servers("least") {
			if s.Source != "bytes" {
				t.Errorf("server %d is measured by %s", s.Server.ID, s.Source)
			}
		}
	})
}

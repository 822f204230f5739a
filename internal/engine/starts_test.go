package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
)

// Promise: A server's slow start is shown by the smallest part that a load balancer reports, and ends by time also where nobody reports any more.
func TestAStartIsThatOfTheLoadBalancerWhereAServerHasLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(engine.Options{})
		web := fleettest.Service("web", 1, 2)
		web.Service.Servers[1].Weight = 0
		e.SetState(fleettest.View(1, web))
		e.SetLoadBalancers([]string{"lb1", "lb2"})
		began := time.Now()
		report := func(lb string, id uint16, tenths uint8, left time.Duration) {
			e.Traffic(lb, []engine.ServerTraffic{{Service: "web", ID: id, Start: engine.Start{Tenths: tenths, Whole: time.Now().Add(left)}}})
		}
		shows := func(when string, tenths uint8, whole time.Duration) {
			t.Helper()
			start := e.Servers("web")[0].Start
			if start.Tenths != tenths || tenths > 0 && !start.Whole.Equal(began.Add(whole)) {
				t.Errorf("%s: %+v", when, start)
			}
		}
		shows("before anybody reports", 0, 0)
		report("lb1", 1, 3, 20*time.Second)
		report("lb1", 2, 1, time.Minute)
		shows("as one reports", 3, 20*time.Second)
		report("lb2", 1, 2, 25*time.Second)
		shows("of two", 2, 25*time.Second)
		report("lb2", 1, 4, 25*time.Second)
		shows("when the slower has overtaken", 3, 25*time.Second)
		report("lb1", 1, 0, 0)
		shows("when one is done", 4, 25*time.Second)
		if start := e.Servers("web")[1].Start; start.Tenths != 0 {
			t.Errorf("a server that takes nothing starts: %+v", start)
		}
		time.Sleep(25 * time.Second)
		shows("when the other is silent", 0, 0)
	})
}

package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
)

// A machine that is a load balancer and a server loses its power: what it saw of its own server ties no vote.
//
// Promise: A server that dies with one of two load balancers is unhealthy as soon as the other one has found it, or 3 s after their last word.
// Also held by TestVotesOfSilentLoadBalancersDoNotCount.
func TestALoadBalancerThatIsSilentHasNoSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		web := fleettest.Service("web", 1, 2)
		web.Service.Health = model.Health{Check: model.CheckTCP, Interval: model.Duration(time.Second), Rise: 1, Fall: 1}
		e := startEngine(t, &d, fleettest.View(1, web))
		e.SetLoadBalancers([]string{"lb1", "lb2"})
		for _, lb := range []string{"lb1", "lb2", "stranger"} {
			e.Alive(lb)
			e.Health(lb, sees(1, true))
			e.Health(lb, sees(2, true))
		}
		last := time.Now()
		time.Sleep(time.Second)
		e.Health("lb1", sees(2, false))
		for time.Since(last) < health.Silent {
			e.Alive("lb1")
			time.Sleep(100 * time.Millisecond)
		}
		if down := d.take().down; len(down) > 0 {
			t.Errorf("%v were down before lb2 was silent", down)
		}
		for time.Since(last) < health.Silent+engine.DecidePeriod {
			e.Alive("lb1")
			time.Sleep(100 * time.Millisecond)
		}
		if down := d.take().down; len(down) == 0 || down[0] != "web[2] []" {
			t.Errorf("lb2 is silent, and down are %v", down)
		}
	})
}

package engine_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
)

// Promise: An agent can take out its own servers alone; a check that succeeds through the tunnel overrules it, it
// counts for nothing 15 s after its last report, and reports from two hosts count for nothing.
// Also held by TestAnAgentThatIsSilentTakesNoServerOut and TestOnlyAgentsSayWhatTheirServersLose.
func TestAnAgentTakesItsOwnServersOutAtOnceAndNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		web, dns := fleettest.Service("web", 1, 2), fleettest.Service("dns", 1, 2)
		for _, s := range []*engine.ServiceView{&web, &dns} {
			s.Service.Health = model.Health{Check: model.CheckTCP, Interval: model.Duration(time.Second), Rise: 1, Fall: 1}
		}
		e := startEngine(t, &d, fleettest.View(1, web, dns))
		e.SetLoadBalancers([]string{"lb1"})
		synctest.Wait()
		for _, service := range []string{"web", "dns"} {
			for id := range uint16(2) {
				e.Health("lb1", []engine.ServerHealth{{Service: service, ID: id + 1, View: health.View{Healthy: true, Direct: service == "dns"}}})
			}
		}
		d.take()
		began, noVIP := time.Now(), health.Loss{Reason: "no VIP"}
		e.Losses(agent(3), map[string]health.Loss{"dns": noVIP, "web": noVIP}) // no server is called s3
		e.Losses(agent(2), map[string]health.Loss{"dns": noVIP, "web": noVIP, "else": noVIP})
		if down := d.take().down; !slices.Equal(down, []string{"dns[2] []"}) || time.Since(began) > 0 {
			t.Errorf("told %v after %v", down, time.Since(began))
		}
		for _, s := range e.Servers("") {
			want := "healthy"
			if s.Service == "dns" && s.Server.ID == 2 {
				want = "unhealthy"
			}
			if s.Health != want {
				t.Errorf("%s is %s: %s", fmt.Sprint(s.Service, s.Server.ID), s.Health, s.HealthDetail)
			}
		}
		dns.Down = []uint16{2}
		e.SetState(fleettest.View(2, web, dns))
		time.Sleep(time.Second)
		e.Losses(agent(2), nil)
		if down := d.take().down; !slices.Equal(down, []string{"dns[] []"}) {
			t.Errorf("told %v when the loss was over", down)
		}
	})
}

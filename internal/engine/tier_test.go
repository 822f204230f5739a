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

// Whose way to a server is that of its traffic, may judge it.
func TestWhoSendsToServersChecksThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		table, web := fleettest.Service("table", 1), fleettest.Service("web", 1)
		table.Service.Affinity = model.AffinityTable
		for _, v := range []*engine.ServiceView{&table, &web} {
			v.Service.Health.Check = model.CheckTCP
		}
		e := startEngine(t, &d, fleettest.Tiered(1, nil, table, web))
		e.SetLoadBalancers([]string{"lb1", "lb2", "lb3"})
		have := fmt.Sprint(d.take().checks)
		if want := "map[lb1:[@second-tier web] lb2:[table web] lb3:[table web]]"; have != want {
			t.Errorf("checks %s, not %s", have, want)
		}
		plain := fleettest.View(2, table, web)
		e.SetState(plain)
		have = fmt.Sprint(d.take().checks)
		if want := "map[lb1:[table web] lb2:[table web] lb3:[table web]]"; have != want {
			t.Errorf("without tiers checks %s, not %s", have, want)
		}
		for _, s := range e.Servers("") {
			if s.Service == model.SecondTierName {
				t.Error("the second tier is among the services")
			}
		}
	})
}

func TestADeadNodeIsToldAtOnceAndSoIsItsReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d decisions
		e := startEngine(t, &d, fleettest.Tiered(1, nil))
		e.SetLoadBalancers([]string{"lb1"})
		report := func(healthy bool) (after time.Duration) {
			d.take()
			began := time.Now()
			e.Health("lb1", []engine.ServerHealth{
				{Service: model.SecondTierName, ID: 1, View: health.View{Healthy: true}}, {Service: model.SecondTierName, ID: 2, View: health.View{Healthy: healthy, Detail: "refused"}}})
			synctest.Wait()
			return time.Since(began)
		}
		after := report(false)
		if down := d.take().down; !slices.Equal(down, []string{"@second-tier[2] []"}) || after > 0 {
			t.Errorf("told %q after %v", down, after)
		}
		e.SetState(fleettest.Tiered(2, []uint16{2}))
		for _, s := range e.Servers(model.SecondTierName) {
			if want := map[string]string{"lb2": "healthy", "lb3": "unhealthy"}[s.Server.Name]; s.Health != want {
				t.Errorf("%s is %s, %s", s.Server.Name, s.Health, s.HealthDetail)
			}
		}
		after = report(true)
		if down := d.take().down; !slices.Equal(down, []string{"@second-tier[] []"}) || after > 0 {
			t.Errorf("told %q after %v", down, after)
		}
	})
}

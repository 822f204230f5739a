// ipv6: churn over IPv6.
package churn

import (
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

func runIPv6(run *scenario.Run) {
	one := run.WithAffinity(scenario.CookieService(scenario.VIP6))
	run.Trial(world.Setup{
		Name: one.Affinity.String(), Services: []*fleet.Service{one}, Members: []int{1, 2, 3, 4, 5, 6},
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 8)},
	}, func(t *world.Trial) { churn(run, t) })
}

// Package bgp has routers learn by BGP and BFD which load balancers there are.
package bgp

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "bgp", Deadline: 8 * time.Minute, Do: run,
		Promise: "BIRD and FRR learn VIPs by BGP: a dead load balancer is noticed within a second, all else loses no packet, and no connection breaks",
	},
}

const (
	balancers = 3
	probePort = 5353
	noticed   = time.Second // a load balancer that is gone
	routed    = 30 * time.Second
)

func run(run *scenario.Run) {
	for _, routing := range []world.Routing{{Daemon: "bird", IPv6: true}, {Daemon: "frr"}, {Daemon: "frr", IPv6: true}, {Daemon: "bird"}} {
		name := routing.Daemon
		if routing.IPv6 {
			name += "-ipv6"
		}
		web, echo := scenario.CookieService(scenario.VIP4), fleet.NewService("echo", scenario.VIP4)
		echo.Protocol, echo.Ports, echo.Affinity, echo.Dispatch, echo.Fallback = model.ProtocolUDP, []uint16{probePort}, model.AffinityHash, model.DispatchMaglev, model.FallbackHash
		services := []*fleet.Service{web, echo}
		if routing.IPv6 { // nobody sends there: it is announced by the same session
			services = append(services, &fleet.Service{Service: scenario.CookieService(scenario.VIP6).Service})
			services[2].Name = "web6"
		}
		topology := world.Topology{LBs: balancers, Servers: make([]world.ServerNode, 3), Routing: routing}
		if routing.IPv6 { // and the load balancers run by a controller
			topology.Management, topology.Controllers, topology.EtcdMembers = true, 1, 1
		}
		run.Trial(world.Setup{Name: name, Services: services, Topology: topology}, func(t *world.Trial) { events(run, t, name) })
	}
}

func events(run *scenario.Run, t *world.Trial, name string) {
	t.Routes.AwaitRoutes(routed, 1, 2, 3)
	running := scenario.Steady(t)
	probes := t.Clients.Probe(netip.AddrPortFrom(netip.MustParseAddr(scenario.VIP4), probePort))
	step := func(what string, do func()) (lost int, outage time.Duration) {
		begin := time.Now()
		t.Event(what, do)
		t.Traffic.Busy(running, 40)
		lost, sent, outage := probes.Lost(begin)
		t.Lab.Progress("%s: %s: %d of %d probes lost", name, what, lost, sent)
		return lost, outage
	}
	whole := func(what string, do func()) {
		lost, outage := step(what, do)
		run.Result.Expect(lost == 0, "%s: %s: %d probes were lost, the last after %v", name, what, lost, outage)
	}
	_, outage := step("lb1 dies, its links stay up", func() { t.Failures.Die(1); t.Routes.AwaitRoutes(routed, 2, 3) })
	run.Result.Measure(name+"_outage_seconds", outage.Seconds())
	run.Result.Expect(outage > 0 && outage < noticed, "%s: probes were lost until %v after lb1 had died", name, outage)
	whole("lb1 returns with nothing", func() { t.Failures.Reborn(1); t.Routes.AwaitRoutes(routed, 1, 2, 3) })
	whole("drain lb2", func() {
		t.Fleet.Nodes[1].State = model.StateDraining
		t.Rollout.Apply()
		t.Routes.AwaitRoutes(routed, 1, 3)
	})
	whole("undrain lb2", func() {
		t.Fleet.Nodes[1].State = model.StateActive
		t.Rollout.Apply()
		t.Routes.AwaitRoutes(routed, 1, 2, 3)
	})
	lb2, lb3 := world.LBName(2), world.LBName(3)
	whole("stop the daemon of lb2", func() { stop(t, lb2) })
	whole("start the daemon of lb2", func() { t.Daemons.LBs[lb2] = nil; t.Rollout.Apply(); awaitSession(t, lb2) })
	whole("kill the daemon of lb3", func() { t.Daemons.LBs[lb3].Kill() })
	whole("start the daemon of lb3", func() { t.Daemons.LBs[lb3] = nil; t.Rollout.Apply(); awaitSession(t, lb3) })
	whole("stop and detach lb3", func() { stop(t, lb3); t.Failures.DetachLB(3); t.Routes.AwaitRoutes(routed, 1, 2) })
	whole("start lb3", func() { t.Daemons.LBs[lb3] = nil; t.Rollout.Apply(); t.Routes.AwaitRoutes(routed, 1, 2, 3) })
	probes.Stop()
}

func stop(t *world.Trial, node string) {
	ctx, cancel := loadmeter.WithTimeout(t.Context, await.Deadline)
	defer cancel()
	t.Daemons.LBs[node].Stop(ctx)
}

// awaitSession waits until the router has heard all that the new process announces.
func awaitSession(t *world.Trial, node string) {
	await.Promised(t.Context, routed, node+" has announced all", func() error {
		s, err := t.Monitor.BGP(node)
		if err != nil {
			return err
		}
		for _, n := range s.Neighbors {
			if !n.Up || n.BFD == nil || !n.BFD.Up || time.Since(n.Since) < 3*time.Second { // GoBGP sends a second later what it has
				return fmt.Errorf("%+v", n)
			}
		}
		return nil
	})
	t.Routes.AwaitRoutes(routed, 1, 2, 3)
}

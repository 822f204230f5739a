// Package pair has two hosts that are load balancers and servers at once, on the segment of a router that speaks no BGP: all there is in small places.
package pair

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "pair", Deadline: 5 * time.Minute, Do: runPair,
		Promise: "of two hosts with both roles each is upgraded, killed, hangs and loses power in turn: no connection breaks whose server lives",
	},
}

const (
	downloads = 200
	otherVIP  = "198.51.100.11"
)

func runPair(run *scenario.Run) {
	var services []*fleet.Service
	for _, vip := range []string{scenario.VIP4, otherVIP} {
		service := scenario.CookieService(vip)
		service.Name, service.Health = fmt.Sprintf("web%d", len(services)+1), world.Checks(model.CheckHTTP)
		service.Health.Path = world.PathHealth
		services = append(services, service)
	}
	topology := world.Topology{LBs: 2, Both: true, Segment: true, Servers: make([]world.ServerNode, 2)}
	switch run.Beside {
	case "":
	case "haproxy":
		beside := world.Setup{Name: "keepalived + HAProxy", Services: services, Topology: topology, NoDaemons: true, Baseline: true}
		run.Trial(beside, func(t *world.Trial) { (&pair{Trial: t, result: run.Result}).runBeside() })
		run.Result.Baseline.Affinity = "none"
	default:
		script.Check(fmt.Errorf("pair beside %s: %w: use haproxy", run.Beside, scenario.ErrUsage))
	}
	run.Trial(world.Setup{Name: "both roles", Services: services, Cuts: true, Topology: topology}, func(t *world.Trial) {
		(&pair{Trial: t, result: run.Result}).run()
	})
}

type pair struct {
	*world.Trial
	result *scenario.Result
	off    []outage
	ill    interval
	moved  []time.Duration // from a power cut until the other owns all VIPs
}

// An outage is when a host was without power, and until when the other may have sent new connections there.
type outage struct {
	server      string
	begin, told time.Time
}

// An interval is when no new connection may go to a server.
type interval struct {
	server     string
	begin, end time.Time
}

func (p *pair) run() {
	p.awaitEven()
	running := p.traffic((*fleet.Service).Target)
	for i := 1; i <= 2; i++ {
		scenario.ReplaceDaemon(p.Trial, running, "lb", world.LBName(i), p.Daemons.LBs)
		scenario.ReplaceDaemon(p.Trial, running, "agent", world.ServerName(i), p.Daemons.Agents)
	}
	p.expectAllWays()
	p.hangForLong(running, 2)
	for i := 1; i <= 2; i++ {
		p.Event(fmt.Sprintf("host %d loses power", i), func() {
			p.off = append(p.off, outage{server: world.ServerName(i), begin: time.Now()})
			p.Failures.PowerOff(i)
			p.Monitor.AwaitOwned(world.LBName(3-i), 2)
			p.moved = append(p.moved, time.Since(p.off[len(p.off)-1].begin))
			p.Monitor.AwaitHealth(i, true, world.LBName(3-i))
			p.off[len(p.off)-1].told = time.Now()
		})
		p.Traffic.Busy(running, 40)
		p.Event(fmt.Sprintf("host %d returns", i), func() {
			p.Failures.PowerOn(i)
			p.Monitor.AwaitHealth(i, false, world.LBName(3-i))
			p.awaitEven()
		})
		p.Traffic.Busy(running, 400)
	}
	running.Finish(p.Context)
	p.judge(running.Connections)
}

// hangForLong has the load balancer's daemon of host i hang until the other owns all VIPs. A server that falls ill then is given no new connection.
func (p *pair) hangForLong(running *world.Load, i int) {
	name, other := world.LBName(i), world.LBName(3-i)
	p.Event(fmt.Sprintf("the load balancer's daemon of host %d hangs", i), func() {
		p.Daemons.LBs[name].Signal(syscall.SIGSTOP)
		p.Monitor.AwaitOwned(other, 2)
		p.Sicken(i, true, other)
	})
	p.Traffic.Busy(running, 20) // what is known is in the data path a moment later
	p.ill = interval{server: world.ServerName(i), begin: time.Now()}
	p.Traffic.Busy(running, 20)
	p.ill.end = time.Now()
	p.Event("it goes on", func() {
		p.Daemons.LBs[name].Signal(syscall.SIGCONT)
		p.Sicken(i, false, other)
		p.awaitEven()
	})
	p.Traffic.Busy(running, 40)
}

// traffic starts that of both VIPs.
func (p *pair) traffic(target func(*fleet.Service) string) *world.Load {
	var flows []traffic.Flow
	for _, service := range p.Fleet.Services {
		at := target(service)
		flows = append(flows, scenario.Downloads(at, downloads/2), scenario.Browsers(at, 10), scenario.Shorts(at, 20))
	}
	running := p.Traffic.Generate(flows...)
	p.Traffic.Busy(running, 400)
	return running
}

// awaitEven: each load balancer owns one of the two VIPs.
func (p *pair) awaitEven() {
	for i := 1; i <= 2; i++ {
		p.Monitor.AwaitOwned(world.LBName(i), 1)
	}
}

// expectAllWays: each host gives connections to its own server and to the other's.
func (p *pair) expectAllWays() {
	for i := 1; i <= 2; i++ {
		given := script.Must(p.Monitor.Dispatched(i))
		p.result.Expect(len(given) == 2 && !slices.Contains(given, 0), "the load balancers have given %v connections to %s", given, world.ServerName(i))
		counters := script.Must(p.Daemons.Client(world.ServerName(i)).Counters(p.Context))
		p.result.Expect(counters["decapsulated"] > 0, "the agent of %s has decapsulated nothing", world.ServerName(i))
	}
}

// judge: only those break whose server loses power while they live, and those that begin before that is known and are given to it.
func (p *pair) judge(connections []traffic.Connection) {
	cut, undue := p.broken(connections)
	for _, connection := range undue {
		p.result.Fail("a %s of server %q ended as %s at %.1f s of the first outage, after %.1f s: %s", connection.Flow, connection.Server, connection.Class, connection.Ended.Sub(p.off[0].begin).Seconds(), connection.Ended.Sub(connection.Started).Seconds(), connection.Detail)
	}
	for _, connection := range connections {
		if connection.Server == p.ill.server && connection.Started.After(p.ill.begin) && connection.Started.Before(p.ill.end) {
			p.result.Fail("a %s was given to %s, which had been unhealthy for %s", connection.Flow, connection.Server, connection.Started.Sub(p.ill.begin))
		}
	}
	p.result.Measure("connections_cut", float64(cut))
	p.result.Measure("vips_moved_ms", float64(slices.Max(p.moved).Milliseconds()))
}

// broken are how many connections have broken, and those of them whose server lived.
func (p *pair) broken(connections []traffic.Connection) (cut int, undue []traffic.Connection) {
	for _, connection := range connections {
		if connection.Class == traffic.Completed {
			continue
		}
		died := slices.ContainsFunc(p.off, func(o outage) bool {
			lived := connection.Started.Before(o.told) && connection.Ended.After(o.begin)
			return lived && (connection.Server == o.server || connection.Server == "")
		})
		if cut++; !died {
			undue = append(undue, connection)
		}
	}
	return cut, undue
}

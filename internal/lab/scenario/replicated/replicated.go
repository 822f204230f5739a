// Package replicated has load balancers keep the servers of connections that carry no cookie, in a table that is replicated (Anolis).
package replicated

import (
	"fmt"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "replicated", Deadline: 10 * time.Minute, Do: run,
		Promise: "UDP flows and TCP connections without timestamps keep their server while load balancers and servers come and go",
	},
	{
		Name: "unheard", Deadline: 5 * time.Minute, Do: runUnheard,
		Promise: "a load balancer that controllers do not hear, or whose daemon is dead, goes on with the UDP flows that routers send it, and is not ready",
	},
	{
		Name: "network-functions", Deadline: 10 * time.Minute, Do: runFunctions,
		Promise: "connections through NAT functions keep their function, both ways, while load balancers and functions come and go",
	},
}

// Implementation constants.
const (
	balancers   = 4
	lossPermill = 50               // of frames between load balancers
	ringWithin  = 30 * time.Second // that a change of the ring may take
	missedMax   = 2 * time.Second  // from a power cut until the others go on without it: they miss it within one
)

// run plays the same events with chains of two; with chains of one, and with what load balancers do alone, some connections break.
func run(run *scenario.Run) {
	play(run, world.Setup{Name: "chains of 2", Services: services(model.AffinityReplicated, model.FallbackReplicated)}, 2)
	play(run, world.Setup{Name: "chains of 1", Services: services(model.AffinityReplicated, model.FallbackReplicated), Baseline: true}, 1)
	play(run, world.Setup{Name: "second-chance", Services: services(model.AffinityHash, model.FallbackSecondChance), Baseline: true}, 0)
}

func services(udp model.Affinity, fallback model.Fallback) []*fleet.Service {
	web := scenario.CookieService(scenario.VIP4)
	web.Fallback = fallback
	dns := fleet.NewService("dns", "198.51.100.11")
	dns.Protocol, dns.Ports, dns.Affinity, dns.Fallback, dns.Dispatch = model.ProtocolUDP, []uint16{4000}, udp, model.FallbackHash, model.DispatchRR
	if udp == model.AffinityHash {
		dns.Dispatch = model.DispatchHash
	}
	return []*fleet.Service{web, dns}
}

// play is one trial. chain 0: there is no ring.
func play(run *scenario.Run, setup world.Setup, chain uint8) {
	setup.Topology = world.Topology{LBs: balancers, Servers: make([]world.ServerNode, 6), Management: true, Controllers: 1, EtcdMembers: 1,
		ClientSysctls: map[string]string{"net.ipv4.tcp_timestamps": "0"}}
	setup.Members = []int{1, 2, 3, 4}
	outcome := run.Trial(setup, func(t *world.Trial) { change(t, run.Result, chain) })
	if chain < 2 {
		return
	}
	run.Result.Measure("flows_throughout", float64(outcome.Throughout["udp"]))
	var asked, lost uint64
	for _, counters := range outcome.Counters {
		asked += counters["passed_on_to_peer"]
	}
	for _, losses := range outcome.Losses {
		lost += losses.DroppedRandom
	}
	run.Result.Expect(asked > 100, "load balancers have passed %d questions on", asked)
	run.Result.Expect(lost > 0, "nothing was lost between load balancers")
}

// change is the series of events.
func change(t *world.Trial, result *scenario.Result, chain uint8) {
	if chain > 0 {
		t.Fleet.Replicas = model.Replicas{Chain: chain, IdleTimeout: model.Duration(30 * time.Second)}
		t.Rollout.Apply()
	}
	on := func(numbers ...int) {
		if chain > 0 {
			awaitRing(t, numbers...)
		}
	}
	on(1, 2, 3, 4)
	t.Endpoints.StartEchoes(t.Fleet.Services[1].Target())
	running := t.Traffic.Generate(scenario.Downloads(t.Fleet.Target(), 30), scenario.Browsers(t.Fleet.Target(), 30), scenario.Shorts(t.Fleet.Target(), 40), datagrams(t))
	t.Traffic.Busy(running, 380)
	t.Series(running,
		world.Step{What: "add server s5", Do: func() { t.Pool.AddServer(5); t.Rollout.Apply() }},
		world.Step{What: "5 % are lost between load balancers", Do: func() { lose(t, lossPermill) }},
		world.Step{What: "remove server s1", Do: func() { t.Pool.RemoveServer(1); t.Rollout.Apply() }},
		world.Step{What: "lb1 loses its power", Do: func() {
			begin := time.Now()
			t.Failures.CrashLB(1)
			on(2, 3, 4)
			if took := loadmeter.Since(begin); chain > 0 {
				result.Measure("mended_seconds", world.Round(took))
			}
		}},
		world.Step{What: "add server s6", Do: func() { t.Pool.AddServer(6); t.Rollout.Apply() }},
		world.Step{What: "lb1 returns", Do: func() { t.Failures.ReturnLB(1); on(1, 2, 3, 4) }},
		world.Step{What: "lb2 is drained, and its power switched off", Do: func() {
			if chain > 0 {
				script.Must(t.Operator.Ctl("replica", "drain", world.LBName(2), "--wait", "--timeout", ringWithin.String()))
			}
			t.Failures.CrashLB(2)
		}},
		world.Step{What: "remove server s2", Do: func() { t.Pool.RemoveServer(2); t.Rollout.Apply() }},
		world.Step{What: "lb2 returns", Do: func() {
			t.Failures.ReturnLB(2)
			if chain > 0 {
				script.Must(t.Operator.Ctl("replica", "undrain", world.LBName(2)))
			}
			on(1, 2, 3, 4)
		}},
		world.Step{What: "lb3 loses its power", Do: func() { t.Failures.CrashLB(3); on(1, 2, 4) }},
		world.Step{What: "nothing is lost any more", Do: func() { lose(t, 0) }})
}

// datagrams are questions and answers of flows that speak now and then, and send again what was not answered.
func datagrams(t *world.Trial) traffic.Flow {
	return traffic.Flow{Name: "udp", Target: t.Fleet.Services[1].Target(), UDP: true, Count: 300, Concurrent: 300, PerSecond: 150, Repeat: true, Again: 500 * time.Millisecond,
		Requests: []traffic.Request{{Bytes: 100, Pause: 700 * time.Millisecond}, {Bytes: 900, Pause: 1500 * time.Millisecond}}}
}

// lose loses frames on their way to load balancers from the fabric: what others of them say.
func lose(t *world.Trial, permille uint32) {
	for i := range balancers {
		t.Network.Lose(world.RouterNode, world.LBName(i+1)+"-fabric", link.Faults{DropPermille: permille})
	}
}

// awaitRing waits until these are on the ring, and their entries are where they should be.
func awaitRing(t *world.Trial, numbers ...int) { t.Operator.AwaitRing(ringWithin, numbers...) }

// watchRing returns what waits until these load balancers forward by another ring, without one, and returns when that was seen.
func watchRing(t *world.Trial, without int, others ...int) (changed func() time.Time) {
	ring := func(i int) *api.ReplicaStatus {
		var status api.LBStatus
		script.Check(t.Daemons.Client(world.LBName(i)).Get(t.Context, api.PathStatus, &status))
		return status.Replicas
	}
	before := map[int]uint32{}
	for _, i := range others {
		before[i] = ring(i).Version
	}
	return func() time.Time {
		await.Promised(t.Context, ringWithin, world.LBName(without)+" is off the ring", func() error {
			for _, i := range others {
				now := ring(i)
				on := slices.ContainsFunc(now.Peers, func(p api.ReplicaPeer) bool { return p.Name == world.LBName(without) && p.OnRing })
				if on || now.Version == before[i] {
					return fmt.Errorf("%s goes by version %d", world.LBName(i), now.Version)
				}
			}
			return nil
		})
		return time.Now()
	}
}

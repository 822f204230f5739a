// Package pool changes the pool, the load balancers or the processes under steady traffic.
package pool

import (
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "idle", Deadline: 3 * time.Minute, Do: runIdle,
		Promise: "connections that were silent for long go on after the pool has changed",
	},
	{
		Name: "no-timestamps", Deadline: 4 * time.Minute, Do: runNoTimestamps,
		Promise: "clients without TCP timestamps keep their servers by second chance",
	},
	{
		Name: "syncookies", Deadline: 2 * time.Minute, Do: runSYNCookies,
		Promise: "servers that answer every SYN with a SYN cookie keep their connections",
	},
	{
		Name: "upgrade", Deadline: 3 * time.Minute, Do: runUpgrade,
		Promise: "every process is stopped, killed and replaced under load: no connection breaks",
	},
}

// runNoTimestamps: clients that cannot carry a cookie keep their servers by second chance.
func runNoTimestamps(run *scenario.Run) {
	what := world.Setup{
		Name: "cookie", Members: []int{1, 2, 3, 4}, Services: []*fleet.Service{scenario.CookieService(scenario.VIP4)},
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 5),
			ClientSysctls: map[string]string{"net.ipv4.tcp_timestamps": "0"}},
	}
	run.Trial(what, poolChanges)
	what.Name, what.Baseline, what.Services = "hash", true, []*fleet.Service{scenario.HashService(scenario.VIP4)}
	run.Trial(what, poolChanges)
}

func poolChanges(t *world.Trial) {
	running := scenario.Steady(t)
	t.Series(running,
		world.Step{What: "add server s5", Do: func() { t.Pool.AddServer(5); t.Rollout.Apply() }},
		world.Step{What: "drain server s1", Do: func() { t.Fleet.Services[0].Drain(1); t.Rollout.Apply() }},
		world.Step{What: "kill lb1", Do: func() { t.Failures.CrashLB(1) }},
		world.Step{What: "lb1 returns", Do: func() { t.Failures.ReturnLB(1) }})
}

// runUpgrade: every process is replaced under load, politely and not.
func runUpgrade(run *scenario.Run) {
	run.Trial(world.Setup{
		Name: "cookie", Services: []*fleet.Service{scenario.CookieService(scenario.VIP4)}, Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 3)},
	}, func(t *world.Trial) {
		running := scenario.Steady(t)
		for _, group := range []struct {
			role    string
			daemons map[string]*world.Daemon
		}{{"lb", t.Daemons.LBs}, {"agent", t.Daemons.Agents}} {
			for i := range len(group.daemons) {
				node := world.ServerName(i + 1)
				if group.role == "lb" {
					node = world.LBName(i + 1)
				}
				scenario.ReplaceDaemon(t, running, group.role, node, group.daemons)
			}
		}
	})
}

// runIdle: connections that say nothing for a long time go on where they were, though the pool changed.
func runIdle(run *scenario.Run) {
	length := run.Length(20 * time.Second)
	outcome := run.Trial(world.Setup{
		Name: "cookie", Members: []int{1, 2, 3}, Services: []*fleet.Service{scenario.CookieService(scenario.VIP4)},
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 4)},
	}, func(t *world.Trial) {
		idle := t.Traffic.Generate(traffic.Flow{
			Name: "idle", Target: t.Fleet.Target(), Count: 100, Concurrent: 100, PerSecond: 100,
			Requests: []traffic.Request{{Path: world.PathName}, {Path: world.PathBlob, Bytes: 100_000, Pause: length},
				{Path: world.PathUpload + "idle", Bytes: 100_000, Upload: true}},
		})
		t.Traffic.Until(idle, 20*time.Second, "all connections are idle", func(p traffic.Progress) bool {
			return p.OpenByServer["s1"]+p.OpenByServer["s2"]+p.OpenByServer["s3"] == 100
		})
		t.Change("add server s4", func() { t.Pool.AddServer(4) })
		t.Change("drain server s1", func() { t.Fleet.Services[0].Drain(1) })
		idle.Wait(t.Context)
	})
	run.Result.Expect(outcome.LongestSecond >= 0.75*length.Seconds(), "the longest connection lasted only %.0f s", outcome.LongestSecond)
}

// runSYNCookies: servers that answer every SYN with a SYN cookie.
func runSYNCookies(run *scenario.Run) {
	outcome := run.Trial(world.Setup{
		Name: "cookie", Members: []int{1, 2, 3, 4}, Services: []*fleet.Service{scenario.CookieService(scenario.VIP4)},
		Topology: world.Topology{LBs: 2, Servers: scenario.Servers(5, map[string]string{"net.ipv4.tcp_syncookies": "2"})},
	}, poolChanges)
	var received uint64
	for _, counters := range outcome.TCP {
		received += counters["SyncookiesRecv"]
	}
	run.Result.Expect(received > 0, "no server accepted a SYN cookie")
}

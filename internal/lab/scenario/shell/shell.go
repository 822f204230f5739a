// Package shell has servers accept connections or pass them on, and changes the pool under those connections (SHELL III, VI).
package shell

import (
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "shell", Deadline: 5 * time.Minute, Do: runShell,
		Promise: "candidates accept or pass on: 3 reconfigurations break some downloads without history, none with it; ten and a lost load balancer break none with cookies",
	}, {
		Name: "shell-resets", Deadline: 2 * time.Minute, Do: runResets,
		Promise: "60 reconfigurations of 20 servers: packets lose exactly the connections that they lose in the simulator, fewer with a longer history",
	},
}

// The experiment of SHELL VI: downloads that go on while the pool is reconfigured.
const (
	servers   = 4
	downloads = 60
	// threshold of load from which servers pass on: below it is about half of the downloads, so that both candidates accept some.
	threshold = downloads / servers / 2
	within    = 30 * time.Second
)

// service offers connections to two candidates and remembers as many owners of their places.
func service(affinity model.Affinity, history uint8) *fleet.Service {
	one := scenario.PolicyService(scenario.VIP4, model.DispatchChoices)
	one.Affinity = affinity
	one.Choices = model.Choices{History: history, Accept: model.Accept{Policy: model.AcceptStatic, Threshold: threshold}}
	return one
}

func runShell(run *scenario.Run) {
	for _, one := range []struct {
		clients  string
		affinity model.Affinity
		forward  model.Forward
		sysctls  map[string]string
	}{
		{"history", model.AffinityHistory, model.ForwardIPIP, nil}, // SHELL as published, but for its segments
		{"history-srv6", model.AffinityHistory, model.ForwardSRv6, nil},
		{"no-timestamps", model.AffinityCookie, model.ForwardIPIP, map[string]string{"net.ipv4.tcp_timestamps": "0"}},
	} {
		for _, depth := range []uint8{1, 3} {
			name := fmt.Sprintf("%s-depth-%d", one.clients, depth)
			with := service(one.affinity, depth)
			with.Forward, with.CrossFamily = one.forward, one.forward == model.ForwardSRv6 // whose segments are IPv6 addresses
			outcome := run.Trial(world.Setup{
				Name: name, Services: []*fleet.Service{with}, Cuts: depth == 1,
				Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, servers), ClientSysctls: one.sysctls},
			}, reconfigured)
			run.Result.Measure("broken_"+name, float64(outcome.Broken))
			run.Result.Expect(depth > 1 || outcome.Broken > 0, "%s: nothing broke: the events prove nothing", name)
			if one.affinity == model.AffinityHistory {
				bothAccepted(run, outcome)
				run.Result.Expect(total(outcome, "forwarded_by_history") > 0, "%s: no packet went by its column", name)
			}
		}
	}
	bothAccepted(run, run.Trial(world.Setup{
		Name: "cookie", Services: []*fleet.Service{service(model.AffinityCookie, 1)}, Members: []int{1, 2, 3, 4},
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 2*servers)},
	}, renewed))
}

// bothAccepted expects that first and second candidates have accepted connections: else the columns of the table are not tested.
func bothAccepted(run *scenario.Run, outcome world.Result) {
	first, second := total(outcome, "accepted_first"), total(outcome, "accepted_second")
	run.Result.Expect(first > 0 && second > 0, "%s: first candidates accepted %d connections, second candidates %d", outcome.Name, first, second)
}

// total adds up what all nodes counted by a verdict.
func total(outcome world.Result, verdict string) (packets uint64) {
	for _, counters := range outcome.Counters {
		packets += counters[verdict]
	}
	return packets
}

// started waits until every download has its server.
func started(t *world.Trial) *world.Load {
	running := t.Traffic.Generate(scenario.Downloads(t.Fleet.Target(), downloads))
	t.Traffic.Until(running, within, "all downloads are under way", func(p traffic.Progress) bool {
		return p.Served() == downloads
	})
	return running
}

// goneOn waits until the downloads that are left have received more.
func goneOn(t *world.Trial, running *world.Load) {
	const each = 64 << 10
	before := running.Now().Bytes
	t.Traffic.Until(running, within, "the downloads have gone on", func(p traffic.Progress) bool { return p.Open == 0 || p.Bytes >= before+int64(p.Open)*each })
}

// reconfigured changes the pool three times under downloads. A place has three owners in that time at most: the pool's tables are those of
// all servers, of all but the first, of all again, of all but the last. So three owners of history name every server.
func reconfigured(t *world.Trial) {
	running := started(t)
	for _, one := range []struct {
		what string
		edit func()
	}{
		{"drain server s1", func() { t.Pool.Drain(1) }},
		{"server s1 comes back", func() { t.Pool.Activate(1) }},
		{fmt.Sprintf("drain server s%d", servers), func() { t.Pool.Drain(servers) }},
	} {
		t.Change(one.what, one.edit)
		goneOn(t, running)
	}
}

// renewed replaces every server, one by one, and a load balancer, under downloads and short connections.
func renewed(t *world.Trial) {
	running := started(t)
	t.Traffic.Generate(scenario.Shorts(t.Fleet.Target(), 40))
	for _, one := range []struct {
		what string
		edit func(int)
		i    int
	}{
		{"add", t.Pool.AddServer, 5}, {"drain", t.Pool.Drain, 1}, {"remove", t.Pool.RemoveServer, 1}, {"add", t.Pool.AddServer, 6}, {"drain", t.Pool.Drain, 2},
		{"kill", nil, 1},
		{"add", t.Pool.AddServer, 7}, {"remove", t.Pool.RemoveServer, 2}, {"drain", t.Pool.Drain, 3}, {"add", t.Pool.AddServer, 8}, {"drain", t.Pool.Drain, 4},
	} {
		if one.edit == nil {
			t.Event("kill lb1", func() { t.Failures.CrashLB(1) })
		} else {
			t.Change(fmt.Sprintf("%s server s%d", one.what, one.i), func() { one.edit(one.i) })
		}
		goneOn(t, running)
	}
	t.Event("lb1 returns", func() { t.Failures.ReturnLB(1) })
	goneOn(t, running)
}

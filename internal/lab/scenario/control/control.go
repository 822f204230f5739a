// Package control loses controllers, etcd members and the way to them while the fleet changes under load.
package control

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "controller-loss", Deadline: 5 * time.Minute, Do: runControllerLoss,
		Promise: "controllers, etcd members and the way to them are lost: no connection breaks, no server is stale",
	},
	{
		Name: "sources", Deadline: 20 * time.Minute, Do: runSources,
		Promise: "the DNS, Consul or a file names the servers, and fails: no connection breaks, the last servers stay",
	},
	{
		Name: "alone", Deadline: 4 * time.Minute, Do: runAlone,
		Promise: "load balancers that no controller judges for take out servers that fail, and hand back without flapping",
	},
	{
		Name: "power", Deadline: 4 * time.Minute, Do: runPower,
		Promise: "machines lose power that are load balancer, server and controller: whoever is left gives the dead servers nothing new after 8 s, or 10 s where no controller is left that can judge",
	},
}

// Implementation constants.
const (
	partitionShort = 5 * time.Second // without the controllers; the long form takes a duration
	takeOverMax    = 3 * time.Second // from the death of a controller until another weighs its services
)

func runControllerLoss(run *scenario.Run) {
	cut := run.Length(partitionShort)
	run.Trial(world.Setup{
		Name: "controllers", Services: []*fleet.Service{scenario.ControlService()}, Members: []int{1, 2, 3, 4, 5},
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 8), Management: true, Controllers: 3, EtcdMembers: 3},
	}, func(t *world.Trial) { loseControl(t, run.Result, cut) })
}

// loseControl is the series of events.
func loseControl(t *world.Trial, result *scenario.Result, cut time.Duration) {
	running := t.Traffic.Generate(scenario.ShortLived(t.Fleet.Target(), 30), scenario.Downloads(t.Fleet.Target(), 20), scenario.Browsers(t.Fleet.Target(), 20), scenario.Shorts(t.Fleet.Target(), 40))
	t.Traffic.Busy(running, 100)
	t.Monitor.AwaitWeights(world.ResumeMax, world.LBName(1), world.LBName(2))
	awaitLimits(t)
	t.Series(running,
		world.Step{What: "server s1 becomes unhealthy", Do: func() { t.Sicken(1, true, world.LBName(1), world.LBName(2)) }},
		world.Step{What: "server s1 recovers", Do: func() { t.Sicken(1, false, world.LBName(1), world.LBName(2)) }},
		world.Step{What: "kill controller c1, add server s6", Do: func() { replaceController(t, result, 1, func() { t.Pool.AddServer(6) }) }},
		world.Step{What: "kill controller c2, drain server s1", Do: func() { replaceController(t, result, 2, func() { t.Pool.Drain(1) }) }},
		world.Step{What: "kill controller c3, remove server s1", Do: func() { replaceController(t, result, 3, func() { t.Pool.RemoveServer(1) }) }},
		world.Step{What: "kill etcd member e1, add server s7", Do: func() {
			t.Controllers.Members[world.MemberName(1)].Kill()
			t.Pool.AddServer(7)
			t.Rollout.Apply()
			t.Controllers.StartMember(world.MemberName(1))
		}},
		world.Step{What: fmt.Sprintf("lb2 is without controllers for %v, servers s2 to s4 and s8 change", cut), Do: func() { changeWithout(t, result, 2, cut) }},
		world.Step{What: "kill all controllers", Do: func() {
			for _, controller := range t.Controllers.Running {
				controller.Kill()
			}
		}},
		world.Step{What: "kill and restart lb1's daemon without any controller", Do: func() { restartAlone(t, 1) }},
		world.Step{What: "the controllers return, remove server s3", Do: func() { returnControl(t, result) }},
		world.Step{What: "server s5 becomes unhealthy", Do: func() { t.Sicken(5, true, world.LBName(1), world.LBName(2)) }},
		world.Step{What: "server s5 recovers", Do: func() { t.Sicken(5, false, world.LBName(1), world.LBName(2)) }},
		world.Step{What: "the fleet is what it should be everywhere", Do: func() {
			script.Check(errors.Join(t.Rollout.Differs(world.LBName(1)), t.Rollout.Differs(world.LBName(2))))
		}},
		world.Step{What: "no agent has dropped a load balancer's tunnel", Do: func() { expectNoOutsiders(t, result) }})
}

// awaitLimits waits until agents drop tunnels of others than the load balancers that controllers tell.
func awaitLimits(t *world.Trial) {
	for node := range t.Daemons.Agents {
		await.Until(t.Context, await.Deadline, node+" takes tunnels of both load balancers alone", func() error {
			status, err := t.Monitor.AgentStatus(node)
			if err == nil && !status.Tunnels.Limited {
				err = errors.New(status.Tunnels.Open)
			}
			return err
		})
	}
}

// expectNoOutsiders sees that agents go on dropping the tunnels of others than load balancers, and have dropped none.
func expectNoOutsiders(t *world.Trial, result *scenario.Result) {
	for node := range t.Daemons.Agents {
		status := script.Must(t.Monitor.AgentStatus(node))
		result.Expect(status.Tunnels.Limited, "%s takes tunnels of anybody: %s", node, status.Tunnels.Open)
		counters := script.Must(t.Daemons.Client(node).Counters(t.Context))
		dropped := counters["dropped_foreign_source"]
		result.Expect(dropped == 0, "%s has dropped %d packets in tunnels, the last from %s", node, dropped, status.Tunnels.Last)
	}
}

// replaceController kills a controller, changes the fleet by the others, and starts it again. It measures how long weights stood
// still at the load balancers.
func replaceController(t *world.Trial, result *scenario.Result, i int, edit func()) {
	node := world.ControllerName(i)
	t.Controllers.Running[node].Kill()
	took := longestStandstill(t, world.LBName(1))
	t.Lab.Progress("%s: weights stood still for %v after the death of %s", t.Setup.Name, took.Round(time.Millisecond), node)
	result.Measure("take_over_seconds_max", max(result.Measurements["take_over_seconds_max"], world.Round(took)))
	result.Expect(took <= takeOverMax, "weights stood still for %v after the death of %s", took, node)
	edit()
	t.Rollout.Apply()
	t.Controllers.Start(node)
	t.Controllers.Await(node)
}

// changeWithout cuts a load balancer off the controllers, changes the fleet, and sees what it knows when that is over.
func changeWithout(t *world.Trial, result *scenario.Result, i int, cut time.Duration) {
	node := world.LBName(i)
	t.Network.Partition(node, true)
	t.Daemons.LBs[node].Cut = true
	begin := time.Now()
	t.Pool.AddServer(8)
	t.Pool.RemoveServer(2)
	t.Pool.Drain(3)
	t.Rollout.Apply()
	t.Sicken(4, true, world.LBName(1))
	t.AtTime(begin.Add(cut), "the way to the controllers is back", func() {
		result.Expect(t.Rollout.Differs(node) != nil, "%s knew of changes while it was cut off", node)
		t.Daemons.LBs[node].Cut = false
		t.Network.Partition(node, false)
	})
	resumes(result, "partition", func() {
		t.Rollout.AwaitFleet(node)
		t.Monitor.AwaitHealth(4, true, node)
		t.Monitor.AwaitWeights(world.ResumeMax, node)
		t.Sicken(4, false, world.LBName(1), node)
	})
}

// restartAlone kills a load balancer's daemon and starts it again while there is no controller: it goes on with its last state.
func restartAlone(t *world.Trial, i int) {
	node := world.LBName(i)
	t.Daemons.LBs[node].Kill()
	t.Daemons.LBs[node] = t.Daemons.Start("lb", node)
	t.Rollout.AwaitFleet(node)
}

// returnControl starts the controllers that were killed.
func returnControl(t *world.Trial, result *scenario.Result) {
	for node := range maps.Clone(t.Controllers.Running) {
		t.Controllers.Start(node)
	}
	resumes(result, "all_controllers", func() {
		for node := range t.Controllers.Running {
			t.Controllers.Await(node)
		}
		t.Pool.RemoveServer(3)
		t.Rollout.Apply()
		t.Monitor.AwaitWeights(world.ResumeMax, world.LBName(1), world.LBName(2))
	})
}

// resumes measures how long it takes until all is as it should be.
func resumes(result *scenario.Result, what string, wait func()) {
	begin := time.Now()
	wait()
	took := loadmeter.Since(begin)
	result.Measure("resume_seconds_after_"+what, world.Round(took))
	result.Expect(took <= world.ResumeMax, "it took %v until weights and health followed after %s", took, what)
}

// standstillChanges are as many as make sure that weights follow again: those on their way when a controller died are fewer.
const standstillChanges = 8

// longestStandstill watches the weights of a load balancer until they have changed a few times, and tells the longest time that
// they did not, in machine time.
func longestStandstill(t *world.Trial, lb string) (longest time.Duration) {
	before := script.Must(t.Monitor.Weights(lb))
	last := time.Now()
	for range standstillChanges {
		t.Monitor.AwaitNewWeights(lb, before, world.ResumeMax)
		longest, last = max(longest, loadmeter.Since(last)), time.Now()
		before = script.Must(t.Monitor.Weights(lb))
	}
	return longest
}

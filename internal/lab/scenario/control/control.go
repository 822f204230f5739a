// Package control loses controllers, etcd members and the way to them while the fleet changes under load.
package control

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/pace"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "controller-loss", Deadline: 5 * time.Minute, Do: runControllerLoss,
		Promise: "controllers, etcd members and the way to them are lost: no connection breaks, no server is stale",
	},
}

// Implementation constants.
const (
	partitionShort = 5 * time.Second // without the controllers; the long form takes a duration
	takeOverMax    = 3 * time.Second // from the death of a controller until another weighs its services
)

func runControllerLoss(run *scenario.Run) error {
	cut := run.Length(partitionShort)
	outcome, err := run.Trial(world.Setup{
		Name: "controllers", Services: []*fleet.Service{scenario.ControlService()}, Members: []int{1, 2, 3, 4, 5},
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 8), Management: true, Controllers: 3, EtcdMembers: 3},
	}, func(t *world.Trial) error { return loseControl(t, run.Result, cut) })
	if err != nil {
		return err
	}
	run.Unbroken(outcome)
	return nil
}

// loseControl is the series of events.
func loseControl(t *world.Trial, result *scenario.Result, cut time.Duration) error {
	running, err := t.Generate(scenario.ShortLived(t.Target(), 30), scenario.Downloads(t.Target(), 20), scenario.Browsers(t.Target(), 20), scenario.Shorts(t.Target(), 40))
	if err != nil {
		return err
	}
	if err := t.Busy(running, 100); err != nil {
		return err
	}
	if err := t.AwaitWeights(world.ResumeMax, world.LBName(1), world.LBName(2)); err != nil {
		return err
	}
	if err := awaitLimits(t); err != nil {
		return err
	}
	return t.Series(running,
		world.Step{What: "server s1 becomes unhealthy", Do: func() error { return t.Sicken(1, true, world.LBName(1), world.LBName(2)) }},
		world.Step{What: "server s1 recovers", Do: func() error { return t.Sicken(1, false, world.LBName(1), world.LBName(2)) }},
		world.Step{What: "kill controller c1, add server s6", Do: func() error { return replaceController(t, result, 1, func() { t.AddServer(6) }) }},
		world.Step{What: "kill controller c2, drain server s1", Do: func() error { return replaceController(t, result, 2, func() { t.Drain(1) }) }},
		world.Step{What: "kill controller c3, remove server s1", Do: func() error { return replaceController(t, result, 3, func() { t.RemoveServer(1) }) }},
		world.Step{What: "kill etcd member e1, add server s7", Do: func() error {
			t.Members[world.MemberName(1)].Kill()
			t.AddServer(7)
			return errors.Join(t.Apply(), t.StartMember(world.MemberName(1)))
		}},
		world.Step{What: fmt.Sprintf("lb2 is without controllers for %v, servers s2 to s4 and s8 change", cut), Do: func() error { return changeWithout(t, result, 2, cut) }},
		world.Step{What: "kill all controllers", Do: func() error {
			for _, controller := range t.Controllers {
				controller.Kill()
			}
			return nil
		}},
		world.Step{What: "kill and restart lb1's daemon without any controller", Do: func() error { return restartAlone(t, 1) }},
		world.Step{What: "the controllers return, remove server s3", Do: func() error { return returnControl(t, result) }},
		world.Step{What: "server s5 becomes unhealthy", Do: func() error { return t.Sicken(5, true, world.LBName(1), world.LBName(2)) }},
		world.Step{What: "server s5 recovers", Do: func() error { return t.Sicken(5, false, world.LBName(1), world.LBName(2)) }},
		world.Step{What: "the fleet is what it should be everywhere", Do: func() error {
			return errors.Join(t.Differs(world.LBName(1)), t.Differs(world.LBName(2)))
		}},
		world.Step{What: "no agent has dropped a load balancer's tunnel", Do: func() error { return expectNoStrangers(t, result) }})
}

// awaitLimits waits until agents drop tunnels of others than the load balancers that controllers tell.
func awaitLimits(t *world.Trial) error {
	for node := range t.Agents {
		err := world.Await(t.Context, world.DaemonDeadline, node+" takes tunnels of both load balancers alone", func() error {
			status, err := t.AgentStatus(node)
			if err == nil && !status.Tunnels.Limited {
				err = errors.New(status.Tunnels.Open)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// expectNoStrangers sees that agents go on dropping strangers' tunnels, and have dropped none.
func expectNoStrangers(t *world.Trial, result *scenario.Result) error {
	for node := range t.Agents {
		status, err := t.AgentStatus(node)
		if err != nil {
			return err
		}
		result.Expect(status.Tunnels.Limited, "%s takes tunnels of anybody: %s", node, status.Tunnels.Open)
		counters, err := t.Client(node).Counters(t.Context)
		if err != nil {
			return err
		}
		dropped := counters["dropped_foreign_source"]
		result.Expect(dropped == 0, "%s has dropped %d packets in tunnels, the last from %s", node, dropped, status.Tunnels.Last)
	}
	return nil
}

// replaceController kills a controller, changes the fleet by the others, and starts it again. It measures how long weights stood
// still at the load balancers.
func replaceController(t *world.Trial, result *scenario.Result, i int, edit func()) error {
	node := world.ControllerName(i)
	t.Controllers[node].Kill()
	took, err := longestStandstill(t, world.LBName(1))
	if err != nil {
		return err
	}
	t.Progress("%s: weights stood still for %v after the death of %s", t.Setup.Name, took.Round(time.Millisecond), node)
	result.Measure("take_over_seconds_max", max(result.Measurements["take_over_seconds_max"], world.Round(took)))
	result.Expect(took <= takeOverMax, "weights stood still for %v after the death of %s", took, node)
	edit()
	if err := t.Apply(); err != nil {
		return err
	}
	if err := t.StartController(node); err != nil {
		return err
	}
	return t.AwaitController(node)
}

// changeWithout cuts a load balancer off the controllers, changes the fleet, and sees what it knows when that is over.
func changeWithout(t *world.Trial, result *scenario.Result, i int, cut time.Duration) error {
	node := world.LBName(i)
	if err := t.Partition(node, true); err != nil {
		return err
	}
	t.LBs[node].Cut = true
	begin := time.Now()
	t.AddServer(8)
	t.RemoveServer(2)
	t.Drain(3)
	if err := t.Apply(); err != nil {
		return err
	}
	if err := t.Sicken(4, true, world.LBName(1)); err != nil {
		return err
	}
	if err := t.AtTime(begin.Add(cut), "the way to the controllers is back", func() error {
		result.Expect(t.Differs(node) != nil, "%s knew of changes while it was cut off", node)
		t.LBs[node].Cut = false
		return t.Partition(node, false)
	}); err != nil {
		return err
	}
	return resumes(t, result, "partition", func() error {
		return errors.Join(t.AwaitFleet(node), t.AwaitHealth(4, true, node), t.AwaitWeights(world.ResumeMax, node), t.Sicken(4, false, world.LBName(1), node))
	})
}

// restartAlone kills a load balancer's daemon and starts it again while there is no controller: it goes on with its last state.
func restartAlone(t *world.Trial, i int) error {
	node := world.LBName(i)
	t.LBs[node].Kill()
	var err error
	if t.LBs[node], err = t.StartDaemon("lb", node); err != nil {
		return err
	}
	return t.AwaitFleet(node)
}

// returnControl starts the controllers that were killed.
func returnControl(t *world.Trial, result *scenario.Result) error {
	for node := range maps.Clone(t.Controllers) {
		if err := t.StartController(node); err != nil {
			return err
		}
	}
	return resumes(t, result, "all_controllers", func() error {
		for node := range t.Controllers {
			if err := t.AwaitController(node); err != nil {
				return err
			}
		}
		t.RemoveServer(3)
		return errors.Join(t.Apply(), t.AwaitWeights(world.ResumeMax, world.LBName(1), world.LBName(2)))
	})
}

// resumes measures how long it takes until all is as it should be.
func resumes(t *world.Trial, result *scenario.Result, what string, wait func() error) error {
	begin := time.Now()
	if err := wait(); err != nil {
		return err
	}
	took := pace.Since(begin)
	result.Measure("resume_seconds_after_"+what, world.Round(took))
	result.Expect(took <= world.ResumeMax, "it took %v until weights and health followed after %s", took, what)
	return nil
}

// standstillChanges are as many as make sure that weights follow again: those on their way when a controller died are fewer.
const standstillChanges = 8

// longestStandstill watches the weights of a load balancer until they have changed a few times, and tells the longest time that
// they did not, in machine time.
func longestStandstill(t *world.Trial, lb string) (longest time.Duration, err error) {
	before, err := t.Weights(lb)
	if err != nil {
		return 0, err
	}
	last := time.Now()
	for range standstillChanges {
		if err := t.AwaitNewWeights(lb, before, world.ResumeMax); err != nil {
			return 0, err
		}
		longest, last = max(longest, pace.Since(last)), time.Now()
		if before, err = t.Weights(lb); err != nil {
			return 0, err
		}
	}
	return longest, nil
}

// Package through has answers pass a load balancer, which writes the cookies; another one takes over in mid-connection.
package through

import (
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "return-through", Deadline: 4 * time.Minute, Do: runReturnThrough,
		Promise: "answers by the LB: another one takes over in mid-connection",
	},
}

// runReturnThrough: the cookie is the load balancer's work, another one takes over in mid-connection.
func runReturnThrough(run *scenario.Run) {
	for _, forward := range []model.Forward{model.ForwardNAT, model.ForwardL2} {
		run.Trial(world.Setup{
			Name: forward.String(), NoAgents: true, Clocks: true, Services: []*fleet.Service{scenario.ThroughService(forward)}, Members: []int{1, 2, 3},
			Topology: world.Topology{LBs: 2, AnswersThrough: true,
				Servers: scenario.Servers(4, map[string]string{"net.ipv4.tcp_timestamps": "2"})},
		}, throughChanges)
	}
	run.Trial(world.Setup{
		Name: "default timestamps", NoAgents: true, Services: []*fleet.Service{scenario.ThroughService(model.ForwardNAT)},
		Topology: world.Topology{LBs: 2, AnswersThrough: true,
			Servers: scenario.Servers(3, map[string]string{"net.ipv4.tcp_timestamps": "1"})},
	}, throughTakeOver)
}

func throughChanges(t *world.Trial) {
	running := scenario.Steady(t)
	t.Series(running,
		world.Step{What: "add server s4", Do: func() { t.Pool.AddServer(4); t.Rollout.Apply() }},
		world.Step{What: "drain server s1", Do: func() { t.Fleet.Services[0].Drain(1); t.Rollout.Apply() }},
		world.Step{What: "kill lb1, lb2 takes over", Do: func() { takeOver(t, 1, 2) }},
		world.Step{What: "lb1 returns", Do: func() { t.Failures.ReturnLB(1) }})
}

func throughTakeOver(t *world.Trial) {
	running := scenario.Steady(t)
	t.Series(running, world.Step{What: "kill lb1, lb2 takes over", Do: func() { takeOver(t, 1, 2) }})
}

// takeOver crashes one LB and leads the servers' answers by the other, as their gateway protocol would.
func takeOver(t *world.Trial, from, to int) {
	t.Failures.CrashLB(from)
	t.Routes.AnswerByLB(to)
}

// restart: applications die and come back, under policies that choose by open connections.
package health

import (
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	restartServers = 3
	restartOpen    = 24  // connections at once, of each service
	restartSettle  = 90  // connections after the return that are not looked at
	restartWatched = 300 // those that are
	minRestart     = 0.6 // of its fair share that the server has to get of these
	maxRestart     = 1.7
	openWithin     = 15 * time.Second
	emptyMax       = time.Minute // until estimates are empty when all connections have ended
)

// restartServices have the two policies that choose by open connections.
func restartServices() []*fleet.Service {
	least, p2c := scenario.PolicyService(scenario.VIP4, model.DispatchLeast), scenario.PolicyService("198.51.100.11", model.DispatchP2C)
	least.Name, p2c.Name = "least", "p2c"
	for _, one := range []*fleet.Service{least, p2c} {
		one.Health = world.Checks(model.CheckTCP)
	}
	return []*fleet.Service{least, p2c}
}

func runRestart(run *scenario.Run) {
	topology := world.Topology{LBs: 1, Servers: make([]world.ServerNode, restartServers)}
	run.Trial(world.Setup{Name: "file", Cuts: true, Topology: topology, Services: restartServices()}, func(t *world.Trial) { restart(t, run.Result, false) })
	topology.LBs, topology.Management, topology.Controllers, topology.EtcdMembers = 2, true, 1, 1
	run.Trial(world.Setup{Name: "controllers", Cuts: true, Topology: topology, Services: restartServices()}, func(t *world.Trial) { restart(t, run.Result, true) })
}

// restart kills the last server's application under load, starts it again, and sees how many connections come to it then.
// counted: agents' counts reach the load balancers.
func restart(t *world.Trial, result *scenario.Result, counted bool) {
	var lbs []string
	for i := range t.Network.LBs {
		lbs = append(lbs, world.LBName(i+1))
	}
	loads := map[string]*world.Load{}
	for _, one := range t.Fleet.Services {
		loads[one.Name] = t.Traffic.Generate(traffic.Flow{Name: one.Name, Target: one.Target(), Concurrent: restartOpen, PerSecond: 100,
			Requests: []traffic.Request{{Path: world.PathSlow(256 << 10), Bytes: 320 << 10}}})
	}
	busy := func(connections int) {
		for _, running := range loads {
			t.Traffic.Busy(running, connections)
		}
	}
	busy(100)
	for name := range loads {
		await.Until(t.Context, openWithin, "load balancers' estimates have most connections of "+name, func() error {
			open, err := t.Monitor.Estimated(name, lbs...)
			if err == nil && open < restartOpen/2 {
				err = fmt.Errorf("%d of %d", open, restartOpen)
			}
			return err
		})
	}
	t.Event("the application of s3 is killed", func() {
		t.Servers.Kill(restartServers)
		t.Monitor.AwaitHealth(restartServers, true, lbs...)
	})
	busy(100)
	t.Event("it is started again", func() {
		t.Servers.Restart(restartServers)
		t.Monitor.AwaitHealth(restartServers, false, lbs...)
	})
	busy(restartSettle)
	from := time.Now()
	busy(restartWatched)
	to := time.Now()
	for name, running := range loads {
		running.Finish(t.Context)
		began, all := map[string]int{}, 0
		for _, connection := range running.Connections {
			if connection.Started.After(from) && connection.Started.Before(to) {
				result.Expect(connection.Class == traffic.Completed, "%s: a connection to %q ended as %s after the return: %s", name, connection.Server, connection.Class, connection.Detail)
				began[connection.Server]++
				all++
			}
		}
		part := float64(began[world.ServerName(restartServers)]) / float64(all) * restartServers
		t.Lab.Progress("%s: %s: connections after the return: %v", t.Setup.Name, name, began)
		result.Measure(t.Setup.Name+"_"+name+"_part_of_fair_share", part)
		result.Expect(part >= minRestart && part <= maxRestart, "%s: the server that came back got %.2f of its fair share: %v", name, part, began)
	}
	if counted {
		for _, lb := range lbs {
			await.Promised(t.Context, emptyMax, "no connection is left in "+lb+"'s estimates", func() error { return t.Monitor.EstimatesNothing(lb) })
		}
	}
}

// Package mptcp has clients with two addresses, whose connections' further subflows must reach the server of the first (Cheetah VI).
package mptcp

import (
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
		Name: "mptcp", Deadline: 5 * time.Minute, Do: runMPTCP,
		Promise: "subflows of MPTCP join the server of their connection, through changes of pool, keys and load balancers, and carry it when the first path dies",
	},
}

const (
	downloads = 40
	rate      = 64 << 10 // bytes a second of a download
)

func runMPTCP(run *scenario.Run) {
	for _, one := range []struct {
		name    string
		forward model.Forward
		act     func(*world.Trial)
	}{{"joins", model.ForwardIPIP, churn}, {"path", model.ForwardGUE, loseFirstPaths}} {
		with := scenario.CookieService(scenario.VIP4)
		with.MPTCP, with.Forward = model.MPTCP{FirstPort: 40000}, one.forward
		outcome := run.Trial(setup(one.name, with), one.act)
		connections, joins, outsiders := counts(outcome)
		run.Result.Measure("joins_"+one.name, float64(joins))
		run.Result.Expect(connections >= downloads, "%s: only %d connections were of MPTCP", one.name, connections)
		run.Result.Expect(10*joins >= 9*connections, "%s: only %d subflows joined %d connections", one.name, joins, connections) // some end before
		run.Result.Expect(outsiders == 0, "%s: %d subflows came to another server", one.name, outsiders)
		for _, lb := range []string{"lb1", "lb2"} {
			run.Result.Expect(outcome.Counters[lb]["forwarded_by_port"] > 0, "%s: %s counts no packet as forwarded_by_port", one.name, lb)
		}
	}
	hash := fleet.NewService("web", scenario.VIP4)
	hash.Affinity, hash.Dispatch, hash.Fallback = model.AffinityHash, model.DispatchHash, model.FallbackHash
	baseline := setup("hash", hash)
	baseline.Baseline = true
	_, _, outsiders := counts(run.Trial(baseline, func(t *world.Trial) { during(t, scenario.Changes(t)[:3]) }))
	run.Result.Measure("strangers_hash", float64(outsiders))
	run.Result.Expect(outsiders > 0, "hash: no subflow came to another server: nothing is shown")
}

func setup(name string, one *fleet.Service) world.Setup {
	return world.Setup{
		Name: name, Services: []*fleet.Service{one}, Members: []int{1, 2, 3, 4}, Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 6), MPTCP: true},
	}
}

// counts are connections and joined subflows by clients, and subflows that came to servers without their connection.
func counts(outcome world.Result) (connections, joins, outsiders uint64) {
	client := outcome.TCP[world.ClientNode]
	for _, counters := range outcome.TCP {
		outsiders += counters[world.MPTCPForeignJoins]
	}
	return client[world.MPTCPConnections], client[world.MPTCPJoins], outsiders
}

func series(t *world.Trial, running *world.Load, steps []world.Step) {
	for _, one := range steps {
		t.Event(one.What, one.Do)
		t.Traffic.Busy(running, 12)
	}
}

// short are connections that last long enough for a subflow to join.
func short(t *world.Trial) traffic.Flow {
	return traffic.Flow{Name: "short", Target: t.Fleet.Target(), MPTCP: true, Concurrent: 30, PerSecond: 20,
		Requests: []traffic.Request{{Path: world.PathBlob, Bytes: 40_000}, {Path: world.PathName, Pause: time.Second}}}
}

// churn has long downloads and short connections meanwhile.
func churn(t *world.Trial) { during(t, scenario.Changes(t)) }

func during(t *world.Trial, steps []world.Step) {
	lasting := t.Traffic.Generate(traffic.Flow{
		Name: "download", Target: t.Fleet.Target(), MPTCP: true, Count: downloads, Concurrent: downloads, PerSecond: 40, Repeat: true,
		Requests: []traffic.Request{{Path: world.PathSlow(rate), Bytes: 2 * rate}},
	})
	t.Traffic.Busy(lasting, downloads)
	running := t.Traffic.Generate(
		short(t),
		traffic.Flow{Name: "upload", Target: t.Fleet.Target(), MPTCP: true, Concurrent: 10, PerSecond: 2, Requests: []traffic.Request{
			{Path: world.PathUpload + "some", Bytes: 200_000, Upload: true}, {Path: world.PathName, Pause: time.Second}}})
	t.Traffic.Busy(running, 20)
	series(t, running, steps)
}

// loseFirstPaths takes the paths that downloads began on, after the pool and the load balancers have changed: the subflows that joined go on alone.
func loseFirstPaths(t *world.Trial) {
	lasting := t.Traffic.Generate(traffic.Flow{
		Name: "download", Target: t.Fleet.Target(), MPTCP: true, Count: downloads, Concurrent: downloads, PerSecond: 40,
		Requests: []traffic.Request{{Path: world.PathSlow(rate), Bytes: 20 * rate}},
	})
	t.Traffic.Busy(lasting, downloads)
	running := t.Traffic.Generate(short(t))
	series(t, running, scenario.Changes(t))
	running.Finish(t.Context) // the paths of new connections die, too
	t.Event("the first paths die", t.Network.CutFirstPaths)
	lasting.Wait(t.Context)
}

// Package churn has servers and load balancers come and go while the key rotates: no connection may break.
package churn

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/await"
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
		Name: "churn", Deadline: 4 * time.Minute, Do: runChurn,
		Promise: "servers and load balancers come and go, the key rotates: no connection breaks",
	},
	{
		Name: "ipv6", Deadline: 3 * time.Minute, Do: runIPv6,
		Promise: "churn over IPv6: no connection breaks",
	},
}

// What churn promises to carry.
const (
	churnConnectionsMin = 2000
	churnDownloadsMin   = 100
	churnDownloads      = 120
)

// weightChangesMin is how often weights must be seen to change during churn.
const weightChangesMin = 10

func runChurn(run *scenario.Run) {
	if run.Dispatch == scenario.AllPolicies {
		churnPolicies(run)
		return
	}
	dispatch := model.DispatchRR
	if run.Dispatch != "" && dispatch.UnmarshalText([]byte(run.Dispatch)) != nil {
		script.Check(fmt.Errorf("churn with dispatch %q: %w: there is no such policy: use one of %v, or %s", run.Dispatch, scenario.ErrUsage, scenario.Policies, scenario.AllPolicies))
	}
	one := run.WithAffinity(scenario.PolicyService(scenario.VIP4, dispatch))
	churnTwice(run, one)
}

// churnPolicies puts one service of each policy through the same events at once.
func churnPolicies(run *scenario.Run) {
	what := world.Setup{Name: scenario.AllPolicies, Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 8)}, Members: []int{1, 2, 3, 4, 5, 6}, Reports: true}
	policies := slices.DeleteFunc(slices.Clone(scenario.Policies), func(dispatch model.Dispatch) bool {
		return run.Affinity == "table" && dispatch == model.DispatchChoices // whose servers could not tell a load balancer that has a table
	})
	for i, dispatch := range policies {
		one := run.WithAffinity(scenario.PolicyService(fmt.Sprintf("198.51.100.%d", 10+i), dispatch))
		one.Name = dispatch.String()
		what.Services = append(what.Services, one)
	}
	var changes map[string]int
	outcome := run.Trial(what, func(t *world.Trial) {
		stop := countWeightChanges(t, world.LBName(2))
		defer func() { changes = stop() }()
		churn(run, t)
	})
	for _, policy := range policies {
		dispatch := policy.String()
		throughout := outcome.Throughout[flowName(what.Services, dispatch, "download")]
		run.Result.Measure("throughout_"+dispatch, float64(throughout))
		run.Result.Expect(throughout >= churnDownloadsMin/len(policies),
			"%s: only %d downloads lasted from before the first event until after the last", dispatch, throughout)
		if policy.FollowsLoad() {
			run.Result.Measure("weight_changes_"+dispatch, float64(changes[dispatch]))
			run.Result.Expect(changes[dispatch] >= weightChangesMin, "%s: weights changed only %d times: they did not follow load", dispatch, changes[dispatch])
		}
	}
}

// flowName is the name of a service's flow where there may be several services.
func flowName(services []*fleet.Service, service, flow string) string {
	if len(services) == 1 {
		return flow
	}
	return service + " " + flow
}

// churnTwice puts a service with cookies and the baseline through the same events.
func churnTwice(run *scenario.Run, with *fleet.Service) {
	events := func(t *world.Trial) { churn(run, t) }
	topology := world.Topology{LBs: 2, Servers: make([]world.ServerNode, 8)}
	first := []int{1, 2, 3, 4, 5, 6}
	outcome := run.Trial(world.Setup{
		Name: with.Affinity.String(), Topology: topology, Services: []*fleet.Service{with}, Members: first, Reports: with.Dispatch.FollowsLoad(),
	}, events)
	run.Result.Expect(outcome.Attempted >= churnConnectionsMin, "only %d connections were attempted", outcome.Attempted)
	run.Result.Expect(outcome.Throughout["download"] >= churnDownloadsMin,
		"only %d downloads lasted from before the first event until after the last", outcome.Throughout["download"])
	run.Trial(world.Setup{
		Name: "hash", Topology: topology, Services: []*fleet.Service{scenario.HashService(with.VIP.String())}, Members: first, Baseline: true,
	}, events)
}

// churnTraffic is what the clients of all services together do during churn: downloads that outlast all events, however long these take on
// a busy machine, browsing, and short requests.
func churnTraffic(t *world.Trial, rate float64) []traffic.Flow {
	const downloadSeconds = 4
	services := t.Fleet.Services
	slow, medium, share := int(64<<10*rate), int(200<<10*rate), float64(len(services))/rate
	var flows []traffic.Flow
	for _, one := range services {
		name, target := func(flow string) string { return flowName(services, one.Name, flow) }, one.Target()
		flows = append(flows,
			traffic.Flow{Name: name("download"), Target: target, Count: churnDownloads / len(services), Concurrent: churnDownloads, PerSecond: 80 / share, Repeat: true,
				Requests: []traffic.Request{{Path: world.PathSlow(slow), Bytes: int64(slow) * downloadSeconds}}},
			traffic.Flow{Name: name("short"), Target: target, Concurrent: 200, PerSecond: 60 / share, Requests: []traffic.Request{
				{Path: world.PathBlob, Bytes: 2000}}},
			traffic.Flow{Name: name("medium"), Target: target, Concurrent: 100, PerSecond: 15 / share, Requests: []traffic.Request{
				{Path: world.PathSlow(medium), Bytes: 2 * int64(medium)}}},
			traffic.Flow{Name: name("browse"), Target: target, Concurrent: 100, PerSecond: 10 / share, Requests: []traffic.Request{
				{Path: world.PathName}, {Path: world.PathBlob, Bytes: 50000, Pause: time.Second},
				{Path: world.PathUpload + "browse", Bytes: 30000, Upload: true, Pause: time.Second}}})
	}
	return flows
}

// idleTraffic are connections that say nothing for seconds at a time.
func idleTraffic(t *world.Trial, rate float64) []traffic.Flow {
	services := t.Fleet.Services
	var flows []traffic.Flow
	share := len(services)
	for _, one := range services {
		flows = append(flows, traffic.Flow{
			Name: flowName(services, one.Name, "idle"), Target: one.Target(), Count: 60 / share, Concurrent: 60, PerSecond: 30 * rate / float64(share),
			Requests: []traffic.Request{{Path: world.PathName}, {Path: world.PathName, Pause: 6 * time.Second}, {Path: world.PathName, Pause: 6 * time.Second}}})
	}
	return flows
}

// churn is the series of events. They follow the connections, not a clock.
func churn(run *scenario.Run, t *world.Trial) {
	idle := t.Traffic.Generate(idleTraffic(t, run.TrafficShare())...)
	running := t.Traffic.Generate(churnTraffic(t, run.TrafficShare())...)
	for _, one := range []struct {
		after int // connections
		what  string
		do    func()
	}{
		{300, "add servers s7 and s8", func() { t.Pool.AddServer(7); t.Pool.AddServer(8); t.Rollout.Apply() }},
		{450, "drain servers s1 and s2", func() { t.Pool.Drain(1); t.Pool.Drain(2); t.Rollout.Apply() }},
		{600, "kill load balancer lb1", func() { t.Lab.CopyMounts(world.ClientNode); t.Failures.CrashLB(1) }},
		{850, "add the next key", func() { t.Pool.AddKey(2); t.Rollout.Apply() }},
		{950, "lb1 returns", func() { t.Failures.ReturnLB(1) }},
		{1150, "use the next key", func() { t.Fleet.Keys.Current = 2; t.Rollout.Apply() }},
		// Their connections live on: what is removed gets no new ones and keeps the old.
		{1250, "remove servers s1 and s2", func() { t.Pool.RemoveServer(1); t.Pool.RemoveServer(2); t.Rollout.Apply() }},
		// A connection that is silent keeps the cookie of the old key, so that an operator drops it last.
		{1500, "wait for connections that were idle across the rotation", func() { idle.Wait(t.Context) }},
		{1500, "wait until no client echoes the old key", func() { awaitRenewed(t, 1, run.Stretched(30*time.Second)) }},
		{1600, "drop the old key", func() { delete(t.Fleet.Keys.Cookie, 1); t.Rollout.Apply() }},
	} {
		t.Traffic.Until(running, run.Stretched(30*time.Second), fmt.Sprintf("%d connections were attempted", one.after),
			func(p traffic.Progress) bool { return p.Attempted >= one.after })
		t.Event(one.what, one.do)
	}
	t.Traffic.Until(running, run.Stretched(time.Minute), "enough was attempted", func(p traffic.Progress) bool { return p.Attempted >= churnConnectionsMin })
}

// awaitRenewed waits until no living connection echoes the key of an epoch, as operators do before they drop it.
func awaitRenewed(t *world.Trial, epoch uint32, within time.Duration) {
	await.Until(t.Context, within, fmt.Sprintf("no client echoes the key of epoch %d", epoch), func() error {
		for i := range t.Network.Servers { // also those that were removed: they have connections to end
			node := world.ServerName(i + 1)
			var status api.AgentStatus
			if err := t.Daemons.Client(node).Get(t.Context, api.PathStatus, &status); err != nil {
				return err
			}
			if n := status.Echoes[epoch]; n > 0 {
				return fmt.Errorf("%d connections of %s do", n, node)
			}
		}
		return nil
	})
}

// countWeightChanges looks at the weights of a load balancer several times a second until the returned function is called, which
// tells for each service how often they had changed from one look to the next.
func countWeightChanges(t *world.Trial, lb string) (stop func() map[string]int) {
	changes, done, ended := map[string]int{}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(scenario.WeightsInterval)
		defer ticker.Stop()
		var before map[string]uint32
		for {
			select {
			case <-ticker.C:
			case <-done:
				return
			}
			now, err := t.Monitor.Weights(lb)
			if err != nil {
				continue // it is busy with a change
			}
			changed := map[string]bool{}
			for server, weight := range now {
				if old, known := before[server]; known && old != weight {
					service, _, _ := strings.Cut(server, "/")
					changed[service] = true
				}
			}
			for service := range changed {
				changes[service]++
			}
			before = now
		}
	}()
	return func() map[string]int {
		close(done)
		<-ended
		return changes
	}
}

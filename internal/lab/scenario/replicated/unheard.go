package replicated

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	unheard     = 3                // number of the load balancer that controllers do not hear
	unheardMax  = 4 * time.Second  // from when it is taken off the ring until it says that it is not ready
	unheardLoad = 600              // new flows while it is off the ring
	unheardLost = 8 * time.Second  // without an answer: a datagram is lost, or the machine is very busy
	unheardIdle = 30 * time.Second // periods of 5 s: each flow asks again while the load balancer is off the ring
	unheardBad  = 0.01             // of new flows that may lose a datagram, in the milliseconds of four changes of the ring
)

// runUnheard takes a load balancer's way to the controllers, and then its daemon. Routers go on sending to it, and nothing that is lost is sent again.
func runUnheard(run *scenario.Run) {
	setup := world.Setup{Name: "unheard", Services: services(model.AffinityReplicated, model.FallbackReplicated)[1:], Members: []int{1, 2, 3, 4},
		Cuts:     true,
		Topology: world.Topology{LBs: 3, Servers: make([]world.ServerNode, 4), Management: true, Controllers: 1, EtcdMembers: 1}}
	outcome := run.Trial(setup, func(t *world.Trial) { unhear(t, run.Result) })
	for node, counters := range outcome.Counters {
		for verdict, packets := range counters {
			if strings.HasPrefix(verdict, "dropped_") && packets > 0 {
				run.Result.Measure(node+"_"+verdict, float64(packets))
			}
		}
	}
	for _, flow := range []string{"established", "new"} {
		run.Result.Measure(flow+"_broken", float64(outcome.BrokenFlows[flow]))
	}
	run.Result.Expect(outcome.BrokenFlows["established"] == 0, "established flows have lost a datagram: %v", outcome.Examples)
	run.Result.Expect(float64(outcome.Broken) <= unheardBad*float64(outcome.Attempted), "%d of %d flows have lost a datagram: %v", outcome.Broken, outcome.Attempted, outcome.Examples)
	run.Result.Expect(outcome.BrokenBy[traffic.Moved] == 0, "%d flows have changed their server", outcome.BrokenBy[traffic.Moved])
}

func unhear(t *world.Trial, result *scenario.Result) {
	node, others := world.LBName(unheard), []int{1, 2}
	t.Fleet.Replicas = model.Replicas{Chain: 2, IdleTimeout: model.Duration(unheardIdle)}
	t.Rollout.Apply()
	awaitRing(t, 1, 2, unheard)
	t.Endpoints.StartEchoes(t.Fleet.Target())
	request := []traffic.Request{{Bytes: 100, Pause: 200 * time.Millisecond}}
	running := t.Traffic.GeneratePatiently(unheardLost,
		traffic.Flow{Name: "established", Target: t.Fleet.Target(), UDP: true, Count: 150, Concurrent: 150, PerSecond: 150, Repeat: true, Requests: request},
		traffic.Flow{Name: "new", Target: t.Fleet.Target(), UDP: true, Concurrent: 400, PerSecond: 60, Requests: append(request, request...)})
	t.Traffic.Busy(running, 200)
	asked := askedBy(t, node)
	t.Event("no controller hears "+node, func() { t.Network.Partition(node, true) })
	t.Event(node+" is taken off the ring", func() { awaitRing(t, others...) })
	t.Event(node+" says so", func() { awaitNotReady(t, result, node) })
	t.Traffic.Busy(running, unheardLoad)
	now := askedBy(t, node)
	result.Expect(now > asked+unheardLoad/10, "%s has asked others about %d packets while it was off the ring", node, now-asked)
	t.Event("controllers hear it", func() { t.Network.Partition(node, false); awaitRing(t, 1, 2, unheard) })
	t.Traffic.Busy(running, 100)

	asked = askedBy(t, node)
	t.Event("the daemon of "+node+" dies", func() { t.Daemons.LBs[node].Kill() })
	t.Event(node+" is taken off the ring", func() { awaitRing(t, others...) })
	t.Traffic.Busy(running, unheardLoad)
	t.Event("its daemon is started again", func() { t.Daemons.LBs[node] = t.Daemons.Start("lb", node); awaitRing(t, 1, 2, unheard) })
	t.Traffic.Busy(running, 100)
	now = askedBy(t, node)
	result.Expect(now > asked+unheardLoad/10, "%s has asked others about %d packets since its daemon died", node, now-asked)
}

// askedBy is how many packets a load balancer has asked others about.
func askedBy(t *world.Trial, node string) uint64 {
	return script.Must(t.Counters.Verdicts(node))["asked_peer"]
}

// awaitNotReady waits until a load balancer says that it is not ready as it is off the ring.
func awaitNotReady(t *world.Trial, result *scenario.Result, node string) {
	begin := time.Now()
	await.Promised(t.Context, ringWithin, node+" is not ready", func() error {
		status, err := t.Daemons.Client(node).Status(t.Context)
		if err == nil && (status.Ready || !strings.Contains(fmt.Sprint(status.NotReady), "off the ring")) {
			err = errors.New(fmt.Sprint(status.NotReady))
		}
		return err
	})
	took := loadmeter.Since(begin)
	result.Measure("not_ready_seconds", world.Round(took))
	result.Expect(took <= unheardMax, "it has taken %v until %s was not ready", took, node)
}

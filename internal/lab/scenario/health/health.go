// Package health has checks take servers out and bring them back; connections that servers have stay.
package health

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "health", Deadline: 3 * time.Minute, Do: runHealth,
		Promise: "unhealthy servers get nothing new and keep what they have, until they are healthy or the deadline cuts them",
	},
	{
		Name: "restart", Deadline: 3 * time.Minute, Do: runRestart,
		Promise: "an application that was killed and started again gets its share of new connections, under policies that count them",
	},
}

// Implementation constants.
const (
	checkSlack      = 1500 * time.Millisecond // for machines that are busy with other things
	checkLate       = 4 * time.Second         // and for those that are very busy: nothing waits for it
	healthDeadline  = 2 * time.Second
	healthDownloads = 32
	healthChatters  = 24
	flapsSettled    = 10 // flaps of a check without a change: the server has settled
	maxFlaps        = 80
	maxChanges      = 8 // of a server whose check flaps
)

// checksTake is how long so many checks in a row take at most: each comes a tenth early or late.
func checksTake(checks int) time.Duration {
	return time.Duration(checks)*world.CheckInterval*11/10 + world.CheckTimeout + checkSlack
}

func runHealth(run *scenario.Run) {
	topology := world.Topology{LBs: 2, Servers: make([]world.ServerNode, 4)}
	outcome := run.Trial(world.Setup{Name: "checks", Topology: topology, Services: []*fleet.Service{scenario.CheckedService()}}, func(t *world.Trial) {
		h := &healthTrial{Trial: t, result: run.Result, lbs: []string{world.LBName(1), world.LBName(2)}}
		h.run()
	})
	run.Result.Expect(outcome.Throughout["download"] == healthDownloads, "only %d of %d downloads lasted through all events and completed",
		outcome.Throughout["download"], healthDownloads)
	with := scenario.CheckedService()
	with.Health.Deadline = model.Duration(healthDeadline)
	run.Trial(world.Setup{Name: "deadline", Cuts: true, Topology: topology, Services: []*fleet.Service{with}}, func(t *world.Trial) { losePower(t, run.Result) })
}

// healthTrial is the series of events and what has to be true of connections that began in between.
type healthTrial struct {
	*world.Trial
	result  *scenario.Result
	lbs     []string
	running *world.Load
	spans   []span
}

// span is a time in which new connections must go to some servers and to others not.
type span struct {
	what       string
	from, to   time.Time
	none, some []string
	unanswered bool // until its end
}

func (h *healthTrial) run() {
	h.running = h.Traffic.Generate(scenario.Downloads(h.Fleet.Target(), healthDownloads), scenario.Shorts(h.Fleet.Target(), 40))
	h.Traffic.Until(h.running, 30*time.Second, "all downloads are open", func(p traffic.Progress) bool { return p.OpenByFlow["download"] == healthDownloads })
	h.Traffic.Busy(h.running, 100)
	for _, one := range []world.Step{
		{What: "s1 fails its checks and goes on serving", Do: h.failOne},
		{What: "s1 answers checks again", Do: h.recoverOne},
		{What: "all servers fail their checks, s1 before the others: all_down is keep", Do: h.keepLast},
		{What: "all_down is all", Do: h.useAll},
		{What: "all_down is none", Do: h.useNone},
		{What: "all servers answer checks again", Do: h.recoverAll},
		{What: "the way of lb1 to s3 is cut", Do: h.cutPath},
		{What: "the way is whole again", Do: h.healPath},
		{What: "the check of s2 flaps", Do: h.flap},
		{What: "s2 answers checks for good", Do: h.settle},
	} {
		h.Event(one.What, one.Do)
	}
	h.running.Finish(h.Context)
	h.judge()
}

// timed waits until load balancers were told of a server's health, and measures how long that took since a time.
func (h *healthTrial) timed(name string, since time.Time, i int, sick bool, most time.Duration, lbs ...string) {
	h.Monitor.AwaitHealth(i, sick, lbs...)
	took := loadmeter.Since(since)
	h.result.Measure(name, world.Round(took))
	h.result.Expect(took <= most+checkLate, "%s: %v, not %v at most", name, took, most)
}

// since is when what began at a time must have taken effect, where load balancers were just told of it.
func (h *healthTrial) since(begin time.Time, checks int) time.Time {
	reported := time.Now().Add(checkSlack)
	if expected := begin.Add(checksTake(checks)); expected.After(reported) {
		return expected
	}
	return reported
}

// during watches new connections from a time on until enough of them have begun.
func (h *healthTrial) during(one span) {
	const connections = 60
	for time.Now().Before(one.from) {
		h.Traffic.Busy(h.running, 5)
	}
	h.Traffic.Busy(h.running, connections)
	one.to = time.Now()
	h.spans = append(h.spans, one)
}

func (h *healthTrial) failOne() {
	begin := time.Now()
	h.Sicken(1, true)
	h.timed("seconds_until_unhealthy", begin, 1, true, checksTake(world.CheckFall), h.lbs...)
	for _, lb := range h.lbs {
		detail := script.Must(h.Monitor.Server(lb, 1)).HealthDetail
		h.result.Expect(detail == "HTTP 404 (self)", "%s says that s1 is unhealthy because of %q: the check did not go through the tunnel, or says something else", lb, detail)
	}
	h.during(span{what: "s1 is unhealthy", from: h.since(begin, world.CheckFall), none: []string{"s1"}, some: []string{"s2", "s3", "s4"}})
}

func (h *healthTrial) recoverOne() {
	begin := time.Now()
	h.Sicken(1, false)
	h.timed("seconds_until_healthy", begin, 1, false, checksTake(world.CheckRise), h.lbs...)
	h.during(span{what: "s1 is healthy again", from: h.since(begin, world.CheckRise), some: []string{"s1", "s2", "s3", "s4"}})
}

// keepLast: the servers fail within one interval of each other, and the set that is kept is the one before that.
func (h *healthTrial) keepLast() {
	h.Sicken(1, true, h.lbs...)
	h.Traffic.Busy(h.running, 40) // the set without s1 stands for a while
	for _, i := range []int{2, 3, 4} {
		h.Sicken(i, true)
	}
	for _, i := range []int{2, 3, 4} {
		h.Monitor.AwaitHealth(i, true, h.lbs...)
	}
	h.during(span{what: "all are unhealthy, the last set is kept", from: time.Now().Add(checkSlack), none: []string{"s1"}, some: []string{"s2", "s3", "s4"}})
}

func (h *healthTrial) useAll() {
	h.Fleet.Services[0].Health.AllDown = model.AllDownAll
	h.Rollout.Apply()
	h.during(span{what: "all are unhealthy, all are used", from: time.Now().Add(checkSlack), some: []string{"s1", "s2", "s3", "s4"}})
}

// useNone: new connections are refused by silence, so that those that are still trying when a server is back succeed.
func (h *healthTrial) useNone() {
	h.Fleet.Services[0].Health.AllDown = model.AllDownNone
	h.Rollout.Apply()
	for _, lb := range h.lbs {
		await.Promised(h.Context, world.ResumeMax, lb+" gives new connections to nobody", func() error {
			counters, err := h.Daemons.Client(lb).Counters(h.Context)
			if err == nil && counters["dropped_no_server"] == 0 {
				err = fmt.Errorf("it has dropped none")
			}
			return err
		})
	}
	if open := h.running.Now().OpenByFlow["download"]; open != healthDownloads {
		h.result.Fail("of %d downloads %d are open while no server gets new connections", healthDownloads, open)
	}
	one := span{what: "all are unhealthy, nobody is used", from: time.Now(), none: []string{"s1", "s2", "s3", "s4"}, unanswered: true}
	h.Traffic.Busy(h.running, 20)
	one.to = time.Now()
	h.spans = append(h.spans, one)
}

func (h *healthTrial) recoverAll() {
	for i := 1; i <= 4; i++ {
		h.Sicken(i, false)
	}
	for i := 1; i <= 4; i++ {
		h.Monitor.AwaitHealth(i, false, h.lbs...)
	}
	h.Traffic.Until(h.running, world.Stall, "the connections that nobody answered have ended", func(p traffic.Progress) bool {
		return p.Open < healthDownloads+20
	})
}

// misleadLB makes a load balancer send what is for a server to itself, where the bridge drops it; whole: to the server again.
func (h *healthTrial) misleadLB(whole bool) {
	wrong, err := h.Lab.Space(world.LBName(1)).MAC("eth1")
	if whole {
		wrong, err = h.Lab.Space(world.ServerName(3)).MAC("eth0")
	}
	script.Check(err)
	script.Check(h.Lab.Space(world.LBName(1)).KnowNeighbours("eth1", map[netip.Addr]net.HardwareAddr{h.Network.ServerAddress(3, false): wrong}))
}

// cutPath: the load balancer whose path is cut gives the server nothing new, the other one goes on.
func (h *healthTrial) cutPath() {
	begin := time.Now()
	h.misleadLB(false)
	h.timed("seconds_until_unhealthy_behind_a_cut", begin, 3, true, checksTake(world.CheckFall), world.LBName(1))
	before := script.Must(h.Monitor.Dispatched(3))
	h.Traffic.Busy(h.running, 60)
	after := script.Must(h.Monitor.Dispatched(3))
	h.result.Expect(after[0] <= before[0]+1, "lb1 gave s3 %d connections though it cannot reach it", after[0]-before[0])
	h.result.Expect(after[1] > before[1], "lb2 gave s3 no connection while only lb1 could not reach it")
	other := script.Must(h.Monitor.Server(world.LBName(2), 3))
	h.result.Expect(other.Health == "healthy", "for lb2, which reaches it, s3 is %s: %s", other.Health, other.HealthDetail)
}

func (h *healthTrial) healPath() {
	h.misleadLB(true)
	h.Monitor.AwaitHealth(3, false, world.LBName(1))
}

// flap makes a check fail and succeed in turns, with thresholds of one, until the server has stayed as it is for long.
func (h *healthTrial) flap() {
	health := &h.Fleet.Services[0].Health
	health.AllDown, health.Rise, health.Fall = model.AllDownKeep, 1, 1
	h.Rollout.Apply()
	path := filepath.Join(h.Lab.NodeDir(world.ServerName(2)), world.PathHealth)
	states, changes := []string{"healthy", "healthy"}, []int{0, 0}
	ticker := time.NewTicker(await.Interval)
	defer ticker.Stop()
	for flaps, lastChange, next := 0, 0, time.Now(); flaps-lastChange < flapsSettled; {
		if flaps == maxFlaps {
			h.result.Fail("s2 did not settle: it changed %v times while its check flapped %d times", changes, flaps)
			return
		}
		if !time.Now().Before(next) {
			next = time.Now().Add(world.CheckInterval)
			flaps++
			flip(path)
		}
		for i, lb := range h.lbs {
			if state := script.Must(h.Monitor.Server(lb, 2)).Health; state != states[i] {
				states[i], lastChange = state, flaps
				changes[i]++
			}
		}
		select {
		case <-ticker.C:
		case <-h.Context.Done():
			script.Check(context.Cause(h.Context))
		}
		h.result.Measure("flaps_of_the_check", float64(flaps))
	}
	for i, lb := range h.lbs {
		h.result.Measure("changes_at_"+lb, float64(changes[i]))
	}
	h.result.Expect(slices.Max(changes) <= maxChanges, "s2 changed %v times, not %d at most", changes, maxChanges)
	h.result.Expect(slices.Min(changes) > 0 && !slices.Contains(states, "healthy"), "s2 settled as %v after %v changes, though its check fails every other time", states, changes)
}

// flip takes the page that checks ask for away, or puts it back.
func flip(path string) {
	err := os.Remove(path)
	if os.IsNotExist(err) {
		err = os.WriteFile(path, []byte("healthy\n"), 0o644)
	}
	script.Checkf(err, "flip the health of a server")
}

// settle: what was damped comes back, after more good checks.
func (h *healthTrial) settle() {
	path := filepath.Join(h.Lab.NodeDir(world.ServerName(2)), world.PathHealth)
	script.Checkf(os.WriteFile(path, []byte("healthy\n"), 0o644), "make a server healthy")
	const longest = 16 // rise, doubled as often as it ever is
	h.timed("seconds_until_healthy_after_flaps", time.Now(), 2, false, checksTake(longest), h.lbs...)
}

// judge looks at where connections went that began in each span.
func (h *healthTrial) judge() {
	for _, one := range h.spans {
		began := map[string]int{}
		for _, connection := range h.running.Connections {
			if connection.Started.Before(one.from) || connection.Started.After(one.to) {
				continue
			}
			if !one.unanswered || connection.Ended.Before(one.to) {
				began[connection.Server]++
			}
		}
		h.Lab.Progress("%s: %s: new connections by server: %v", h.Setup.Name, one.what, began)
		for _, server := range one.none {
			h.result.Expect(began[server] == 0, "%s: %s got %d new connections", one.what, server, began[server])
		}
		for _, server := range one.some {
			h.result.Expect(began[server] > 0, "%s: %s got no new connection", one.what, server)
		}
	}
}

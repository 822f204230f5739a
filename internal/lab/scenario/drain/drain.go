// Package drain has servers drained and removed by an operator who waits for their connections, while clients hold long downloads.
package drain

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "drain", Deadline: 3 * time.Minute, Do: runDrain,
		Promise: "an operator waits for the connections of drained servers; only a deadline cuts some, and ids rest",
	},
	{
		Name: "leave", Deadline: 2 * time.Minute, Do: runLeave,
		Promise: "an agent is drained, taken off its server and brought back under load: no connection breaks",
	},
}

// Implementation constants.
const (
	drainLinger     = 2 * time.Second // of the load balancers: silence until a removed server's connections count as ended
	drainQuarantine = 3 * time.Second // and from then until its id is free
	drainDeadline   = 3 * time.Second
	drainSlack      = 6 * time.Second         // for reports, looks once a second, and machines that are busy with other things
	drainEarly      = time.Second             // that clients notice the end of a connection later than its server, on such machines
	drainSilence    = 1500 * time.Millisecond // nginx sends what a limited rate allows once a second, and only then a client speaks
	drainLasting    = 24                      // downloads that last as long as the trial
)

func runDrain(run *scenario.Run) {
	outcome := run.Trial(world.Setup{
		Name: "drain", Cuts: true, Services: []*fleet.Service{scenario.CookieService(scenario.VIP4)}, Reports: true,
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 6)},
		LBFlags:  []string{"--linger", drainLinger.String(), "--quarantine", drainQuarantine.String()},
	}, func(t *world.Trial) {
		d := &drainTrial{Trial: t, result: run.Result, lbs: []string{world.LBName(1), world.LBName(2)}, accepted: map[string]time.Time{}}
		d.run()
	})
	cut := int(run.Result.Measurements["connections_cut"])
	run.Result.Expect(outcome.Broken == cut, "%d connections are broken, not only the %d that the deadline cut: %v", outcome.Broken, cut, outcome.BrokenBy)
}

// drainTrial is the series of events.
type drainTrial struct {
	*world.Trial
	result   *scenario.Result
	lbs      []string
	ending   *world.Load // downloads that end one by one
	holding  *world.Load // downloads that last
	shorts   *world.Load
	removed  time.Time            // when s4 was removed
	accepted map[string]time.Time // load balancer -> when another server got the id of s4
}

func (d *drainTrial) run() {
	const slow = 64 << 10
	d.awaitCounted()
	var flows []traffic.Flow
	for _, seconds := range []int64{6, 7, 8, 9} {
		flows = append(flows, traffic.Flow{
			Name: fmt.Sprintf("ending after %d s", seconds), Target: d.Fleet.Target(), Count: 12, Concurrent: 12, PerSecond: 50,
			Requests: []traffic.Request{{Path: world.PathSlow(slow), Bytes: seconds * slow}},
		})
	}
	d.ending = d.Traffic.Generate(flows...)
	d.Traffic.Until(d.ending, 30*time.Second, "all downloads have a server", func(p traffic.Progress) bool { return p.Attempted == 48 && p.Served() == p.Open })
	for _, one := range []world.Step{
		{What: "remove s4, which has connections", Do: d.remove4},
		{What: "drain s1 and wait", Do: d.drain1},
		{What: "the id of s4 is free", Do: d.reuse4},
		{What: "drain s2 with a deadline and wait", Do: d.drain2},
		{What: "drain s3, wait in vain, undrain it", Do: d.drain3},
	} {
		d.Event(one.What, one.Do)
	}
	for _, running := range d.Traffic.Loads() {
		running.Finish(d.Context)
	}
}

// awaitCounted waits until agents have joined both load balancers: some came before these, and try again after a while.
func (d *drainTrial) awaitCounted() {
	for _, lb := range d.lbs {
		await.Until(d.Context, await.Deadline, lb+" hears of all agents", func() error {
			servers, err := d.Monitor.Servers(lb)
			for _, status := range servers {
				if !status.ConnectionsExact {
					err = errors.New("not of that on " + status.Server.Name)
				}
			}
			return err
		})
	}
}

func (d *drainTrial) everywhere(arguments ...string) {
	for _, lb := range d.lbs {
		script.Must(d.Operator.On(lb, arguments...))
	}
}

func (d *drainTrial) remove4() {
	d.removed = time.Now()
	d.everywhere("server", "remove", "web", "s4")
}

// tryID4 tries to give the id of s4 to another server, which gets no connections.
func (d *drainTrial) tryID4() error {
	weight := uint32(0)
	var refusals []error
	for _, lb := range d.lbs {
		if !d.accepted[lb].IsZero() {
			continue
		}
		_, err := d.Daemons.Client(lb).Fleet().AddServer(d.Context, &ballastv1.AddServerRequest{Service: "web", Server: &ballastv1.Server{
			Name: "other", Address: "10.30.9.9", Id: 4, Weight: &weight,
		}})
		if err == nil {
			d.accepted[lb] = time.Now()
			continue
		}
		if !strings.Contains(err.Error(), "id 4 is that of s4") {
			return await.Stop(fmt.Errorf("%s refuses the id of a removed server for another reason: %w", lb, err))
		}
		refusals = append(refusals, err)
	}
	return errors.Join(refusals...)
}

// reuse4: a load balancer keeps the id as long as it sees packets for it, then some time more; each connection passes one of them.
func (d *drainTrial) reuse4() {
	await.Promised(d.Context, time.Minute, "both load balancers give the id of s4 to another server", d.tryID4)
	d.ending.Finish(d.Context)
	last := d.removed
	for _, connection := range d.ending.Connections {
		if connection.Server == "s4" && connection.Ended.After(last) {
			last = connection.Ended
		}
	}
	took := slices.MaxFunc([]time.Time{d.accepted[d.lbs[0]], d.accepted[d.lbs[1]]}, time.Time.Compare).Sub(last)
	d.result.Measure("seconds_until_the_id_is_free", world.Round(took))
	d.result.Expect(last.After(d.removed), "s4 had no connection when it was removed")
	d.result.Expect(took >= drainLinger+drainQuarantine, "the id of s4 was given to another server %v after its last packet", took)
	// There is no machine of that address: what looks for a connection there, as at the server of that id before, looks in vain.
	d.everywhere("server", "remove", "web", "other")
	d.everywhere("server", "forget", "web", "other")
}

var remaining = regexp.MustCompile(`(?m)^(about )?(\d+) connections remain$`)

// drain1 drains s1 on both load balancers and waits on one of them: the agent counts, for all of them.
func (d *drainTrial) drain1() {
	var open uint64
	await.Promised(d.Context, await.Deadline, "the count of connections is that of the clients", func() error {
		status, err := d.Monitor.Server(d.lbs[0], 1)
		if err != nil {
			return err
		}
		open = uint64(d.ending.Now().OpenByServer["s1"])
		if status.GetConnections() != open || !status.ConnectionsExact {
			return fmt.Errorf("%s counts %d (exactly: %t), clients have %d", d.lbs[0], status.GetConnections(), status.ConnectionsExact, open)
		}
		return nil
	})
	d.result.Measure("connections_counted", float64(open))
	d.result.Expect(open > 0, "s1 had no connection any more when it was counted")
	script.Must(d.Operator.On(d.lbs[1], "server", "drain", "web", "s1"))
	waiting := script.Must(d.Operator.Begin(d.lbs[0], "server", "drain", "web", "s1", "--wait"))
	await.Until(d.Context, await.Deadline, "s1 is draining on "+d.lbs[0], func() error {
		status, err := d.Monitor.Server(d.lbs[0], 1)
		if err == nil && status.Server.State != "draining" {
			err = errors.New("it is " + status.Server.State)
		}
		return err
	})
	drained := time.Now()
	d.shorts = d.Traffic.Generate(scenario.Shorts(d.Fleet.Target(), 40))
	if err := d.tryID4(); err == nil {
		d.result.Fail("the id of s4 was given to another server while s4 had connections")
	}
	script.Check(waiting.Wait(d.Context, time.Minute, true))
	d.judgeOutput(waiting.Output.String())
	d.ending.Wait(d.Context)
	last := time.Time{}
	for _, connection := range d.ending.Connections {
		if connection.Server == "s1" && connection.Ended.After(last) {
			last = connection.Ended
		}
	}
	late := waiting.Ended.Sub(last)
	d.result.Measure("seconds_of_waiting_after_the_last", world.Round(late))
	d.result.Expect(loadmeter.Between(waiting.Ended, last) < drainEarly && loadmeter.Between(last, waiting.Ended) < drainSlack, "the wait ended %v after the last connection of s1", late)
	d.Traffic.Busy(d.shorts, 40)
	_, connections := d.shorts.State()
	for _, connection := range connections {
		if connection.Server == "s1" && connection.Started.After(drained) {
			d.result.Fail("s1 got a new connection while it was draining")
		}
	}
	d.everywhere("server", "remove", "web", "s1")
}

// judgeOutput: the count falls to 0, exactly.
func (d *drainTrial) judgeOutput(output string) {
	before, counts := 1<<30, remaining.FindAllStringSubmatch(output, -1)
	for _, found := range counts {
		count, _ := strconv.Atoi(found[2])
		d.result.Expect(count < before, "the count rose: %q", output)
		d.result.Expect(found[1] == "", "the count is not exact: %q", output)
		before = count
	}
	d.result.Measure("counts_shown", float64(len(counts)))
	d.result.Expect(len(counts) > 2 && before == 0, "the count did not fall to 0 in steps: %q", output)
	d.result.Expect(strings.Contains(output, "server s1: state active -> draining\n") && strings.HasSuffix(output, "server s1 is drained: no connection is left\n"),
		"the command said %q", output)
}

// drain2: connections that outlast the deadline are cut then, not before.
func (d *drainTrial) drain2() {
	d.holding = d.Traffic.Generate(scenario.Downloads(d.Fleet.Target(), drainLasting))
	d.Traffic.Until(d.holding, 30*time.Second, "all lasting downloads have a server", func(p traffic.Progress) bool { return p.Served() == drainLasting })
	held := d.holding.Now().OpenByServer["s2"]
	begin := time.Now()
	script.Must(d.Operator.On(d.lbs[1], "server", "drain", "web", "s2", "--deadline", drainDeadline.String()))
	waiting := script.Must(d.Operator.Begin(d.lbs[0], "server", "drain", "web", "s2", "--deadline", drainDeadline.String(), "--wait", "--json"))
	script.Check(waiting.Wait(d.Context, time.Minute, true))
	var output struct {
		Connections int     `json:"connections"`
		Exact       bool    `json:"connections_exact"`
		Cut         bool    `json:"deadline_passed"`
		Seconds     float64 `json:"seconds"`
	}
	if err := json.Unmarshal([]byte(waiting.Output.String()), &output); err != nil {
		script.Check(fmt.Errorf("read what drain --wait says: %w: %q", err, waiting.Output.String()))
	}
	printedAt := waiting.Began.Add(time.Duration(output.Seconds * float64(time.Second)))
	d.result.Expect(output.Cut && output.Exact && output.Connections > 0 && output.Connections <= held && output.Seconds >= drainDeadline.Seconds() && loadmeter.Between(waiting.Began, printedAt) <= drainDeadline+drainSlack,
		"of %d connections of s2 and a deadline of %v the command said %q", held, drainDeadline, waiting.Output.String())
	d.Traffic.Until(d.holding, world.Stall, "no lasting download of s2 is open", func(p traffic.Progress) bool { return p.OpenByServer["s2"] == 0 })
	d.judgeCut(held, begin, waiting.Began)
	d.everywhere("server", "remove", "web", "s2")
}

// judgeCut: all connections of s2 that lasted were reset, between the first deadline and a little after the last.
func (d *drainTrial) judgeCut(held int, begin, last time.Time) {
	cut, first, latest := 0, time.Hour, time.Duration(0)
	_, connections := d.holding.State()
	for _, connection := range connections {
		if connection.Server != "s2" {
			continue
		}
		cut++
		d.result.Expect(connection.Class == traffic.Reset || connection.Class == traffic.Closed, "a connection of s2 ended as %s: %s", connection.Class, connection.Detail)
		first, latest = min(first, connection.Ended.Sub(begin)), max(latest, connection.Ended.Sub(last))
	}
	d.result.Measure("connections_cut", float64(cut))
	d.result.Measure("seconds_until_first_cut", world.Round(first))
	d.result.Measure("seconds_until_last_cut", world.Round(latest))
	d.result.Expect(cut == held && held > 0, "%d of %d connections of s2 were cut", cut, held)
	d.result.Expect(first >= drainDeadline, "the first connection of s2 was cut after %v, the deadline is %v", first, drainDeadline)
	d.result.Expect(loadmeter.Between(last, last.Add(latest)) <= drainDeadline+drainSlack+drainSilence, "the last connection of s2 was cut after %v, the deadline is %v", latest, drainDeadline)
}

// drain3: a wait that times out prints what remains; undrained, the server gets new connections again.
func (d *drainTrial) drain3() {
	lb := d.lbs[0]
	script.Must(d.Operator.On(d.lbs[1], "server", "drain", "web", "s3"))
	hopeless := script.Must(d.Operator.Begin(lb, "server", "drain", "web", "s3", "--wait", "--timeout", "1s"))
	script.Check(hopeless.Wait(d.Context, await.Deadline, false))
	want := fmt.Sprintf("no longer waiting, %d connections remain", d.holding.Now().OpenByServer["s3"])
	d.result.Expect(strings.Contains(hopeless.Errors.String(), want), "a wait in vain said %q, not %q", hopeless.Errors.String(), want)
	disturbed := script.Must(d.Operator.Begin(lb, "server", "drain", "web", "s3", "--wait"))
	before := script.Must(d.Monitor.Dispatched(3))
	d.Traffic.Busy(d.shorts, 40)
	if after, err := d.Monitor.Dispatched(3); err != nil || after[0] != before[0] {
		d.result.Fail("%s gave s3 %d new connections while it was draining (%v)", lb, after[0]-before[0], err)
	}
	script.Check(disturbed.Died())
	d.everywhere("server", "undrain", "web", "s3")
	script.Check(disturbed.Wait(d.Context, await.Deadline, false))
	d.result.Expect(strings.Contains(disturbed.Errors.String(), "s3 of web is active again"), "a wait for an undrained server said %q", disturbed.Errors.String())
	await.Promised(d.Context, 30*time.Second, "s3 gets new connections again", func() error {
		after, err := d.Monitor.Dispatched(3)
		if err == nil && after[0] == before[0] {
			err = errors.New("none yet")
		}
		return err
	})
}

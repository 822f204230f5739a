// health, second part: a machine loses power, and the deadline of its health ends what clients still wait for.
package health

import (
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// chatters are connections with a small request every tenth of a second: clients that speak, and so can be told that they are cut.
func chatters(target string, count int) traffic.Flow {
	return traffic.Flow{
		Name: "chatter", Target: target, Count: count, Concurrent: count, PerSecond: 100, Repeat: true,
		Requests: []traffic.Request{{Path: world.PathName}, {Path: world.PathName, Pause: 100 * time.Millisecond}},
	}
}

// losePower takes a server off the network without a word.
func losePower(t *world.Trial, result *scenario.Result) {
	running := t.Traffic.Generate(chatters(t.Fleet.Target(), healthChatters))
	dead := world.ServerName(4)
	t.Traffic.Until(running, 30*time.Second, "all connections have a server", func(p traffic.Progress) bool {
		return p.Served() == healthChatters && p.OpenByServer[dead] > 0
	})
	begin := time.Now()
	t.Event(dead+" loses power", func() { script.Check(t.Lab.Space(dead).SetLink("eth0", false)) })
	later := t.Traffic.Generate(scenario.Shorts(t.Fleet.Target(), 40))
	t.Event("its clients are told", func() {
		t.Traffic.UntilEmpty(world.Stall, 4)
	})
	t.Traffic.Busy(later, 40)
	for _, load := range []*world.Load{running, later} {
		load.Finish(t.Context)
	}
	judgePower(result, dead, begin, slices.Concat(running.Connections, later.Connections))
}

// judgePower: exactly the connections of the dead server are reset, after the deadline and soon after it; those that came later were
// served by others. A client repeats itself after twice the time of the last repetition, so that it hears of its end at twice the
// time of the cut at the latest.
func judgePower(result *scenario.Result, dead string, begin time.Time, connections []traffic.Connection) {
	cut, first, last := 0, time.Hour, time.Duration(0)
	for _, connection := range connections {
		if connection.Server != dead {
			result.Expect(connection.Class == traffic.Completed, "a connection of server %q ended as %s: %s", connection.Server, connection.Class, connection.Detail)
			continue
		}
		cut++
		reported := connection.Class == traffic.Reset || connection.Class == traffic.Closed // before the first byte of an answer
		result.Expect(reported, "a connection of the dead server ended as %s: %s", connection.Class, connection.Detail)
		first, last = min(first, connection.Ended.Sub(begin)), max(last, connection.Ended.Sub(begin))
	}
	result.Expect(cut > 0, "the dead server had no connection")
	result.Measure("connections_cut", float64(cut))
	result.Measure("seconds_until_first_reset", world.Round(first))
	result.Measure("seconds_until_last_reset", world.Round(last))
	most := 2 * (checksTake(world.CheckFall) + healthDeadline)
	result.Expect(first >= healthDeadline, "the first connection was cut after %v, before the deadline of %v", first, healthDeadline)
	result.Expect(loadmeter.Between(begin, begin.Add(last)) <= most+checkLate, "the last connection was reset after %v, not %v at most", last, most)
}

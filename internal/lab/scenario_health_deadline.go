// health, second part: a machine loses power, and the deadline of its health ends what clients still wait for.
package lab

import (
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// chatters are connections with a small request every tenth of a second: clients that speak, and so can be told that they are cut.
func chatters(target string, count int) traffic.Flow {
	return traffic.Flow{
		Name: "chatter", Target: target, Count: count, Concurrent: count, PerSecond: 100, Repeat: true,
		Requests: []traffic.Request{{Path: pathName}, {Path: pathName, Pause: 100 * time.Millisecond}},
	}
}

// losePower takes a server off the network without a word.
func (t *trial) losePower(result *Result) error {
	running, err := t.generate(chatters(t.target(), healthChatters))
	if err != nil {
		return err
	}
	dead := serverName(4)
	err = t.until(running, 30*time.Second, "all connections have a server", func(p traffic.Progress) bool {
		known := 0
		for _, open := range p.OpenByServer {
			known += open
		}
		return known == healthChatters && p.OpenByServer[dead] > 0
	})
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := t.event(dead+" loses power", func() error { return t.space(dead).SetLink("eth0", false) }); err != nil {
		return err
	}
	later, err := t.generate(shorts(t.target(), 40))
	if err != nil {
		return err
	}
	err = t.event("its clients are told", func() error {
		return t.untilEmpty(stall, 4)
	})
	if err != nil {
		return err
	}
	if err := t.busy(later, 40); err != nil {
		return err
	}
	for _, load := range []*load{running, later} {
		if err := load.finish(t.ctx); err != nil {
			return err
		}
	}
	judgePower(result, dead, begin, slices.Concat(running.connections, later.connections))
	return nil
}

// judgePower: exactly the connections of the dead server are reset, after the deadline and soon after it; those that came later were
// served by others. A client repeats itself after twice the time of the last repetition, so that it hears of its end at twice the
// time of the cut at the latest.
func judgePower(result *Result, dead string, begin time.Time, connections []traffic.Connection) {
	cut, first, last := 0, time.Hour, time.Duration(0)
	for _, connection := range connections {
		if connection.Server != dead {
			result.expect(connection.Class == traffic.Completed, "a connection of server %q ended as %s: %s", connection.Server, connection.Class, connection.Detail)
			continue
		}
		cut++
		told := connection.Class == traffic.Reset || connection.Class == traffic.Closed // before the first byte of an answer
		result.expect(told, "a connection of the dead server ended as %s: %s", connection.Class, connection.Detail)
		first, last = min(first, connection.Ended.Sub(begin)), max(last, connection.Ended.Sub(begin))
	}
	result.expect(cut > 0, "the dead server had no connection")
	result.measure("connections_cut", float64(cut))
	result.measure("seconds_until_first_reset", round(first))
	result.measure("seconds_until_last_reset", round(last))
	most := 2 * (checksTake(checkFall) + healthDeadline)
	result.expect(first >= healthDeadline, "the first connection was cut after %v, before the deadline of %v", first, healthDeadline)
	result.expect(machine().between(begin, begin.Add(last)) <= most+checkLate, "the last connection was reset after %v, not %v at most", last, most)
}

package drain

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// offServer is the server whose agent is taken off.
const offServer = "s1"

func runLeave(run *scenario.Run) {
	run.Trial(world.Setup{
		Name: "leave", Services: []*fleet.Service{scenario.CookieService(scenario.VIP4)},
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 3), Management: true, Controllers: 1, EtcdMembers: 1},
	}, func(t *world.Trial) { (&leaveTrial{t, run.Result}).run() })
}

// leaveTrial is the series of events.
type leaveTrial struct {
	*world.Trial
	result *scenario.Result
}

func (l *leaveTrial) run() {
	const slow = 64 << 10
	var flows []traffic.Flow
	for _, seconds := range []int64{3, 5, 7} { // those of the server that goes end one by one
		flows = append(flows, traffic.Flow{
			Name: fmt.Sprintf("ending after %d s", seconds), Target: l.Fleet.Target(), Count: 12, Concurrent: 12, PerSecond: 50,
			Requests: []traffic.Request{{Path: world.PathSlow(slow), Bytes: seconds * slow}},
		})
	}
	ending := l.Traffic.Generate(flows...)
	l.Traffic.Until(ending, 30*time.Second, "all downloads have a server", func(p traffic.Progress) bool { return p.Attempted == 36 && p.Served() == p.Open })
	shorts := l.Traffic.Generate(scenario.Shorts(l.Fleet.Target(), 40), scenario.ShortLived(l.Fleet.Target(), 10))
	l.Traffic.Busy(shorts, 100)
	held := ending.Now().OpenByServer[offServer]
	l.result.Measure("connections_waited_for", float64(held))
	l.result.Expect(held > 0, "%s has no connection to wait for", offServer)
	agent := l.Daemons.Agents[offServer]
	l.Event("the agent is drained", func() {
		said := l.leave(false)
		l.result.Expect(strings.Contains(said, "connections live") && strings.Contains(said, "its daemon (instance default) runs: end it"), "it said %q", said)
		open := 0
		for _, socket := range script.Must(l.Lab.Space(offServer).Established()) {
			if socket.Local.Port() == l.Fleet.Services[0].Ports[0] {
				open++
			}
		}
		l.result.Expect(open == 0, "%d connections of %s live when nothing should: %q", open, offServer, said)
	})
	before := script.Must(l.Monitor.Dispatched(1))
	l.Event("it ends, and its data path is removed without a question", func() {
		agent.Stop(l.Context)
		script.Check(l.Operator.Detach(offServer))
		said := l.leave(true)
		undo := "# it was draining before this; if it is not to stay so: ballast ctl server undrain web s1\n" // the first run has drained it
		l.result.Expect(strings.Contains(said, "agent s1 is off. To undo that:") && strings.Contains(said, undo), "it said %q", said)
	})
	l.Traffic.Busy(shorts, 100)
	l.result.Expect(script.Must(l.Monitor.Dispatched(1))[0] == before[0], "%s got new connections without an agent", offServer)
	l.Event("it comes back", func() {
		l.Daemons.Agents[offServer] = l.Daemons.Start("agent", offServer)
		script.Must(l.Operator.Ctl("server", "undrain", "web", offServer))
		await.Promised(l.Context, 30*time.Second, offServer+" gets new connections again", func() error {
			after, err := l.Monitor.Dispatched(1)
			if err == nil && after[0] == before[0] {
				err = errors.New("none yet")
			}
			return err
		})
	})
	l.Traffic.Busy(shorts, 100)
	for _, running := range l.Traffic.Loads() {
		running.Finish(l.Context)
	}
}

// leave runs `ballast leave agent --keep`, and returns what it says.
func (l *leaveTrial) leave(ok bool) string {
	leaving := script.Must(l.Operator.BeginLeave(offServer, "--keep", "--yes", "--deadline", "1m"))
	script.Check(leaving.Wait(l.Context, time.Minute, ok))
	return leaving.Output.String() + leaving.Errors.String()
}

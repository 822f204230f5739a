// alone: nobody judges servers but load balancers.
package control

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// Implementation constants.
const (
	aloneMax  = 15 * time.Second // until load balancers judge
	agreedMax = 40 * time.Second // until they hand back
	aloneBusy = 120              // connections after each event
)

func runAlone(run *scenario.Run) {
	run.Trial(world.Setup{
		Name: "alone", Services: []*fleet.Service{scenario.CheckedService()}, Cuts: true,
		Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 3), Management: true, Controllers: 1, EtcdMembers: 1},
	}, func(t *world.Trial) {
		a := &aloneTrial{Trial: t, result: run.Result, lbs: []string{world.LBName(1), world.LBName(2)}}
		a.run()
	})
}

type aloneTrial struct {
	*world.Trial
	result  *scenario.Result
	lbs     []string
	running *world.Load
	spans   []aloneSpan
}

// aloneSpan is a time in which a server gets no new connection, and none is refused.
type aloneSpan struct {
	what     string
	server   int
	from, to time.Time
}

func (a *aloneTrial) run() {
	c1, e1 := world.ControllerName(1), world.MemberName(1)
	a.running = a.Traffic.Generate(scenario.Shorts(a.Fleet.Target(), 40))
	a.Traffic.Busy(a.running, aloneBusy)
	a.outage(3, func() { a.Controllers.Running[c1].Kill() }, func() {
		a.Controllers.Start(c1)
		a.Controllers.Await(c1)
	}, func() { restartAlone(a.Trial, 1) })
	a.outage(2, func() { a.Controllers.Members[e1].Kill() }, func() { a.Controllers.StartMember(e1) }, func() {})
	a.running.Finish(a.Context)
	for _, connection := range a.running.Connections {
		for _, s := range a.spans {
			if connection.Started.Before(s.from) || connection.Started.After(s.to) {
				continue
			}
			a.result.Expect(connection.Server != world.ServerName(s.server) && connection.Class == traffic.Completed,
				"%s: a new connection to %q, %v after its checks failed, ended as %s: %s",
				s.what, connection.Server, connection.Started.Sub(s.from).Round(time.Millisecond), connection.Class, connection.Detail)
		}
	}
}

// outage loses whoever judges, then a server's application; the judge comes back, and then the application.
func (a *aloneTrial) outage(server int, lose, restore, meanwhile func()) {
	name := world.ServerName(server)
	a.Event("nobody judges any more", func() {
		lose()
		a.awaitAlone(true, aloneMax)
	})
	a.Event("the application of "+name+" is killed", func() {
		a.Servers.Kill(server)
		a.Monitor.AwaitHealth(server, true, a.lbs...)
	})
	from := time.Now()
	a.Traffic.Busy(a.running, aloneBusy)
	a.Event("what may happen meanwhile", meanwhile)
	a.awaitAlone(true, aloneMax)
	a.expectJudgedHere(server)
	a.Traffic.Busy(a.running, aloneBusy)
	a.Event("somebody judges again", func() {
		restore()
		a.awaitAlone(false, agreedMax)
	})
	a.Traffic.Busy(a.running, aloneBusy)
	a.spans = append(a.spans, aloneSpan{fmt.Sprintf("without %s", name), server, from, time.Now()})
	before := a.running.Now().Attempted
	a.Event("the application of "+name+" is started again", func() {
		a.Servers.Restart(server)
		a.Monitor.AwaitHealth(server, false, a.lbs...)
		a.Traffic.Until(a.running, world.ResumeMax, "it gets connections", func(p traffic.Progress) bool { return p.Attempted > before+aloneBusy })
	})
	dispatched := script.Must(a.Monitor.Dispatched(server))
	a.Traffic.Busy(a.running, aloneBusy)
	for i, after := range script.Must(a.Monitor.Dispatched(server)) {
		a.result.Expect(after > dispatched[i], "%s gives %s nothing though it is back", a.lbs[i], name)
	}
}

// awaitAlone waits until all load balancers judge by themselves, or none does.
func (a *aloneTrial) awaitAlone(alone bool, within time.Duration) {
	for _, lb := range a.lbs {
		await.Promised(a.Context, within, fmt.Sprintf("%s judges alone: %t", lb, alone), func() error {
			var status api.LBStatus
			if err := a.Daemons.Client(lb).Get(a.Context, api.PathStatus, &status); err != nil {
				return err
			}
			if status.JudgesAlone != alone {
				return errors.New("not yet")
			}
			return nil
		})
	}
}

// expectJudgedHere: whoever asks a load balancer is told who has judged, and why.
func (a *aloneTrial) expectJudgedHere(server int) {
	for _, lb := range a.lbs {
		await.Promised(a.Context, world.ResumeMax, lb+" says that its own checks fail", func() error {
			of, err := a.Monitor.Server(lb, server)
			if err == nil && (of.Health != "unhealthy" || !strings.HasPrefix(of.HealthDetail, "by this load balancer's own checks: ")) {
				err = fmt.Errorf("server %d is %s: %s", server, of.Health, of.HealthDetail)
			}
			return err
		})
	}
}

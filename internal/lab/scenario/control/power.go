// power: machines lose their power that are load balancers, servers and controllers.
package control

import (
	"fmt"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	powerMost  = 8 * time.Second  // until a server without power gets nothing new, with the checks that are the default
	powerAlone = 10 * time.Second // where the controller that is left has to find that it cannot write
	powerMax   = 40 * time.Second // until it is given up
	// synTimeout is when a client's kernel repeats a SYN that nobody has answered: another server may get that.
	synTimeout = time.Second
)

func runPower(run *scenario.Run) {
	for _, of := range []struct {
		name, measure string
		controllers   []int // that lose power
		most          time.Duration
	}{{"one of two machines", "one_machine", []int{3}, powerMost}, {"all machines but one", "all_but_one", []int{2, 3}, powerAlone}} {
		service := scenario.CheckedService()
		service.Health.Interval, service.Health.Timeout, service.Health.Rise, service.Health.Fall = model.Duration(2*time.Second), model.Duration(time.Second), 2, 3
		run.Trial(world.Setup{
			Name: of.name, Services: []*fleet.Service{service}, Cuts: true,
			Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 4), Management: true, Controllers: 3, EtcdMembers: 3},
		}, func(t *world.Trial) {
			(&power{Trial: t, result: run.Result}).lose(of.measure, of.most, of.controllers...)
		})
	}
}

type power struct {
	*world.Trial
	result *scenario.Result
}

// lose takes the power of lb2, s4 and some controllers, with their members of etcd, and measures until lb1 gives s4 nothing new.
func (p *power) lose(what string, most time.Duration, controllers ...int) {
	survivor := world.LBName(1)
	running := p.Traffic.Generate(scenario.Shorts(p.Fleet.Target(), 40))
	p.Traffic.Busy(running, 4*aloneBusy)
	begin := time.Now()
	p.Event(fmt.Sprintf("lb2, s4 and %d controllers lose power", len(controllers)), func() {
		for _, node := range []string{world.LBName(2), world.ServerName(4)} { // links first: nobody is told
			p.Network.Partition(node, true)
		}
		for _, i := range controllers {
			p.Network.Partition(world.ControllerName(i), true)
			p.Network.Partition(world.MemberName(i), true)
		}
		p.Failures.CrashLB(2)
		p.Failures.CutServer(4)
	})
	await.Until(p.Context, powerMax, survivor+" takes s4 out", func() error {
		of, err := p.Monitor.Server(survivor, 4)
		if err == nil && of.Health != "unhealthy" {
			err = fmt.Errorf("it is %s: %s", of.Health, of.HealthDetail)
		}
		if err == nil {
			p.result.Expect(strings.HasPrefix(of.HealthDetail, "by "), "%s does not say by whom s4 is unhealthy: %q", survivor, of.HealthDetail)
		}
		return err
	})
	from := time.Now()
	took := loadmeter.Since(begin)
	p.result.Measure("seconds_until_unhealthy_"+what, world.Round(from.Sub(begin)))
	p.result.Expect(took <= most, "%s gave s4 new connections for %v, not %v at most", survivor, took, most)
	p.Traffic.Busy(running, aloneBusy)
	running.Finish(p.Context)
	last := time.Duration(0) // connection that nobody answered at first
	for _, connection := range running.Connections {
		if connection.Started.After(begin) && connection.Ended.Sub(connection.Started) >= synTimeout {
			last = max(last, connection.Started.Sub(begin))
		}
		p.result.Expect(connection.Started.Before(from) || connection.Class == traffic.Completed && connection.Server != world.ServerName(4), "a new connection to %q, %v after s4 was taken out, ended as %s: %s",
			connection.Server, connection.Started.Sub(from).Round(time.Millisecond), connection.Class, connection.Detail)
	}
	p.result.Measure("seconds_until_last_repeated_"+what, world.Round(last))
}

// Package migrate moves VIPs from HAProxy to Ballast and back while connections live.
package migrate

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

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
		Name: "migrate", Deadline: 5 * time.Minute, Do: runMigrate,
		Promise: "VIPs move from HAProxy to Ballast and back: no connection breaks, and of new ones as many begin at Ballast as share says; a plain change of routes breaks those that live",
	},
	{
		Name: "migrate-ipv6", Deadline: 5 * time.Minute, Do: runMigrateIPv6,
		Promise: "VIPs of IPv6 move from HAProxy to Ballast and back: no connection breaks; a load balancer says when HAProxy's link is down",
	},
}

// Implementation constants.
const (
	within    = 30 * time.Second
	idleMax   = 90 * time.Second // until no connection counts that went on to the predecessor: a minute after its last packet, and some more
	holding   = 8                // downloads of a service that live as long as it is wanted, and half as many browsers
	perSecond = 60               // short connections of a service
	settled   = 100              // short connections until those of before a change have ended
	canary    = 100              // share, per mille
	counted   = 900              // short connections of all services while that is so
	canaryMin = 0.055            // of them that begin at Ballast: 4.5 standard deviations less
	canaryMax = 0.145            // and more
	nearlyAll = 0.95             // but those whose SYN was lost before the change and comes again after: a table keeps their side
)

// VIPs of the services, one each.
var (
	vips4 = [...]string{scenario.VIP4, "198.51.100.11", "198.51.100.12"}
	vips6 = [...]string{scenario.VIP6, "2001:db8:100::11", "2001:db8:100::12"}
)

// services are of the affinities that can have a predecessor, each with another way to its servers.
func services(vips [3]string) []*fleet.Service {
	cookie, table := scenario.CookieService(vips[0]), scenario.TableService(vips[1], model.Table{Entries: model.DefaultEntries})
	cookie.Name, table.Name, table.Forward = "cookie", "table", model.ForwardGUE
	local := scenario.LocalService(vips[2])
	local.Name, local.Forward = "local-table", model.ForwardL2
	return []*fleet.Service{cookie, table, local}
}

func setup(name string, vips [3]string) world.Setup {
	return world.Setup{Name: name, Services: services(vips), Reports: true,
		Topology: world.Topology{LBs: 2, Former: true, Servers: make([]world.ServerNode, 4)}}
}

func runMigrate(run *scenario.Run) {
	outcome := run.Trial(setup("predecessor", vips4), func(t *world.Trial) {
		m := begin(t, run.Result)
		m.in(func() { runPlain(run) })
		m.out()
	})
	handed := uint64(0) // by servers: what looked like a cookie of theirs
	for _, counters := range outcome.Counters {
		handed += counters["handed_to_predecessor"]
	}
	run.Result.Measure("handed_to_predecessor", float64(handed))
}

func runMigrateIPv6(run *scenario.Run) {
	run.Trial(setup("predecessor over IPv6", vips6), func(t *world.Trial) {
		m := begin(t, run.Result)
		m.in(m.loseLink)
		m.out()
	})
}

// loseLink takes HAProxy's link away while nobody needs it but by what load balancers counted in the last minute, and gives it back.
func (m *move) loseLink() {
	link := func(up bool) { script.Check(m.Lab.Space(world.LBName(m.former.Number())).SetLink("eth1", up)) }
	missed := func(want bool) func() error {
		return func() error {
			for _, lb := range m.lbs {
				lost, err := m.Monitor.LostPredecessors(lb)
				if err != nil {
					return err
				}
				if (lost == len(m.Fleet.Services)) != want {
					return fmt.Errorf("%s misses the predecessors of %d services", lb, lost)
				}
			}
			return nil
		}
	}
	m.Event("HAProxy's link is down", func() {
		link(false)
		for _, lb := range m.lbs { // which would believe in it for half a minute yet
			script.Check(m.Lab.Run(lb, "", "ip", "neighbour", "flush", "all"))
		}
		await.Promised(m.Context, within, "load balancers miss the predecessor", missed(true))
	})
	m.Event("HAProxy's link is up", func() {
		link(true)
		await.Promised(m.Context, within, "load balancers find the predecessor", missed(false))
	})
}

// runPlain is what happens without a predecessor.
func runPlain(run *scenario.Run) {
	plain := setup("plain change of routes", vips4)
	plain.Baseline = true
	run.Trial(plain, func(t *world.Trial) {
		m := begin(t, run.Result)
		held := m.hold("from HAProxy")
		m.Event("routes lead to Ballast", func() { m.route(1, 2) })
		m.Measure("broken_by_plain_move_in", m.broken(held))
		held = m.hold("from Ballast")
		m.Event("routes lead to HAProxy", func() { m.route(m.former.Number()) })
		m.Measure("broken_by_plain_move_out", m.broken(held))
	})
}

// move is the series of events of one trial.
type move struct {
	*world.Trial
	*scenario.Result
	former *world.Former
	lbs    []string
	shorts *world.Load
}

// begin has HAProxy serve the VIPs.
func begin(t *world.Trial, result *scenario.Result) *move {
	m := &move{Trial: t, Result: result, former: t.StartFormer(), lbs: []string{world.LBName(1), world.LBName(2)}}
	m.route(m.former.Number())
	return m
}

func (m *move) route(hosts ...int) {
	for _, one := range m.Fleet.Services {
		m.Routes.Send(one.VIP, hosts...)
	}
}

// hold starts connections to all services that stay busy until they are to end, and waits until all have a server.
func (m *move) hold(name string) *world.Load {
	var flows []traffic.Flow
	for _, one := range m.Fleet.Services {
		for _, flow := range []traffic.Flow{scenario.Downloads(one.Target(), holding), scenario.Browsers(one.Target(), holding/2)} {
			flow.Name = fmt.Sprintf("%s of %s, %s", flow.Name, one.Name, name)
			flows = append(flows, flow)
		}
	}
	running := m.Traffic.Generate(flows...)
	m.Traffic.Until(running, within, "all connections "+name+" have a server", func(p traffic.Progress) bool { return p.Served() == m.held() })
	return running
}

// held is how many connections hold holds.
func (m *move) held() int { return len(m.Fleet.Services) * (holding + holding/2) }

// broken waits until all connections of a load have ended, and is how many of them broke.
func (m *move) broken(held *world.Load) float64 {
	m.Traffic.Until(held, within, "most of those that lived are broken", func(p traffic.Progress) bool { return p.Broken >= m.held()*3/4 })
	held.Finish(m.Context)
	progress, _ := held.State()
	return float64(progress.Broken)
}

// set changes the predecessor of all services.
func (m *move) set(to model.Predecessor) {
	for _, one := range m.Fleet.Services {
		one.Predecessor = to
	}
	m.Rollout.Apply()
}

// share has so many of the new connections per mille begin at Ballast, and the others at HAProxy.
func (m *move) share(permille uint16) {
	m.set(model.Predecessor{Addresses: []netip.Addr{m.former.Address()}, Forward: model.ForwardL2, Share: model.ShareOf(permille)})
}

// begun is how many connections to each service have begun at Ballast, and at HAProxy.
func (m *move) begun() (here, there map[string]int) {
	here, there = map[string]int{}, map[string]int{}
	for _, one := range m.Fleet.Services {
		_, begun, err := m.former.Connections(one.VIP)
		script.Check(err)
		here[one.Name], there[one.Name] = script.Must(m.Monitor.Begun(one.Name, m.lbs...)), begun
	}
	return here, there
}

// during is what part of the connections that begin while something happens begins at Ballast. It waits first until those of before have ended.
func (m *move) during(do func()) (part float64) {
	m.Traffic.Busy(m.shorts, settled)
	here, there := m.begun()
	do()
	hereNow, thereNow := m.begun()
	begun, all := 0, 0
	for _, one := range m.Fleet.Services {
		begun += hereNow[one.Name] - here[one.Name]
		all += hereNow[one.Name] - here[one.Name] + thereNow[one.Name] - there[one.Name]
	}
	m.Expect(all > 0, "no connection began")
	return float64(begun) / float64(all)
}

// more waits until as many short connections have begun.
func (m *move) more(connections int) func() {
	return func() { m.Traffic.Busy(m.shorts, connections) }
}

// succeeded waits until so many connections go on to HAProxy, by what load balancers say.
func (m *move) succeeded(least, most int, within time.Duration) {
	await.Promised(m.Context, within, fmt.Sprintf("%d to %d connections go on to the predecessor", least, most), func() error {
		have, err := m.Monitor.Succeeded(m.lbs...)
		if err == nil && (have < least || have > most) {
			err = fmt.Errorf("%d do", have)
		}
		return err
	})
}

// in moves the VIPs from HAProxy to Ballast. Meanwhile is what happens while the last connections of HAProxy go out of mind.
func (m *move) in(meanwhile func()) {
	old := m.hold("from HAProxy")
	var flows []traffic.Flow
	for _, one := range m.Fleet.Services {
		flows = append(flows, scenario.Shorts(one.Target(), perSecond))
	}
	m.shorts = m.Traffic.Generate(flows...)
	m.Event("HAProxy becomes the predecessor", func() { m.share(0) })
	m.Event("routes lead to Ballast", func() { m.route(1, 2) })
	part := m.during(m.more(settled))
	m.Expect(part == 0, "share 0: %v of the connections began at Ballast", part)
	m.succeeded(m.held(), math.MaxInt, within)
	m.Event("a canary", func() { m.share(canary) })
	part = m.during(m.more(counted))
	m.Measure("canary_share", part)
	m.Expect(part >= canaryMin && part <= canaryMax, "share %d: %v of the connections began at Ballast", canary, part)
	m.oneAlone()
	m.Event("all begin at Ballast", func() { m.share(model.ShareAll) })
	part = m.during(m.more(settled))
	m.Expect(part >= nearlyAll, "share %d: %v of the connections began at Ballast", model.ShareAll, part)
	m.Event("the connections of HAProxy end", func() {
		for _, one := range m.Fleet.Services {
			open, _, err := m.former.Connections(one.VIP)
			script.Check(err)
			m.Expect(open >= holding+holding/2, "%s: only %d connections of HAProxy were open", one.Name, open)
		}
		old.Finish(m.Context)
	})
	ended := time.Now()
	meanwhile()
	m.succeeded(0, 0, idleMax)
	m.Measure("idle_after_seconds", world.Round(time.Since(ended)))
	m.Event("HAProxy is forgotten", func() { m.set(model.Predecessor{}) })
}

// oneAlone takes each load balancer away for a while: what decides where a connection begins, and where it began, is the same at both. A local
// table is not.
func (m *move) oneAlone() {
	route := func(hosts ...int) {
		for _, one := range m.Fleet.Services {
			if one.Affinity.Cookies() {
				m.Routes.Send(one.VIP, hosts...)
			}
		}
	}
	for i := 1; i <= 2; i++ {
		m.Event(world.LBName(i)+" is alone", func() { route(i) })
		m.more(settled)()
	}
	m.Event("both are back", func() { route(1, 2) })
}

// out moves the VIPs back to HAProxy.
func (m *move) out() {
	old := m.hold("from Ballast")
	m.Event("HAProxy becomes the successor", func() { m.share(0) })
	part := m.during(m.more(settled))
	m.Expect(part <= 1-nearlyAll, "share 0: %v of the connections began at Ballast", part)
	m.hold("from HAProxy again")
	m.Event("the connections of Ballast end", func() {
		old.Finish(m.Context)
		for _, lb := range m.lbs {
			await.Promised(m.Context, within, lb+" knows no connection of a server", func() error { return m.empty(lb) })
		}
	})
	m.Event("routes lead to HAProxy", func() { m.route(m.former.Number()) })
	m.more(settled)()
	m.shorts.Finish(m.Context)
}

// empty is why a load balancer does not say that servers have no connection.
func (m *move) empty(lb string) error {
	servers, err := m.Monitor.Servers(lb)
	for _, one := range servers {
		if one.Connections == nil {
			return errors.Join(err, fmt.Errorf("of those of %s on %s it says nothing", one.Service, one.Server.Name))
		}
	}
	return errors.Join(err, m.Monitor.EstimatesNothing(lb))
}

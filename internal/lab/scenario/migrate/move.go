package migrate

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// move is the series of events of one trial.
type move struct {
	*world.Trial
	*scenario.Result
	former    *world.Former
	lbs       []string
	perSecond float64     // short connections of a service
	shorts    *world.Load // of TCP
	questions *world.Load // of UDP; nil: none
}

// begin has the former load balancer serve the VIPs. On a segment it answers for them.
func begin(t *world.Trial, result *scenario.Result, former *world.Former) *move {
	m := &move{Trial: t, Result: result, former: former, perSecond: perSecond, lbs: []string{world.LBName(1), world.LBName(2)}}
	for _, one := range m.datagrams() {
		t.Endpoints.StartEchoes(one.Target())
	}
	if !m.Network.Segment {
		m.route(m.former.Number())
	}
	return m
}

// datagrams are the services of UDP.
func (m *move) datagrams() (services []*fleet.Service) {
	for _, one := range m.Fleet.Services {
		if one.Protocol == model.ProtocolUDP {
			services = append(services, one)
		}
	}
	return services
}

func (m *move) route(hosts ...int) {
	for _, one := range m.Fleet.Services {
		m.Routes.Send(one.VIP, hosts...)
	}
}

// hold has connections to all services that stay busy until they are to end.
func (m *move) hold(name string) *world.Load {
	var flows []traffic.Flow
	for _, one := range m.Fleet.Services {
		busy := []traffic.Flow{scenario.Downloads(one.Target(), holding), scenario.Browsers(one.Target(), holding/2)}
		if one.Protocol == model.ProtocolUDP {
			busy = []traffic.Flow{{Name: "datagrams", Target: one.Target(), UDP: true, Count: holding + holding/2, Concurrent: holding + holding/2, PerSecond: 100,
				Repeat: true, Again: again, Requests: []traffic.Request{{Bytes: 100, Pause: 200 * time.Millisecond}, {Bytes: 900, Pause: time.Second}}}}
		}
		for _, flow := range busy {
			flow.Name = fmt.Sprintf("%s of %s, %s", flow.Name, one.Name, name)
			flows = append(flows, flow)
		}
	}
	return scenario.Hold(m.Trial, "all connections "+name+" have a server", flows...)
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

// share has so many of the new connections per mille begin at Ballast, and the others at the former.
func (m *move) share(permille uint16) {
	m.set(model.Predecessor{Addresses: []netip.Addr{m.former.Address()}, Forward: model.ForwardL2, Share: model.ShareOf(permille)})
}

// begun is how many connections to each service have begun at Ballast, and at the former.
func (m *move) begun() (here, there map[string]int) {
	here, there = map[string]int{}, map[string]int{}
	for _, one := range m.Fleet.Services {
		here[one.Name], there[one.Name] = script.Must(m.Monitor.Begun(one.Name, m.lbs...)), script.Must(m.former.Begun(one))
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

// succeeded waits until so many connections go on to the former, by what load balancers say.
func (m *move) succeeded(least, most int, within time.Duration) {
	await.Promised(m.Context, within, fmt.Sprintf("%d to %d connections go on to the predecessor", least, most), func() error {
		have, err := m.Monitor.Succeeded(m.lbs...)
		if err == nil && (have < least || have > most) {
			err = fmt.Errorf("%d do", have)
		}
		return err
	})
}

// ask starts short flows of UDP, until stopAsking.
func (m *move) ask() {
	var flows []traffic.Flow
	for _, one := range m.datagrams() {
		flows = append(flows, traffic.Flow{Name: "short datagrams", Target: one.Target(), UDP: true, Concurrent: 200, PerSecond: m.perSecond, Again: again,
			Requests: []traffic.Request{{Bytes: 100}, {Bytes: 100}}})
	}
	if len(flows) > 0 {
		m.questions = m.Traffic.Generate(flows...)
	}
}

func (m *move) stopAsking() {
	if m.questions != nil {
		m.questions.Finish(m.Context)
	}
}

// in moves the VIPs from the former to Ballast. Meanwhile is what happens while its last connections go out of mind.
func (m *move) in(meanwhile func()) {
	old := m.hold("from the former")
	var flows []traffic.Flow
	for _, one := range m.Fleet.Services {
		if one.Protocol != model.ProtocolUDP {
			flows = append(flows, scenario.Shorts(one.Target(), m.perSecond))
		}
	}
	m.shorts = m.Traffic.Generate(flows...)
	m.ask()
	m.Event("the former becomes the predecessor", func() { m.share(0) })
	if m.Network.Segment {
		m.Event("load balancers want the VIPs", m.beside)
		m.Event("the former gives the VIPs up", m.take)
	} else {
		m.Event("routes lead to Ballast", func() { m.route(1, 2) })
	}
	part := m.during(m.more(settled))
	m.Expect(part == 0, "share 0: %v of the connections began at Ballast", part)
	m.succeeded(m.held(), math.MaxInt, within)
	m.Event("a canary", func() { m.share(canary) })
	part = m.during(m.more(counted))
	m.Measure("canary_share", part)
	m.Expect(part >= canaryMin && part <= canaryMax, "share %d: %v of the connections began at Ballast", canary, part)
	if !m.Network.Segment {
		m.oneAlone()
	}
	m.Event("all begin at Ballast", func() { m.share(model.ShareAll) })
	part = m.during(m.more(settled))
	m.Expect(part >= nearlyAll, "share %d: %v of the connections began at Ballast", model.ShareAll, part)
	m.flap()
	m.Event("the connections of the former end", func() {
		open := script.Must(m.former.Open(old))
		m.Expect(open >= m.held(), "only %d connections of the former were open", open)
		old.Finish(m.Context)
		m.stopAsking() // else some port is used again that is known as the former's
	})
	ended := time.Now()
	meanwhile()
	m.succeeded(0, 0, idleMax)
	m.Measure("idle_after_seconds", world.Round(time.Since(ended)))
	m.ask()
	m.Event("the former is forgotten", func() { m.set(model.Predecessor{}) })
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

// flap changes the share forth and back while connections of both sides live: none changes sides.
func (m *move) flap() {
	here := m.hold("from Ballast while share changes")
	m.Event("share changes forth and back", func() {
		for range flaps {
			m.share(0)
			m.share(model.ShareAll)
		}
	})
	m.more(settled)()
	here.Finish(m.Context)
}

// out moves the VIPs back to the former.
func (m *move) out() {
	old := m.hold("from Ballast")
	m.Event("the former becomes the successor", func() { m.share(0) })
	part := m.during(m.more(settled))
	m.Expect(part <= 1-nearlyAll, "share 0: %v of the connections began at Ballast", part)
	m.hold("from the former again")
	m.Event("the connections of Ballast end", func() {
		old.Finish(m.Context)
		for _, lb := range m.lbs {
			await.Promised(m.Context, within, lb+" knows no connection of a server", func() error { return m.empty(lb) })
		}
		m.silent()
	})
	if m.Network.Segment {
		m.Event("the former takes the VIPs", m.giveBack)
	} else {
		m.Event("routes lead to the former", func() { m.route(m.former.Number()) })
	}
	m.more(settled)()
	m.shorts.Finish(m.Context)
}

// empty is why a load balancer does not say that servers have no connection.
func (m *move) empty(lb string) error {
	servers, err := m.Monitor.Servers(lb)
	for _, one := range servers {
		if one.Connections == nil && !slices.ContainsFunc(m.datagrams(), func(s *fleet.Service) bool { return s.Name == one.Service }) {
			return errors.Join(err, fmt.Errorf("of those of %s on %s it says nothing", one.Service, one.Server.Name))
		}
	}
	return errors.Join(err, m.Monitor.EstimatesNothing(lb))
}

// silent waits until servers of UDP get no packet: that is how its flows end.
func (m *move) silent() {
	sent := func() (packets uint64) {
		for _, one := range m.datagrams() {
			packets += script.Must(m.Monitor.Sent(one.Name, m.lbs...))
		}
		return packets
	}
	await.Promised(m.Context, within, "servers get no datagrams", func() error {
		before := sent()
		m.more(settled)()
		if after := sent(); after != before {
			return fmt.Errorf("%d came meanwhile", after-before)
		}
		return nil
	})
}

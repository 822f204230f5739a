// Package migrate moves VIPs from other load balancers to Ballast and back while connections live.
package migrate

import (
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
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
	{
		Name: "migrate-l2", Deadline: 5 * time.Minute, Do: runMigrateL2,
		Promise: "VIPs on the load balancers' own segment move from HAProxy to Ballast and back by the commands of the documents: no connection breaks, and load balancers take none that HAProxy answers for",
	},
	{
		Name: "migrate-fleet", Deadline: 6 * time.Minute, Do: runMigrateFleet,
		Promise: "VIPs of TCP and UDP move from one fleet to another that has other keys, and back: no connection or flow breaks, and nothing goes round between fleets that name each other",
	},
}

// Implementation constants.
const (
	within    = 30 * time.Second
	idleMax   = 90 * time.Second       // until no connection counts that went on to the predecessor: a minute after its last packet, and some more
	holding   = 8                      // downloads of a service that live as long as it is wanted, and half as many browsers
	perSecond = 60                     // short connections of a service
	settled   = 100                    // short connections until those of before a change have ended
	canary    = 100                    // share, per mille
	counted   = 900                    // short connections of all services while that is so
	canaryMin = 0.055                  // of them that begin at Ballast: 4.5 standard deviations less
	canaryMax = 0.145                  // and more
	nearlyAll = 0.95                   // but those whose SYN was lost before the change and comes again after: a table keeps their side
	flaps     = 3                      // of share, forth and back
	again     = 500 * time.Millisecond // until a client sends a datagram again that was not answered
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
	handedOver(run, run.Trial(setup("predecessor", vips4), func(t *world.Trial) {
		m := begin(t, run.Result, t.StartFormerProxy())
		m.in(func() { runPlain(run, setup("plain change of routes", vips4), proxied) })
		m.out()
	}))
}

// handedOver measures what servers handed over: it had looked like a cookie of theirs.
func handedOver(run *scenario.Run, outcome world.Result) (packets uint64) {
	for _, counters := range outcome.Counters {
		packets += counters["handed_to_predecessor"]
	}
	run.Result.Measure("handed_to_predecessor", float64(packets))
	return packets
}

func runMigrateIPv6(run *scenario.Run) {
	run.Trial(setup("predecessor over IPv6", vips6), func(t *world.Trial) {
		m := begin(t, run.Result, t.StartFormerProxy())
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

func proxied(t *world.Trial) *world.Former { return t.StartFormerProxy() }

// runPlain is what happens without a predecessor.
func runPlain(run *scenario.Run, plain world.Setup, former func(*world.Trial) *world.Former) {
	plain.Baseline = true
	run.Trial(plain, func(t *world.Trial) {
		m := begin(t, run.Result, former(t))
		held := m.hold("from the former")
		m.Event("routes lead to Ballast", func() { m.route(1, 2) })
		m.Measure("broken_by_plain_move_in", m.broken(held))
		held = m.hold("from Ballast")
		m.Event("routes lead to the former", func() { m.route(m.former.Number()) })
		m.Measure("broken_by_plain_move_out", m.broken(held))
	})
}

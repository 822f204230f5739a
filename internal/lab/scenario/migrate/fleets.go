package migrate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
)

// Implementation constants of the other fleet.
const (
	theirFirst = 5   // of its servers
	strays     = 100 // packets of no connection, to a service
)

// fleetServices are those of services, with cookies so narrow that many of the other fleet look like ours, and one of UDP.
func fleetServices() []*fleet.Service {
	all := append(services(vips4), datagramService("198.51.100.13"))
	all[0].CookieBits = model.MinCookieBits
	return all
}

// datagramService is one of UDP that can have a predecessor.
func datagramService(vip string) *fleet.Service {
	one := scenario.LocalService(vip)
	one.Name, one.Protocol, one.Ports = "udp", model.ProtocolUDP, []uint16{4000}
	return one
}

func fleetSetup(name string) world.Setup {
	return world.Setup{Name: name, Services: fleetServices(), Reports: true, Members: []int{1, 2, 3, 4},
		Topology: world.Topology{LBs: 2, Former: true, Servers: make([]world.ServerNode, 6)}}
}

func runMigrateFleet(run *scenario.Run) {
	handed := handedOver(run, run.Trial(fleetSetup("predecessor"), func(t *world.Trial) {
		theirs := t.StartFormerFleet(theirFirst)
		m := begin(t, run.Result, theirs.Former)
		m.in(func() {
			m.circle(theirs)
			runPlain(run, fleetSetup("plain change of routes"), func(t *world.Trial) *world.Former { return t.StartFormerFleet(theirFirst).Former })
		})
		m.out()
	}))
	run.Result.Expect(handed > 0, "no cookie of the other fleet looked like one of ours")
}

// circle has both fleets name each other from now on: what neither has a connection of is dropped and counted once, and a load balancer says so.
func (m *move) circle(theirs *world.FormerFleet) {
	all := append(slices.Clone(m.lbs), world.LBName(m.former.Number()))
	count := func() map[string]uint64 { return script.Must(m.Counters.Verdicts(all...)) }
	m.Event("both fleets name each other", func() {
		for _, one := range theirs.Services {
			one.Predecessor = model.Predecessor{Addresses: []netip.Addr{world.FabricAddress(1), world.FabricAddress(2)}, Forward: model.ForwardL2}
		}
		theirs.Apply()
		outsiders, before := m.Clients.OpenOutsiders(), count()
		defer outsiders.Close()
		for range strays {
			stray := &frames.Segment{From: outsiders.From, To: outsiders.To, Client: outsiders.Address(), Service: netip.MustParseAddrPort(m.Fleet.Services[2].Target()),
				Sequence: m.Random.Uint32(), Acknowledged: m.Random.Uint32(), Value: 1, Echo: m.Random.Uint32()}
			script.Check(outsiders.Send(script.Must(stray.Frame())))
		}
		dropped := func() uint64 { return count()["dropped_predecessor_loop"] - before["dropped_predecessor_loop"] }
		await.Promised(m.Context, within, "what belongs to no connection is dropped", func() error {
			if have := dropped(); have < strays {
				return fmt.Errorf("%d of %d were", have, strays)
			}
			return nil
		})
		await.Promised(m.Context, within, "a load balancer says that packets come back", func() error {
			for _, lb := range all {
				problems, err := m.Monitor.Problems(lb)
				if err != nil || slices.ContainsFunc(problems, func(problem string) bool { return strings.Contains(problem, "dropped_predecessor_loop") }) {
					return err
				}
			}
			return fmt.Errorf("none of %v does", all)
		})
		m.Expect(dropped() == strays, "of %d strays %d were dropped", strays, dropped())
	})
}

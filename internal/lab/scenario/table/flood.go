// table: floods of what no TCP sends, while real clients work.
package table

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
)

// Implementation constants.
const (
	floodEntries   = 64                     // of the table: few, so that it is full soon
	floodCapacity  = floodEntries / 64 * 63 // connections that it has room for
	floodLasting   = 50                     // connections of trial.steady that last
	floodSYNs      = 5000
	floodForged    = 20_000
	floodReplayed  = 5000
	floodFINs      = 5000
	floodPerSecond = 12_500
	floodCaptured  = 300     // packets of real clients, to be repeated
	floodDelivered = 0.8     // of a flood that must come through: queues are short
	farSequence    = 1 << 30 // outside of every window
)

func floodSetup() world.Setup {
	return world.Setup{
		Name: "floods", Services: []*fleet.Service{scenario.TableService(scenario.VIP4, model.Table{Entries: floodEntries})},
		// With SYN cookies always: servers keep nothing of a flood either.
		Topology: tableTopology(scenario.Servers(4, map[string]string{"net.ipv4.tcp_syncookies": "2"})...),
	}
}

// flooder floods the service.
type flooder struct {
	*tableTrial
	*world.Outsiders
	service netip.AddrPort
}

func (x *tableTrial) runFloods() {
	running := scenario.Steady(x.Trial)
	f := &flooder{x, x.Clients.OpenOutsiders(), netip.MustParseAddrPort(x.Fleet.Target())}
	defer f.Close()
	captured := f.capture()
	x.Series(running,
		world.Step{What: "flood of SYNs", Do: f.floodSYNs},
		world.Step{What: "flood of forged cookies", Do: f.floodForged},
		world.Step{What: "flood of repeated packets", Do: func() { f.floodReplayed(captured) }},
		world.Step{What: "flood of FINs, forged and with cookies of real connections", Do: func() { f.floodFINs(captured) }},
		world.Step{What: "the flood's entries are free again", Do: f.awaitForgotten})
}

// capture collects packets that real clients send within their connections.
func (f *flooder) capture() []frames.Segment {
	ear := script.Must(f.Network.OpenFrames(world.ClientNode, "eth0"))
	defer ear.Close()
	var packets []frames.Segment
	await.Until(f.Context, world.Stall, fmt.Sprintf("%d packets are overheard", floodCaptured), func() error {
		for {
			frame, err := ear.Receive()
			if err != nil {
				return await.Stop(err)
			}
			if frame == nil {
				return fmt.Errorf("only %d", len(packets))
			}
			segment, ok := frames.Parse(frame)
			if ok && segment.Service == f.service && !segment.SYN && !segment.FIN && segment.Echo != 0 {
				segment.From, segment.To = f.From, f.To
				packets = append(packets, segment)
			}
			if len(packets) == floodCaptured {
				return nil
			}
		}
	})
	return packets
}

// outsider is the next packet of a client that does not exist.
func (f *flooder) outsider() frames.Segment {
	return frames.Segment{
		From: f.From, To: f.To, Client: f.Address(), Service: f.service,
		Sequence: f.Random.Uint32(), Acknowledged: f.Random.Uint32(), Value: f.Random.Uint32(), Echo: f.Random.Uint32() | 1,
	}
}

// flood sends packets at the rate of the flood, waits until most of them were counted by the verdicts that they must get, and measures what
// they did. It returns all that was counted meanwhile, of real clients too.
func (f *flooder) flood(name string, count int, next func(i int) frames.Segment, verdicts ...string) (counted map[string]uint64) {
	before := script.Must(f.Counters.Verdicts(f.lbs...))
	f.Flood(floodPerSecond, func(i int) ([]byte, bool) {
		if i == count {
			return nil, false
		}
		segment := next(i)
		return script.Must(segment.Frame()), true
	})
	await.Until(f.Context, world.Stall, fmt.Sprintf("most of the %d packets are counted as %v", count, verdicts), func() (err error) {
		if counted, err = f.Counters.Verdicts(f.lbs...); err != nil {
			return err
		}
		sum := uint64(0)
		for verdict, packets := range before {
			counted[verdict] -= packets
		}
		for _, verdict := range verdicts {
			sum += counted[verdict]
		}
		if float64(sum) < floodDelivered*float64(count) {
			return fmt.Errorf("%d are", sum)
		}
		return nil
	})
	flood, real, err := f.held()
	f.result.Measure(name+"_sent", float64(count))
	f.result.Measure(name+"_entries", float64(flood))
	f.result.Measure(name+"_real_entries", float64(real))
	script.Check(err)
	return counted
}

// held are how many entries the flood has, and how many real connections that are open, of all load balancers.
func (f *flooder) held() (flood, real int, err error) {
	for _, lb := range f.lbs {
		entries, err := f.Tables.Entries(lb)
		if err != nil {
			return 0, 0, err
		}
		f.result.Expect(len(entries) <= floodCapacity, "%s lists %d connections, it has room for %d", lb, len(entries), floodCapacity)
		for _, one := range entries {
			switch {
			case netip.MustParsePrefix(world.OutsidersNet).Contains(one.Client.Addr()):
				flood++
			case world.IsOpen(one):
				real++
			}
		}
	}
	return flood, real, nil
}

func (f *flooder) floodSYNs() {
	f.flood("syn_flood", floodSYNs, func(int) frames.Segment {
		segment := f.outsider()
		segment.SYN, segment.Echo = true, 0
		return segment
	}, "forwarded_new")
	taken := f.result.Measurements["syn_flood_entries"]
	f.result.Expect(taken == 0, "SYNs took %.0f entries", taken)
}

func (f *flooder) floodForged() {
	counted := f.flood("forged", floodForged, func(int) frames.Segment { return f.outsider() },
		"forwarded_bad_cookie", "forwarded_added", "forwarded_table_full")
	f.result.Measure("forged_table_full", float64(counted["forwarded_table_full"]))
	f.result.Expect(counted["forwarded_table_full"] > 0, "the table was never full: the flood proves nothing")
}

func (f *flooder) floodReplayed(captured []frames.Segment) {
	// Those of connections that have ended meanwhile may not find their entry.
	f.flood("replayed", floodReplayed, func(i int) frames.Segment { return captured[i%len(captured)] },
		"forwarded_by_table", "forwarded_added", "forwarded_table_full")
}

func (f *flooder) floodFINs(captured []frames.Segment) {
	f.flood("fin_flood", floodFINs, func(i int) frames.Segment {
		segment := f.outsider()
		if i%2 == 0 {
			segment = captured[i/2%len(captured)]
			segment.Sequence += farSequence // a server's TCP does not believe it; a load balancer cannot know
		}
		segment.FIN = true
		return segment
	}, "forwarded_by_table", "forwarded_added", "forwarded_table_full", "forwarded_by_cookie", "forwarded_bad_cookie")
}

// awaitForgotten waits until the flood has no entry any more, and all lasting connections have one.
func (f *flooder) awaitForgotten() {
	begin := time.Now()
	await.Promised(f.Context, tableSettles, "no entry is the flood's, and lasting connections have theirs", func() error {
		flood, real, err := f.held()
		if err == nil && (flood > 0 || real < floodLasting) {
			err = fmt.Errorf("%d are, and %d are real", flood, real)
		}
		return err
	})
	f.result.Measure("seconds_until_flood_is_forgotten", world.Round(time.Since(begin)))
}

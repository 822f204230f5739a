// Package path is about the path: tunnels, MTU, fragments, loss, the wrap of the cookie's clock.
package path

import (
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/model"
)

// Scenarios are those of this package.
var Scenarios = []scenario.Scenario{
	{
		Name: "forwards", Deadline: 3 * time.Minute, Do: runForwards,
		Promise: "l2, ipip in all four combinations of v4 and v6, gue and srv6 carry HTTP both ways",
	},
	{
		Name: "fragments", Deadline: time.Minute, Do: runFragments,
		Promise: "datagrams larger than the MTU, and IPv4 packets without Don't Fragment that leave no room for a tunnel, reach one server whole and are answered",
	},
	{
		Name: "pmtu", Deadline: 3 * time.Minute, Do: runPMTU,
		Promise: "uploads and downloads complete across a smaller MTU on either side",
	},
	{
		Name: "syn-loss", Deadline: 4 * time.Minute, Do: runSYNLoss,
		Promise: "handshakes with lost SYNs and SYN-ACKs complete",
	},
	{
		Name: "wrap", Deadline: 3 * time.Minute, Do: runWrap,
		Promise: "bulk transfers cross the wrap of the cookie's clock",
	},
}

// runForwards: every way to a server carries HTTP in both directions.
func runForwards(run *scenario.Run) {
	for _, way := range []struct {
		name, vip   string
		forward     model.Forward
		crossFamily bool
	}{
		{"l2 v4", scenario.VIP4, model.ForwardL2, false}, {"l2 v6", scenario.VIP6, model.ForwardL2, false},
		{"ipip v4 in v4", scenario.VIP4, model.ForwardIPIP, false}, {"ipip v6 in v6", scenario.VIP6, model.ForwardIPIP, false},
		{"ipip v4 in v6", scenario.VIP4, model.ForwardIPIP, true}, {"ipip v6 in v4", scenario.VIP6, model.ForwardIPIP, true},
		{"gue v4 in v4", scenario.VIP4, model.ForwardGUE, false}, {"gue v6 in v6", scenario.VIP6, model.ForwardGUE, false},
		{"srv6 v4 in v6", scenario.VIP4, model.ForwardSRv6, true}, {"srv6 v6 in v6", scenario.VIP6, model.ForwardSRv6, false},
	} {
		one := scenario.CookieService(way.vip)
		one.Forward, one.CrossFamily = way.forward, way.crossFamily
		run.Trial(world.Setup{
			Name: way.name, Services: []*fleet.Service{one}, Topology: world.Topology{LBs: 1, Servers: make([]world.ServerNode, 2)},
		}, func(t *world.Trial) { exchange(t, 100, 200_000) })
	}
}

// exchange runs a fixed number of connections to their end.
func exchange(t *world.Trial, connections int, bytes int64) {
	running := t.Traffic.Generate(scenario.Exchanges(t.Fleet.Target(), connections, bytes))
	running.Wait(t.Context)
}

// runPMTU: uploads to a server behind a smaller MTU, downloads to clients behind one.
func runPMTU(run *scenario.Run) {
	const smaller = 1400
	for _, vip := range []string{scenario.VIP4, scenario.VIP6} {
		topologies := []struct {
			name     string
			topology world.Topology
		}{
			{"server behind 1400", world.Topology{LBs: 2, Servers: []world.ServerNode{{FarMTU: smaller}, {FarMTU: smaller}}}},
			{"server behind 1400 that no route knows of", world.Topology{
				LBs: 2, Servers: []world.ServerNode{{FarMTU: smaller}, {FarMTU: smaller}}, RoutesHideMTU: true}},
			{"clients behind 1400", world.Topology{LBs: 2, Servers: make([]world.ServerNode, 3), ClientMTU: smaller}},
		}
		for _, one := range topologies {
			run.Trial(world.Setup{
				Name: one.name + " to " + vip, Services: []*fleet.Service{scenario.CookieService(vip)}, Topology: one.topology,
			}, func(t *world.Trial) { exchange(t, 60, 1_000_000) })
		}
	}
}

// runFragments: datagrams larger than the MTU reach one server whole, and what the load balancer has to send in fragments.
func runFragments(run *scenario.Run) {
	runWithoutRoom(run)
	for _, vip := range []string{scenario.VIP4, scenario.VIP6} {
		one := fleet.NewService("echo", vip)
		one.Protocol, one.Ports = model.ProtocolUDP, []uint16{4000}
		run.Trial(world.Setup{
			Name: "udp to " + vip, Services: []*fleet.Service{one}, Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 3)},
		}, func(t *world.Trial) {
			t.Endpoints.StartEchoes(t.Fleet.Target())
			running := t.Traffic.Generate(traffic.Flow{
				// Few at once: nobody repeats a datagram that a full queue of the lab's links has dropped.
				Name: "datagrams", Target: t.Fleet.Target(), UDP: true, Count: 200, Concurrent: 4,
				Requests: []traffic.Request{{Bytes: 100}, {Bytes: 3000}, {Bytes: 1400}, {Bytes: 9000}},
			})
			running.Wait(t.Context)
		})
	}
}

// runWithoutRoom: clients fill the MTU and set no Don't Fragment, and the MTU is the same everywhere.
func runWithoutRoom(run *scenario.Run) {
	for _, way := range []struct {
		forward model.Forward
		mode    string
	}{{model.ForwardIPIP, "native"}, {model.ForwardGUE, "generic"}} {
		web, echo := scenario.CookieService(scenario.VIP4), fleet.NewService("echo", scenario.VIP4)
		echo.Protocol, echo.Ports = model.ProtocolUDP, []uint16{4000}
		web.Forward, echo.Forward = way.forward, way.forward
		outcome := run.Trial(world.Setup{
			Name: fmt.Sprintf("without room, %s, %s", way.forward, way.mode), Services: []*fleet.Service{web, echo}, LBFlags: []string{"--xdp-mode", way.mode},
			Topology: world.Topology{
				LBs: 2, Servers: make([]world.ServerNode, 3), FabricMTU: 1500, ClientSysctls: map[string]string{"net.ipv4.ip_no_pmtu_disc": "1"},
			},
		}, func(t *world.Trial) {
			datagrams := echo.Target()
			t.Endpoints.StartEchoes(datagrams)
			running := t.Traffic.Generate(scenario.Exchanges(t.Fleet.Target(), 20, 300_000), traffic.Flow{
				Name: "datagrams", Target: datagrams, UDP: true, Count: 100, Concurrent: 4, Requests: []traffic.Request{{Bytes: 1472}, {Bytes: 100}, {Bytes: 5000}},
			})
			running.Wait(t.Context)
		})
		var cut uint64
		for _, counters := range outcome.Counters {
			cut += counters["forwarded_in_fragments"]
		}
		run.Result.Expect(cut > 1000, "%s: %d packets went in fragments", way.forward, cut)
	}
}

// runSYNLoss: handshakes whose SYN or SYN-ACK is lost are completed by a repetition, whatever server it reaches.
func runSYNLoss(run *scenario.Run) {
	for _, one := range []struct {
		name         string
		client, back link.Faults
		delay        time.Duration
	}{
		{"first SYN lost", link.Faults{DropSYNsPerFlow: 1}, link.Faults{}, 0},
		{"first SYN-ACK lost", link.Faults{}, link.Faults{DropSYNACKsPerFlow: 1}, 0},
		{"two SYN-ACKs lost", link.Faults{}, link.Faults{DropSYNACKsPerFlow: 2}, 0},
		{"2 % of everything lost, 40 ms", link.Faults{DropPermille: 20}, link.Faults{DropPermille: 20}, 20 * time.Millisecond},
	} {
		outcome := run.Trial(world.Setup{
			Name: one.name, Services: []*fleet.Service{scenario.CookieService(scenario.VIP4)},
			Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 4), ClientDelay: one.delay},
		}, func(t *world.Trial) {
			t.Network.Lose(world.ClientNode, "eth0", one.client)
			t.Network.Lose(world.RouterNode, world.ClientNode, one.back)
			exchange(t, 100, 50_000)
		})
		var lost uint64
		for _, losses := range outcome.Losses {
			lost += losses.DroppedRandom + losses.DroppedSYNs + losses.DroppedSYNACKs
		}
		run.Result.Expect(lost > 0, "%s: nothing was lost", one.name)
	}
}

// runWrap: bulk transfers, and connections that speak now and then, across the wrap of the cookie's
// clock: 2^(32-16) ms with the widest cookie, and with the default one if there is time.
func runWrap(run *scenario.Run) {
	length := run.Length(75 * time.Second)
	one := scenario.CookieService(scenario.VIP4)
	one.CookieBits = 16
	if length > wrapSeconds(14)*time.Second {
		one.CookieBits = 14
	}
	outcome := run.Trial(world.Setup{
		Name: fmt.Sprintf("cookie of %d bits", one.CookieBits), Services: []*fleet.Service{one}, Topology: world.Topology{LBs: 2, Servers: make([]world.ServerNode, 3)},
	}, func(t *world.Trial) {
		const rate = 2 << 20
		seconds := int64(length.Seconds())
		running := t.Traffic.Generate(
			traffic.Flow{Name: "bulk", Target: t.Fleet.Target(), Count: 6, Concurrent: 6,
				Requests: []traffic.Request{{Path: world.PathSlow(rate), Bytes: rate * seconds}}},
			traffic.Flow{Name: "now-and-then", Target: t.Fleet.Target(), Count: 12, Concurrent: 12, Requests: []traffic.Request{
				{Path: world.PathName}, {Path: world.PathName, Pause: length / 2}, {Path: world.PathBlob, Bytes: 50_000, Pause: length / 2}}})
		running.Wait(t.Context)
	})
	run.Result.Expect(outcome.LongestSecond > float64(wrapSeconds(one.CookieBits)), "the longest transfer lasted %.0f s and saw no wrap", outcome.LongestSecond)
}

// wrapSeconds is how long the clock above a cookie runs until it wraps.
func wrapSeconds(cookieBits uint8) time.Duration { return 1<<(32-cookieBits)/1000 + 1 }

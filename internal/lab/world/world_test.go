package world

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process"
	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// The test binary stands in for ballast-lab inside the lab.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == process.Peer {
		os.Exit(process.Main(os.Args[2:], os.Stderr))
	}
	os.Exit(m.Run())
}

// newNetwork builds a lab whose router leads the VIPs straight to server s1.
func newNetwork(t *testing.T) *Trial {
	t.Helper()
	return withRoutes(t, newNetworkOf(t, Topology{}))
}

func withRoutes(t *testing.T, network *Trial) *Trial {
	t.Helper()
	for _, vip := range network.Network.VIPs {
		hop := netspace.NextHop{Gateway: network.Network.ServerAddress(1, vip.Is6()), Interface: fabric}
		if err := network.Lab.Space(RouterNode).Route(netip.PrefixFrom(vip, vip.BitLen()), 0, hop); err != nil {
			t.Fatal(err)
		}
	}
	return network
}

// newNetworkOf builds a lab with nodes for load balancers, and nothing that runs on them.
func newNetworkOf(t *testing.T, topology Topology) *Trial {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	options := host.Options{Progress: t.Logf, Binary: "/proc/self/exe"}
	if err := options.Complete(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	lab, err := host.New(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
		if left := netspace.Names(host.SpacePrefix + lab.ID); len(left) > 0 {
			t.Errorf("namespaces are left: %v", left)
		}
	})
	if topology.Servers == nil {
		topology.Servers = make([]ServerNode, 1)
	}
	topology.VIPs = []netip.Addr{netip.MustParseAddr(vipA), netip.MustParseAddr(vipB)}
	trial := Prepare(lab, Setup{Name: "plain", Topology: topology, Services: []*fleet.Service{fleet.NewService("plain", vipA)}})
	trial.connect(buildNetwork(lab, topology))
	trial.Servers.start()
	return trial
}

func TestNetworkCarriesEveryKindOfTraffic(t *testing.T) {
	defer fatal(t)
	network := newNetwork(t)
	for _, target := range []string{vipA + ":80", "[" + vipB + "]:80"} {
		v6 := target[0] == '['
		running := network.Traffic.start(traffic.Plan{
			Seed: 1, Stall: Stall, Sources: network.Network.SourceAddresses(v6),
			Flows: []traffic.Flow{
				{Name: "short", Target: target, Count: 200, Concurrent: 20, Requests: []traffic.Request{{Path: PathBlob, Bytes: 3000}}},
				{Name: "slow", Target: target, Count: 5, Concurrent: 5, Requests: []traffic.Request{{Path: PathSlow(100000), Bytes: 150000}}},
				{Name: "upload", Target: target, Count: 5, Concurrent: 5, Requests: []traffic.Request{
					{Path: PathUpload + "x", Bytes: 1 << 20, Upload: true}, {Path: PathName, Pause: 100 * time.Millisecond}}},
			},
		})
		running.Wait(network.Context)
	}
	network.collect()
	if network.outcome.Completed != 420 || network.outcome.Broken != 0 || network.outcome.ServedBy["s1"] != 420 {
		t.Errorf("outcome: %+v", network.outcome.Tally)
	}
	t.Logf("%+v", network.outcome.TCP)
}

// Plain IP forwarding stands in for the load balancers: the network alone must not break connections.
func TestTheRouterAvoidsADeadPath(t *testing.T) {
	defer fatal(t)
	network := newNetworkOf(t, Topology{LBs: 2})
	for i := 1; i <= 2; i++ {
		lb := network.Lab.Space(LBName(i))
		for key, value := range routerSysctls {
			if err := lb.Sysctl(key, value); err != nil {
				t.Fatal(err)
			}
		}
		for _, vip := range network.Network.VIPs {
			hop := netspace.NextHop{Gateway: network.Network.ServerAddress(1, vip.Is6()), Interface: "eth1"}
			if err := lb.Route(netip.PrefixFrom(vip, vip.BitLen()), 0, hop); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, target := range []string{vipA + ":80", "[" + vipB + "]:80"} {
		running := network.Traffic.start(traffic.Plan{
			Seed: 1, Stall: Stall, Sources: network.Network.SourceAddresses(target[0] == '['),
			Flows: []traffic.Flow{
				{Name: "slow", Target: target, Count: 20, Concurrent: 20, PerSecond: 100, Repeat: true, Requests: []traffic.Request{{Path: PathSlow(128 << 10), Bytes: 256 << 10}}},
				{Name: "short", Target: target, Concurrent: 200, PerSecond: 100, Requests: []traffic.Request{{Path: PathBlob, Bytes: 4000}}},
			},
		})
		for _, up := range []bool{false, true} {
			network.Traffic.Busy(running, 60)
			if err := network.Lab.Space("lb1").SetLink("eth0", up); err != nil {
				t.Fatal(err)
			}
		}
		network.Traffic.Busy(running, 60)
		running.Finish(network.Context)
	}
	network.collect()
	if network.outcome.Broken != 0 || network.outcome.Completed < 300 {
		t.Errorf("outcome: %+v", network.outcome.Tally)
	}
}

func TestLostHandshakesAreRepeated(t *testing.T) {
	defer fatal(t)
	network := newNetwork(t)
	network.Network.Lose(RouterNode, ClientNode, link.Faults{DropSYNACKsPerFlow: 1, DropPermille: 20})
	running := network.Traffic.start(traffic.Plan{
		Seed: 1, Stall: Stall, Sources: network.Network.SourceAddresses(false),
		Flows: []traffic.Flow{{Name: "short", Target: vipA + ":80", Count: 30, Concurrent: 30,
			Requests: []traffic.Request{{Path: PathBlob, Bytes: 30000}}}},
	})
	running.Wait(network.Context)
	network.collect()
	losses := network.outcome.Losses[RouterNode+"/"+ClientNode]
	if network.outcome.Completed != 30 || losses.DroppedSYNACKs != 30 || losses.DroppedRandom == 0 {
		t.Errorf("losses %+v, outcome %+v", losses, network.outcome.Tally)
	}
}

func TestASlowLinkDelaysBothWays(t *testing.T) {
	defer fatal(t)
	const oneWay = 50 * time.Millisecond
	network := withRoutes(t, newNetworkOf(t, Topology{ClientDelay: oneWay}))
	running := network.Traffic.start(traffic.Plan{
		Seed: 1, Stall: Stall, Sources: network.Network.SourceAddresses(false),
		Flows: []traffic.Flow{{Name: "short", Target: vipA + ":80", Count: 10, Concurrent: 10, Requests: []traffic.Request{{Path: PathName}}}},
	})
	running.Wait(network.Context)
	for _, connection := range running.Connections {
		if took := connection.Ended.Sub(connection.Started); connection.Class != traffic.Completed || took < 4*oneWay {
			t.Errorf("%s after %v: a handshake and a request take two round trips", connection.Class, took)
		}
	}
}

func TestBrokenConnectionsAreToldApart(t *testing.T) {
	defer fatal(t)
	network := newNetwork(t)
	running := network.Traffic.start(traffic.Plan{
		Seed: 1, Stall: 2 * time.Second, Sources: network.Network.SourceAddresses(false),
		Flows: []traffic.Flow{
			{Name: "refused", Target: vipA + ":81", Count: 1, Requests: []traffic.Request{{Path: PathName}}},
			{Name: "missing", Target: vipA + ":80", Count: 1, Requests: []traffic.Request{{Path: "/none"}}},
			{Name: "frozen", Target: vipA + ":80", Count: 1, Requests: []traffic.Request{{Path: PathSlow(100000), Bytes: 10 << 20}}},
		},
	})
	network.Traffic.Until(running, Stall, "the download runs", func(p traffic.Progress) bool { return p.Bytes > 150000 })
	if err := network.Lab.Space("s1").SetLink("eth0", false); err != nil {
		t.Fatal(err)
	}
	running.Wait(network.Context)
	network.collect()
	for class, flow := range map[traffic.Class]string{
		traffic.ConnectRefused: "refused", traffic.WrongAnswer: "missing", traffic.Stalled: "frozen",
	} {
		if network.outcome.BrokenBy[class] != 1 || network.outcome.BrokenFlows[flow] != 1 {
			t.Errorf("%s is not %s: %+v", flow, class, network.outcome.Tally)
		}
	}
}

const vipA, vipB = "198.51.100.10", "2001:db8:100::10"

// fatal, deferred, makes the error that ends a script one of the test.
func fatal(t *testing.T) {
	t.Helper()
	switch what := recover().(type) {
	case nil:
	case script.Ended:
		t.Fatal(what)
	default:
		panic(what)
	}
}

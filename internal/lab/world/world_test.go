package world

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

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
	for _, vip := range network.Topology.VIPs {
		hop := netspace.NextHop{Gateway: network.Topology.ServerAddress(1, vip.Is6()), Interface: fabric}
		if err := network.Space(RouterNode).Route(netip.PrefixFrom(vip, vip.BitLen()), 0, hop); err != nil {
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
	options := Options{Progress: t.Logf, Binary: "/proc/self/exe"}
	if err := options.Complete(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	lab, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
		if left := netspace.Names(spacePrefix + lab.id); len(left) > 0 {
			t.Errorf("namespaces are left: %v", left)
		}
	})
	if topology.Servers == nil {
		topology.Servers = make([]ServerNode, 1)
	}
	topology.VIPs = []netip.Addr{netip.MustParseAddr(vipA), netip.MustParseAddr(vipB)}
	lab.build(topology)
	trial := &Trial{
		Lab: lab, Context: ctx, started: time.Now(), lossy: map[string]*link.Wire{},
		Setup: Setup{Name: "plain"}, Random: newRandom(1),
	}
	trial.startServers()
	return trial
}

func TestNetworkCarriesEveryKindOfTraffic(t *testing.T) {
	defer fatal(t)
	network := newNetwork(t)
	for _, target := range []string{vipA + ":80", "[" + vipB + "]:80"} {
		v6 := target[0] == '['
		running := network.startLoad(traffic.Plan{
			Seed: 1, Stall: Stall, Sources: network.Topology.SourceAddresses(v6),
			Flows: []traffic.Flow{
				{Name: "short", Target: target, Count: 200, Concurrent: 20, Requests: []traffic.Request{{Path: PathBlob, Bytes: 3000}}},
				{Name: "slow", Target: target, Count: 5, Concurrent: 5, Requests: []traffic.Request{{Path: PathSlow(100000), Bytes: 150000}}},
				{Name: "upload", Target: target, Count: 5, Concurrent: 5, Requests: []traffic.Request{
					{Path: PathUpload + "x", Bytes: 1 << 20, Upload: true}, {Path: PathName, Pause: 100 * time.Millisecond}}},
			},
		})
		network.Loads = append(network.Loads, running)
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
		lb := network.Space(LBName(i))
		for key, value := range routerSysctls {
			if err := lb.Sysctl(key, value); err != nil {
				t.Fatal(err)
			}
		}
		for _, vip := range network.Topology.VIPs {
			hop := netspace.NextHop{Gateway: network.Topology.ServerAddress(1, vip.Is6()), Interface: "eth1"}
			if err := lb.Route(netip.PrefixFrom(vip, vip.BitLen()), 0, hop); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, target := range []string{vipA + ":80", "[" + vipB + "]:80"} {
		running := network.startLoad(traffic.Plan{
			Seed: 1, Stall: Stall, Sources: network.Topology.SourceAddresses(target[0] == '['),
			Flows: []traffic.Flow{
				{Name: "slow", Target: target, Count: 20, Concurrent: 20, PerSecond: 100, Repeat: true, Requests: []traffic.Request{{Path: PathSlow(128 << 10), Bytes: 256 << 10}}},
				{Name: "short", Target: target, Concurrent: 200, PerSecond: 100, Requests: []traffic.Request{{Path: PathBlob, Bytes: 4000}}},
			},
		})
		network.Loads = append(network.Loads, running)
		for _, up := range []bool{false, true} {
			network.Busy(running, 60)
			if err := network.Space("lb1").SetLink("eth0", up); err != nil {
				t.Fatal(err)
			}
		}
		network.Busy(running, 60)
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
	network.Lose(RouterNode, ClientNode, link.Faults{DropSYNACKsPerFlow: 1, DropPermille: 20})
	running := network.startLoad(traffic.Plan{
		Seed: 1, Stall: Stall, Sources: network.Topology.SourceAddresses(false),
		Flows: []traffic.Flow{{Name: "short", Target: vipA + ":80", Count: 30, Concurrent: 30,
			Requests: []traffic.Request{{Path: PathBlob, Bytes: 30000}}}},
	})
	network.Loads = append(network.Loads, running)
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
	running := network.startLoad(traffic.Plan{
		Seed: 1, Stall: Stall, Sources: network.Topology.SourceAddresses(false),
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
	running := network.startLoad(traffic.Plan{
		Seed: 1, Stall: 2 * time.Second, Sources: network.Topology.SourceAddresses(false),
		Flows: []traffic.Flow{
			{Name: "refused", Target: vipA + ":81", Count: 1, Requests: []traffic.Request{{Path: PathName}}},
			{Name: "missing", Target: vipA + ":80", Count: 1, Requests: []traffic.Request{{Path: "/none"}}},
			{Name: "frozen", Target: vipA + ":80", Count: 1, Requests: []traffic.Request{{Path: PathSlow(100000), Bytes: 10 << 20}}},
		},
	})
	network.Loads = append(network.Loads, running)
	network.Until(running, Stall, "the download runs", func(p traffic.Progress) bool { return p.Bytes > 150000 })
	if err := network.Space("s1").SetLink("eth0", false); err != nil {
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

func TestNextLabRemovesWhatADeadOneLeft(t *testing.T) {
	defer fatal(t)
	network := newNetwork(t)
	dead := &Lab{Options: network.Options, spaces: map[string]*netspace.Space{}}
	if err := dead.claim(); err != nil {
		t.Fatal(err)
	}
	dead.addSpace("s9", nil)
	sleeper, err := dead.Start(Spawn{Node: "s9", Program: "sleep", Arguments: []string{"600"}})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := dead.Start(Spawn{Node: "s9", Program: "unshare", Arguments: []string{"--net", "--mount", "sleep", "600"}})
	if err != nil {
		t.Fatal(err)
	}
	// A name that was bound in a mount namespace which this one does not see into.
	unseen := spacePrefix + dead.id + "-s10"
	if err := os.WriteFile(filepath.Join(netspace.Dir, unseen), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	root, noLimits := findCgroups()
	if noLimits == nil {
		dead.limitCPU(root, sleeper, "s9", 0.1)
	}
	if err := dead.lock.Close(); err != nil { // as the death of its owner does
		t.Fatal(err)
	}
	cleaned, err := Clean(false)
	if err != nil {
		t.Fatal(err)
	}
	<-sleeper.Exited
	<-elsewhere.Exited
	at := slices.IndexFunc(cleaned.Removed, func(r Removed) bool { return r.Lab == dead.id })
	if at < 0 || len(cleaned.Removed[at].Namespaces) != 2 || cleaned.Removed[at].Processes < 2 || cleaned.Removed[at].Kept {
		t.Errorf("it says that it removed %+v", cleaned.Removed)
	}
	if !slices.Contains(cleaned.Running, network.id) {
		t.Errorf("it says that these run: %v", cleaned.Running)
	}
	if left := netspace.Names(spacePrefix + dead.id); len(left) != 0 {
		t.Errorf("namespaces are left: %v", left)
	}
	if _, err := os.Stat(filepath.Join(root.path, dead.cgroupName("s9"))); noLimits == nil && err == nil {
		t.Error("its cgroup is left")
	}
	if _, err := os.Stat(filepath.Join(baseDir, dead.id)); err == nil {
		t.Error("its directory is left")
	}
	if _, err := os.Stat(network.dir); err != nil {
		t.Errorf("a living lab was removed: %v", err)
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

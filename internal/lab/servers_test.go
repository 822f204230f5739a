package lab

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// took makes requests to server s1, all at once, and says how long the last of them took.
func took(t *testing.T, network *trial, count int, request traffic.Request) time.Duration {
	t.Helper()
	running, err := network.startLoad(traffic.Plan{
		Seed: 1, Stall: 20 * time.Second, Sources: network.topo.sourceAddresses(false),
		Flows: []traffic.Flow{{
			Name: "all", Target: network.topo.serverAddress(1, false).String() + ":80", Count: count, Concurrent: count,
			Requests: []traffic.Request{request},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := running.wait(network.ctx); err != nil {
		t.Fatal(err)
	}
	longest := time.Duration(0)
	for _, connection := range running.connections {
		if connection.Class != traffic.Completed {
			t.Fatalf("%+v", connection)
		}
		longest = max(longest, connection.Ended.Sub(connection.Started))
	}
	return longest
}

func TestAnApplicationServerGetsNoMoreCPUThanItsGroup(t *testing.T) {
	network := newNetworkOf(t, Topology{Servers: []ServerNode{{App: &AppServer{CPUs: 0.1, Shared: true}}}})
	root, err := findCgroups()
	if err != nil {
		t.Skip(err)
	}
	group := filepath.Join(root.path, network.cgroupName("s1"))
	if _, err := os.Stat(group); err != nil {
		t.Error(err)
	}
	// 10 x 10 ms of CPU at a tenth of a CPU is a second; a filled group gives the first piece away.
	if longest := took(t, network, 10, traffic.Request{Path: "/work?cost=10000"}); longest < 800*time.Millisecond {
		t.Errorf("100 ms of CPU at a tenth of a CPU took %v", longest)
	}
	if _, err := removeLab(network.id); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(group); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the cgroup is left: %v", err)
	}
}

func TestALimitedLinkCarriesNoMore(t *testing.T) {
	network := newNetworkOf(t, Topology{Servers: []ServerNode{{BitsPerSecond: 16e6}}})
	longest := took(t, network, 4, traffic.Request{Path: pathBlob, Bytes: 500_000})
	if longest < 900*time.Millisecond || longest > stall {
		t.Errorf("2 MB at 2 MB/s took %v", longest)
	}
}

func TestCompletionsCountWhatCameAndWhatEnded(t *testing.T) {
	begin := time.Unix(1000, 0)
	connection := func(flow string, started, ended time.Duration, class traffic.Class) traffic.Connection {
		return traffic.Connection{Flow: flow, Class: class, Bytes: 100, Started: begin.Add(started), Ended: begin.Add(ended)}
	}
	const ms, second = time.Millisecond, time.Second
	got := complete([]traffic.Connection{
		connection("a", -second, 100*ms, traffic.Completed), // came before: counts as throughput only
		connection("a", 0, 100*ms, traffic.Completed),
		connection("a", second, 1300*ms, traffic.Completed),
		connection("a", 1900*ms, 2700*ms, traffic.Completed), // ended after: counts as time only
		connection("a", second, 1100*ms, traffic.Reset),
		connection("b", second, 1100*ms, traffic.Completed),
		connection("a", 2*second, 2100*ms, traffic.Completed), // came after
	}, begin, begin.Add(2*second), func(flow string) bool { return flow == "a" })
	want := Completions{Offered: 4, Completed: 3, Broken: 1, PerSecond: 1.5, BytesPerSecond: 150, MeanMS: 400, P50MS: 300, P99MS: 800}
	if got.BrokenBy[traffic.Reset] != 1 {
		t.Errorf("broken by %v", got.BrokenBy)
	}
	got.BrokenBy = nil
	if got.Offered != want.Offered || got.Completed != want.Completed || got.Broken != want.Broken || got.PerSecond != want.PerSecond ||
		got.BytesPerSecond != want.BytesPerSecond || got.MeanMS != want.MeanMS || got.P50MS != want.P50MS || got.P99MS != want.P99MS {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

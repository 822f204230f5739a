package world

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process/traffic"
)

// took makes requests to server s1, all at once, and says how long the last of them took.
func took(t *testing.T, network *Trial, count int, request traffic.Request) time.Duration {
	t.Helper()
	running := network.Traffic.start(traffic.Plan{
		Seed: 1, Stall: 20 * time.Second, Sources: network.Network.SourceAddresses(false),
		Flows: []traffic.Flow{{
			Name: "all", Target: network.Network.ServerAddress(1, false).String() + ":80", Count: count, Concurrent: count,
			Requests: []traffic.Request{request},
		}},
	})
	running.Wait(network.Context)
	longest := time.Duration(0)
	for _, connection := range running.Connections {
		if connection.Class != traffic.Completed {
			t.Fatalf("%+v", connection)
		}
		longest = max(longest, connection.Ended.Sub(connection.Started))
	}
	return longest
}

func TestAnApplicationServerGetsNoMoreCPUThanItsGroup(t *testing.T) {
	defer fatal(t)
	group := ""
	t.Cleanup(func() { // when the lab is closed
		if _, err := os.Stat(group); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the cgroup is left: %v", err)
		}
	})
	network := newNetworkOf(t, Topology{Servers: []ServerNode{{App: &AppServer{CPUs: 0.1, Shared: true}}}})
	dir, err := network.Lab.Cgroup("s1")
	if group = dir; err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat(group); err != nil {
		t.Error(err)
	}
	// 10 x 10 ms of CPU at a tenth of a CPU is a second; a filled group gives the first piece away.
	if longest := took(t, network, 10, traffic.Request{Path: "/work?cost=10000"}); longest < 800*time.Millisecond {
		t.Errorf("100 ms of CPU at a tenth of a CPU took %v", longest)
	}
}

func TestALimitedLinkCarriesNoMore(t *testing.T) {
	defer fatal(t)
	network := newNetworkOf(t, Topology{Servers: []ServerNode{{BitsPerSecond: 16e6}}})
	longest := took(t, network, 4, traffic.Request{Path: PathBlob, Bytes: 500_000})
	if longest < 900*time.Millisecond || longest > Stall {
		t.Errorf("2 MB at 2 MB/s took %v", longest)
	}
}

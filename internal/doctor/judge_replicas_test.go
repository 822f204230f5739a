package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/model"
)

// replicatedFacts are those of lb1, on a ring of three with chains of two.
func replicatedFacts() *facts {
	f := healthyFacts(RoleLB)
	f.Name, f.Daemon.ByControllers = "lb1", true
	f.File.Fleet.Services[0].Fallback = model.FallbackReplicated
	f.Daemon.Replicas = &api.ReplicaStatus{Number: 1, OnRing: true, Version: 4, Synced: 4, Chain: 2}
	for i := 2; i <= 3; i++ {
		address := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		f.Daemon.Replicas.Peers = append(f.Daemon.Replicas.Peers, api.ReplicaPeer{Name: fmt.Sprint("lb", i), Address: netip.AddrPortFrom(address, 7475), OnRing: true, State: "heard"})
		f.Paths[address] = pathFacts{MTU: 1600}
	}
	return f
}

func TestTheRingIsJudged(t *testing.T) {
	lb2 := netip.MustParseAddr("10.0.0.2")
	for what, one := range map[string]struct {
		spoil    func(f *facts)
		severity Severity
		says     string
	}{
		"all well":               {func(*facts) {}, OK, "2 other load balancers answer"},
		"no ring":                {func(f *facts) { f.Daemon.Replicas = nil }, Problem, "start at least 3 load balancers"},
		"none yet":               {func(f *facts) { f.Daemon.Replicas.Version = 0 }, Problem, "start at least 3 load balancers"},
		"one too few":            {func(f *facts) { f.Daemon.Replicas.Peers[0].OnRing = false }, Warning, "2 load balancers are on the ring"},
		"one that is silent":     {func(f *facts) { f.Daemon.Replicas.Peers[0].State = "silent" }, Problem, "UDP port 6080"},
		"no way":                 {func(f *facts) { f.Paths[lb2] = pathFacts{Err: errors.New("network is unreachable")} }, Problem, "network is unreachable"},
		"no room":                {func(f *facts) { f.Paths[lb2] = pathFacts{MTU: 1500} }, Warning, "1500 less 56"},
		"not even for the least": {func(f *facts) { f.Paths[lb2] = pathFacts{MTU: 1300} }, Problem, "1300 less 56"},
	} {
		f := replicatedFacts()
		one.spoil(f)
		found := false
		for _, finding := range judgeReplicas(f) {
			found = found || finding.Severity == one.severity && strings.Contains(fmt.Sprint(finding), one.says)
		}
		if !found {
			t.Errorf("%s: %v", what, judgeReplicas(f))
		}
	}
	f := replicatedFacts()
	f.File.Fleet.Services[0].Fallback = model.FallbackHash
	if found := judgeReplicas(f); found != nil {
		t.Errorf("without replicated services: %v", found)
	}
}

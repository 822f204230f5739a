package doctor

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// tierFacts are those of a load balancer of a tier that nothing is wrong with: lb1 of the first, lb2 of the second.
func tierFacts(tier model.Tier) *facts {
	f := healthyFacts(RoleLB)
	address := netip.MustParseAddr("10.0.1.2")
	fleet := &f.File.Fleet
	fleet.Services[0].Affinity = model.AffinityTable
	fleet.Nodes = []model.Node{{Name: "lb1", Tier: model.TierFirst}, {Name: "lb2", Tier: model.TierSecond, Address: address, ID: 1}}
	fleet.NodeHealth = model.Health{Check: model.CheckHTTP, Port: 9435}
	if f.Name = "lb1"; tier == model.TierFirst {
		f.Paths[address] = pathFacts{MTU: 1544, Asked: true}
	} else {
		f.Name, f.Host.Addresses[address] = "lb2", "eth0"
	}
	return f
}

func TestHealthyTiersHaveNoFindings(t *testing.T) {
	for _, tier := range []model.Tier{model.TierFirst, model.TierSecond} {
		seen := false
		for _, f := range findings(tierFacts(tier)) {
			seen = seen || f.Check == "tier"
			if f.Severity != OK {
				t.Errorf("%s: %+v", tier, f)
			}
		}
		if !seen {
			t.Errorf("%s: nothing is said of it", tier)
		}
	}
}

// Promise: `doctor` warns of a second tier without `node_health`, whose dead nodes nobody notices.
// Promise: `doctor` names a node that is missing in `nodes` or has another name there; the node keeps tables
// itself, and connections are kept.
// Promise: A packet that is too big for the path to its server is answered by the first tier where both paths have
// one MTU, and otherwise by a node that forwards IP.
func TestFaultsOfTiersAreFound(t *testing.T) {
	second := netip.MustParseAddr("10.0.1.2")
	for _, test := range []struct {
		name     string
		tier     model.Tier
		breakIt  func(*facts)
		check    string
		severity Severity
		remedy   string
	}{
		{"a name that is nobody's", model.TierFirst, func(f *facts) { f.Name = "lb9" }, "tier", Warning, "--name"},
		{"an address that is not here", model.TierSecond, func(f *facts) { delete(f.Host.Addresses, second) }, "tier", Problem, "correct the address"},
		{"nobody checks", model.TierSecond, func(f *facts) { f.File.Fleet.NodeHealth = model.Health{} }, "tier", Warning, "node_health: {check: http"},
		{"no second tier", model.TierFirst, func(f *facts) { f.File.Fleet.Nodes = f.File.Fleet.Nodes[:1] }, "tier", Warning, "tier: second"},
		{"no room", model.TierFirst, func(f *facts) { f.Paths[second] = pathFacts{MTU: 1500} }, "mtu", Warning, "MTU to 1544"},
		{"no way", model.TierFirst, func(f *facts) { f.Paths[second] = pathFacts{Err: errors.New("network is unreachable")} }, "path", Problem, "ip route add 10.0.1.2"},
		{"answers that end here", model.TierSecond, func(f *facts) { f.Devices[0].Forwarding4, f.File.Fleet.Services = 0, f.File.Fleet.Services[:1] },
			"forwarding", Warning, "ip_forward=1"},
		{"no answer", model.TierFirst, func(f *facts) { f.Paths[second] = pathFacts{MTU: 1600, Asked: true, Silent: true} }, "reachability", Warning, "--metrics"},
	} {
		f := tierFacts(test.tier)
		test.breakIt(f)
		var bad []Finding
		for _, f := range findings(f) {
			if f.Severity != OK {
				bad = append(bad, f)
			}
		}
		if len(bad) != 1 || bad[0].Check != test.check || bad[0].Severity != test.severity || !strings.Contains(bad[0].Remedy, test.remedy) {
			t.Errorf("%s: have %+v; want one %s of %s with remedy %q", test.name, bad, test.severity, test.check, test.remedy)
		}
	}
}

// Servers of services with a table are looked at by those who send to them.
func TestTheFirstTierDoesNotLookAtServersOfTheSecond(t *testing.T) {
	f := tierFacts(model.TierFirst)
	f.services(func(s *model.Service) {
		if s.Affinity == model.AffinityTable {
			t.Errorf("service %s concerns the first tier", s.Name)
		}
	})
	sent := 0
	f.destinations(func(s *model.Service) {
		if s.Name == model.SecondTierName {
			sent = len(s.Servers)
		}
	})
	if sent != 1 {
		t.Errorf("the first tier sends to %d nodes", sent)
	}
}

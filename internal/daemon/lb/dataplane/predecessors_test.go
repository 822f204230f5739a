package dataplane

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// succeeded is a snapshot of one service with predecessors.
func succeeded(share uint16, addresses ...string) (*Snapshot, *model.Service) {
	state := &desired.State{}
	p := model.Predecessor{Forward: model.ForwardL2, Share: model.ShareOf(share)}
	for _, address := range addresses {
		p.Addresses = append(p.Addresses, netip.MustParseAddr(address))
	}
	state.Running.Services = []model.Service{{Name: "web", Predecessor: p}}
	return &Snapshot{State: state, Paths: map[netip.Addr]plan.Path{}, Pathless: map[netip.Addr]string{}}, &state.Running.Services[0]
}

// Promise: Packets that come back from a predecessor are a problem for a minute; single ones without hops, which anybody sends, are none.
func TestPacketsThatComeBackFromAPredecessorAreNoticed(t *testing.T) {
	seen, _ := succeeded(0, "10.0.0.5")
	var r returning
	now := time.Unix(1000, 0)
	counted := lb.Succession{Sent: 1000, Returned: 500}
	look := func(when string, sent, returned uint64, want bool) {
		t.Helper()
		counted.Sent, counted.Returned, now = counted.Sent+sent, counted.Returned+returned, now.Add(time.Second)
		r.listen(seen, now, func(plan.Place) (lb.Succession, error) { return counted, nil })
		if have := r.loops("web", now); have != want {
			t.Errorf("%s: %v, want %v", when, have, want)
		}
	}
	look("what an earlier process counted", 0, 0, false)
	look("nothing comes back", 1000, 0, false)
	look("one without hops among many", 1000, 1, false)
	look("one of seven", 700, 100, true)
	look("it has just ended", 1000, 0, true)
	now = now.Add(loopMemory)
	look("it ended a minute ago", 1000, 0, false)
	counted = lb.Succession{}
	look("counters began anew", 0, 0, false)
	look("all come back at once", 0, 3, true)
	seen.Running.Services = nil
	if look("the predecessor goes", 0, 0, false); len(r.of) != 0 {
		t.Errorf("remembered: %v", r.of)
	}
}

func TestPredecessorsThatAreNotReachedAreNamed(t *testing.T) {
	for _, test := range []struct {
		name     string
		paths    map[string]plan.Path
		forward  model.Forward
		why      []string // words for each that is lost
		succeeds bool     // some is reached
	}{
		{"both are there", map[string]plan.Path{"10.0.0.5": {OnLink: true}, "10.0.0.6": {OnLink: true}}, model.ForwardL2, nil, true},
		{"one has no next hop", map[string]plan.Path{"10.0.0.5": {OnLink: true}}, model.ForwardL2, []string{"no neighbour"}, true},
		{"none has", nil, model.ForwardL2, []string{"no neighbour", "no neighbour"}, false},
		{"one is this host", map[string]plan.Path{"10.0.0.5": {Here: true}, "10.0.0.6": {OnLink: true}}, model.ForwardL2, []string{"it is this host"}, true},
		{"behind a router", map[string]plan.Path{"10.0.0.5": {}, "10.0.0.6": {}}, model.ForwardL2, []string{"router", "router"}, false},
		{"behind a router, by a tunnel", map[string]plan.Path{"10.0.0.5": {}, "10.0.0.6": {}}, model.ForwardIPIP, nil, true},
	} {
		seen, web := succeeded(0, "10.0.0.5", "10.0.0.6")
		web.Predecessor.Forward = test.forward
		for _, address := range web.Predecessor.Addresses {
			if path, known := test.paths[address.String()]; known {
				seen.Paths[address] = path
			} else {
				seen.Pathless[address] = "no neighbour"
			}
		}
		lost := slices.Collect(maps.Values(seen.LostPredecessors(web)))
		matches := len(lost) == len(test.why)
		for i := range lost {
			matches = matches && strings.Contains(lost[i], test.why[0])
		}
		if !matches || seen.Succeeds(web) != test.succeeds {
			t.Errorf("%s: %q, want %q; succeeds: %v", test.name, lost, test.why, !test.succeeds)
		}
	}
}

// What is reached is no news of servers, as long as connections begin here.
func TestAPredecessorConfirmsNoWayToServers(t *testing.T) {
	for share, pathless := range map[uint16]int{model.ShareAll: 1, 500: 1, 0: 0} {
		seen, web := succeeded(share, "10.0.0.5")
		server := netip.MustParseAddr("10.0.0.1")
		web.Servers = []model.Server{{Name: "s1", Address: server}}
		seen.Paths[web.Predecessor.Addresses[0]], seen.Pathless[server] = plan.Path{OnLink: true}, "no neighbour"
		if have := seen.Unconfirmed(); have != pathless {
			t.Errorf("share %d: %d servers without a way, want %d", share, have, pathless)
		}
	}
}

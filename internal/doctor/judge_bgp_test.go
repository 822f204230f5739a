package doctor

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestWhatBGPNeedsIsJudged(t *testing.T) {
	router := netip.MustParseAddr("10.0.0.254")
	for what, one := range map[string]struct {
		spoil func(f *facts, b *model.BGP)
		says  string
	}{
		"all well":                    {func(*facts, *model.BGP) {}, "AS 64600; routers that take connections: 1"},
		"well, as far as it is known": {func(f *facts, _ *model.BGP) { f.Neighbors[router] = neighborFacts{} }, "port 179 was not tried: ballast ctl bgp show"},
		"no password":                 {func(f *facts, _ *model.BGP) { f.Password = errors.New("no such file") }, "no such file"},
		"a port that is taken": {func(f *facts, b *model.BGP) {
			b.ListenPort, f.Daemon = 179, daemonFacts{}
			f.Host.Listening = map[model.Protocol][]netip.AddrPort{model.ProtocolTCP: {netip.MustParseAddrPort("0.0.0.0:179")}}
		}, "another process listens at port 179"},
		"no ARP": {func(f *facts, _ *model.BGP) {
			f.Neighbors[router] = neighborFacts{Err: &netdev.Unresolved{Neighbour: router}}
		}, "does not answer (ARP"},
		"no route": {func(f *facts, _ *model.BGP) {
			f.Neighbors[router] = neighborFacts{Err: errors.New("network is unreachable")}
		}, "network is unreachable"},
		"behind another": {func(f *facts, _ *model.BGP) { f.Neighbors[router] = neighborFacts{By: netip.MustParseAddr("10.0.0.1")} }, "is behind 10.0.0.1: packets to it end there"},
		"BFD behind another": {func(f *facts, b *model.BGP) {
			b.NeighborAS, b.BFD.Interval = b.AS, model.Duration(time.Second)
			f.Neighbors[router] = neighborFacts{By: netip.MustParseAddr("10.0.0.1")}
		}, "BFD is for one hop"},
		"no BGP there": {func(f *facts, _ *model.BGP) {
			f.Neighbors[router] = neighborFacts{Asked: true, Answer: errors.New("connection refused")}
		}, "takes no connection at port 179: connection refused"},
	} {
		f := healthyFacts(RoleLB)
		f.Name = "lb1"
		f.File.Fleet.Nodes = []model.Node{{Name: "lb1", BGP: model.BGP{AS: 64600, NeighborAS: 64512, Neighbors: []model.Neighbor{{Address: router}}}}}
		f.Neighbors = map[netip.Addr]neighborFacts{router: {Asked: true}}
		one.spoil(f, &f.File.Fleet.Nodes[0].BGP)
		found := judgeBGP(f)
		if len(found) != 1 || !strings.Contains(found[0].Found, one.says) || (found[0].Severity == OK) != strings.Contains(what, "well") || (found[0].Remedy == "") != strings.Contains(what, "well") {
			t.Errorf("%s: %+v", what, found)
		}
		if tiers := judgeTier(f); len(tiers) != 0 {
			t.Errorf("%s: a load balancer without a tier: %+v", what, tiers)
		}
	}
	if found := judgeBGP(healthyFacts(RoleLB)); found != nil {
		t.Errorf("without BGP: %+v", found)
	}
}

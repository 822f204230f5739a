package hub

import (
	"net/http/httptest"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Promise: When an agent's count of open connections is wrong, its servers get less, or at most about twice their
// share.
func TestLoadBalancersAreToldTheNewestCountsWithTheirOwnShare(t *testing.T) {
	hub := testHub(t, nil)
	hub.Topics.SetState(fleettest.View(1, []engine.ServiceView{fleettest.Service("a", 1), fleettest.Service("b", 1)}...))
	peers := map[string]*peer{}
	for _, who := range []pki.Identity{{Role: pki.LB, Name: "lb1"}, {Role: pki.LB, Name: "lb2"}, {Role: pki.LB, Name: "lb3"}, {Role: pki.Agent, Name: "s1"}} {
		p := newPeer(who, &ballastv1.Hello{}, &call{request: httptest.NewRequest("POST", "/", nil)}, &DefaultLimits)
		hub.enter(p)
		peers[who.Name] = p
	}
	told := func(name string) (counts []*follow.Counts) {
		for {
			f := hub.next(peers[name])
			if f == nil {
				return counts
			}
			message := &ballastv1.ToNode{}
			encoded, err := codec{}.Marshal(f)
			fleettest.Require(t, err)
			fleettest.Require(t, proto.Unmarshal(encoded, message))
			if open := message.GetOpen(); open != nil {
				counts = append(counts, api.CountsFromProto(open))
			}
		}
	}
	for name := range peers {
		told(name)
	}
	for version := range uint64(3) {
		hub.Topics.SetCounts("a", &follow.Counts{Term: 1, Version: version + 1, Servers: []follow.Count{{ID: 1, Open: uint32(10 * version)}}},
			map[string]float64{"lb1": 0.75, "lb2": 0})
	}
	hub.Topics.SetCounts("gone", &follow.Counts{Term: 1, Version: 1, Servers: []follow.Count{{ID: 1}}}, map[string]float64{"lb1": 1})
	have := told("lb1")
	if len(have) != 1 || have[0].Version != 3 || have[0].Share != 0.75 || have[0].Servers[0].Open != 20 {
		t.Errorf("lb1 is told %+v", have)
	}
	if have = told("lb2"); len(have) != 1 || have[0].Share == 0 || have[0].Share > 0.001 {
		t.Errorf("lb2, which dispatches nothing of late, is told %+v", have)
	}
	hub.Topics.SetLoads("b", &follow.Loads{Term: 1, Version: 1, Servers: []follow.Load{{ID: 1, Load: 0.5}}}, map[string]float64{"lb1": 1})
	message := &ballastv1.ToNode{}
	encoded, err := codec{}.Marshal(hub.next(peers["lb1"]))
	fleettest.Require(t, err)
	fleettest.Require(t, proto.Unmarshal(encoded, message))
	if loads := api.LoadsFromProto(message.GetLoads()); loads == nil || loads.Share != 1 || loads.Servers[0].Load != 0.5 {
		t.Errorf("lb1 is told the loads %+v", message)
	}
	for _, name := range []string{"lb3", "s1"} {
		if have := told(name); len(have) != 0 {
			t.Errorf("%s, which dispatches nothing of the service, is told %+v", name, have)
		}
	}
}

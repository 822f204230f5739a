package hub

import (
	"net/http/httptest"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

func TestLoadBalancersAreToldWhetherTheControllerJudges(t *testing.T) {
	hub := testHub(t, nil)
	join := func(role pki.Role, name string) *peer {
		p := newPeer(pki.Identity{Role: role, Name: name}, &ballastv1.Hello{}, &call{request: httptest.NewRequest("POST", "/", nil)}, &DefaultLimits)
		hub.enter(p)
		return p
	}
	told := func(p *peer) (all []bool) {
		for f := hub.next(p); f != nil; f = hub.next(p) {
			message := &ballastv1.ToNode{}
			encoded, err := codec{}.Marshal(f)
			fleettest.Require(t, err)
			fleettest.Require(t, proto.Unmarshal(encoded, message))
			if judging := message.GetJudging(); judging != nil {
				all = append(all, judging.Able)
			}
		}
		return all
	}
	expect := func(what string, p *peer, want ...bool) {
		t.Helper()
		have := told(p)
		if len(have) != len(want) || len(want) == 1 && have[0] != want[0] {
			t.Errorf("%s: told %v, want %v", what, have, want)
		}
	}
	lb, agent := join(pki.LB, "lb1"), join(pki.Agent, "s1")
	expect("that it judges is what load balancers take for granted", lb)
	hub.Topics.SetJudging(false)
	hub.Topics.SetJudging(false)
	expect("it does not", lb, false)
	expect("before there is any state", join(pki.LB, "lb2"), false)
	hub.Topics.SetJudging(true)
	hub.Topics.SetJudging(false)
	hub.Topics.SetJudging(true)
	expect("only the last counts", lb, true)
	expect("agents judge nobody", agent)
}

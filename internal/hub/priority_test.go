package hub

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/pki"
)

func TestANewServersAgentIsToldFirstThenLoadBalancersThenTheOtherAgents(t *testing.T) {
	hub := testHub(t, nil)
	hub.Topics.SetState(fleettest.View(1, fleettest.Service("web", 1, 2)))
	for _, who := range []pki.Identity{{Role: pki.Agent, Name: "s1"}, {Role: pki.LB, Name: "lb1"}, {Role: pki.Agent, Name: "s3"}, {Role: pki.Agent, Name: "s2"}} {
		hub.enter(newPeer(who, &ballastv1.Hello{}, &call{request: httptest.NewRequest("POST", "/", nil)}, &DefaultLimits))
	}
	before, after := fleettest.Service("web", 1, 2), fleettest.Service("web", 1, 2, 3)
	var order []string
	for _, s := range hub.Topics.state.byPriority(map[string]serviceChange{"web": {before: encodeService(&before), after: encodeService(&after)}}) {
		order = append(order, s.identity.Name)
	}
	slices.Sort(order[2:])
	if have := strings.Join(order, " "); have != "s3 lb1 s1 s2" {
		t.Errorf("told in the order %s", have)
	}
}

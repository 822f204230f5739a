package hub

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// draining is which of its servers an agent is told to drain; "unchanged": nothing is said of them.
func draining(state *ballastv1.State) string {
	if state.Draining == nil {
		return "unchanged"
	}
	var list []string
	for _, s := range state.Draining.Servers {
		list = append(list, fmt.Sprintf("%s %d", s.Service, s.Id))
	}
	return strings.Join(list, ", ")
}

// Who waits for the end of a drain goes by what the server's agent reports, so it has to know that it should do so often. Agents of other servers,
// and load balancers, are not told: they are thousands.
func TestAnAgentIsToldWhichOfItsServersDrain(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	view := func(revision uint64, states ...model.ServerState) {
		web, mail := fleettest.Service("web", 1, 2), fleettest.Service("mail", 1, 2)
		for i, state := range states {
			web.Service.Servers[i].State = state
		}
		hub.Topics.SetState(fleettest.View(revision, mail, web))
	}
	view(1)
	lb, s1, byAddress := fleettest.Join(t, address, ca.Issue(pki.LB, "s2")), fleettest.Join(t, address, ca.Issue(pki.Agent, "s1")),
		fleettest.Join(t, address, ca.Issue(pki.Agent, "host", "10.0.0.2"))
	want := func(what string, c *fleettest.Conversation, revision uint64, services int, drains string) {
		t.Helper()
		if state := c.State(); state.Revision != revision || draining(state) != drains || len(state.Services) != services {
			t.Fatalf("%s is told %q and %d services by revision %d, want %q and %d by %d", what, draining(state), len(state.Services), state.Revision, drains, services, revision)
		}
	}
	want("the load balancer", lb, 1, 2, "unchanged")
	want("s1", s1, 1, 2, "")
	want("10.0.0.2", byAddress, 1, 2, "")
	view(2, model.StateActive, model.StateDraining)
	want("the load balancer", lb, 2, 1, "unchanged")
	want("10.0.0.2", byAddress, 2, 0, "web 2")
	view(3, model.StateDraining, model.StateOff)
	want("the load balancer", lb, 3, 1, "unchanged")
	want("s1", s1, 3, 0, "web 1") // and nothing of revision 2
	again := fleettest.Join(t, address, ca.Issue(pki.Agent, "other", "10.0.0.2"))
	want("one that joins later", again, 3, 2, "web 2")
	view(4)
	want("s1", s1, 4, 0, "")
	want("10.0.0.2", byAddress, 4, 0, "") // nor of 3, which changes nothing for it
}

package hub

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// sessions is a view of services with session tls, and keys up to an epoch.
func sessions(revision uint64, current uint32, services ...engine.ServiceView) *engine.View {
	view := fleettest.View(revision, services...)
	view.Tickets = rotation.TicketKeys{Current: current, Since: time.Unix(int64(current), 0)}
	for epoch := range current {
		view.Tickets.Keys = append(view.Tickets.Keys, rotation.TicketKey{Epoch: epoch + 1, Secret: rotation.TicketSecret{0xd1, byte(epoch + 1)}})
	}
	return view
}

func withSessions(s engine.ServiceView) engine.ServiceView {
	s.Service.Session = model.SessionTLS
	return s
}

// told is which services a node is told keys of, with the epochs; "unchanged": nothing is said of keys.
func told(state *ballastv1.State) string {
	if state.Tickets == nil {
		return "unchanged"
	}
	var list []string
	for _, s := range state.Tickets.Services {
		said := fmt.Sprintf("%s %d of", s.Service, s.Current)
		for _, k := range s.Keys {
			said += fmt.Sprintf(" %d", k.Epoch)
		}
		list = append(list, said)
	}
	return strings.Join(list, "; ")
}

// Promise: Load balancers and agents of other services are sent no ticket keys, and may not list them.
// Also held by TestNodesNeitherReadNorTurnKeysOfTickets.
// Promise: The agent of a removed server gets no more ticket keys, and forgets those it has.
func TestKeysOfTicketsGoToAgentsOfServersWithSessionsAlone(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	web, mail, plain := withSessions(fleettest.Service("web", 1, 2)), withSessions(fleettest.Service("mail", 2, 3)), fleettest.Service("plain", 1, 4)
	hub.Topics.SetState(sessions(1, 1, mail, plain, web))
	lb := fleettest.Join(t, address, ca.Issue(pki.LB, "s1")) // named as a server
	s1, byAddress, s4 := fleettest.Join(t, address, ca.Issue(pki.Agent, "s1")), fleettest.Join(t, address, ca.Issue(pki.Agent, "host", "10.0.0.2")),
		fleettest.Join(t, address, ca.Issue(pki.Agent, "s4"))
	want := func(what string, c *fleettest.Conversation, revision uint64, keys string) *ballastv1.State {
		t.Helper()
		state := c.State()
		if state.Revision != revision || told(state) != keys {
			t.Fatalf("%s is told %q by revision %d, want %q by %d", what, told(state), state.Revision, keys, revision)
		}
		encoded, err := proto.Marshal(state)
		fleettest.Require(t, err)
		if bytes.Contains(encoded, []byte{0xd1, 1, 0, 0}) || bytes.Contains(encoded, []byte{0xd1, 2, 0, 0}) {
			t.Fatalf("%s is told the fleet's key", what)
		}
		return state
	}
	want("the load balancer", lb, 1, "unchanged")
	first := want("s1", s1, 1, "web 1 of 1")
	second := want("10.0.0.2", byAddress, 1, "mail 1 of 1; web 1 of 1")
	want("s4", s4, 1, "")
	if !bytes.Equal(first.Tickets.Services[0].Keys[0].Secret, second.Tickets.Services[1].Keys[0].Secret) {
		t.Error("two servers of a service have two keys")
	}
	if bytes.Equal(second.Tickets.Services[0].Keys[0].Secret, second.Tickets.Services[1].Keys[0].Secret) {
		t.Error("two services have one key")
	}

	hub.Topics.SetState(sessions(2, 2, mail, plain, web)) // keys alone change: no load balancer hears of it
	want("s1", s1, 2, "web 2 of 1 2")
	want("10.0.0.2", byAddress, 2, "mail 2 of 1 2; web 2 of 1 2")
	want("s4", s4, 2, "")

	left := withSessions(fleettest.Service("web", 2)) // s1 leaves, and has connections yet
	left.Removed = fleettest.Service("", 1).Service.Servers
	hub.Topics.SetState(sessions(3, 2, mail, plain, left))
	want("the load balancer", lb, 3, "unchanged")
	want("s1", s1, 3, "")
	want("10.0.0.2", byAddress, 3, "unchanged")
	hub.Topics.SetState(sessions(4, 3, mail, plain, left))
	want("s1", s1, 4, "")
	want("10.0.0.2", byAddress, 4, "mail 3 of 1 2 3; web 3 of 1 2 3")

	hub.Topics.SetState(sessions(5, 3, mail, plain, web)) // and is back
	want("the load balancer", lb, 5, "unchanged")
	want("s1", s1, 5, "web 3 of 1 2 3")
	hub.Topics.SetState(sessions(6, 3, mail, plain, fleettest.Service("web", 1, 2))) // no sessions any more
	want("s1", s1, 6, "")
	want("the load balancer", lb, 6, "unchanged")

	whole := sessions(7, 3, mail, plain, web)
	whole.Whole = true
	hub.Topics.SetState(whole)
	want("the load balancer", lb, 7, "unchanged")
	want("s1", s1, 7, "web 3 of 1 2 3")
}

// Another controller may have told an agent in between that it has left.
func TestAnAgentIsToldKeysAgainWhereItsServiceWasSomethingElseInBetween(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	web := withSessions(fleettest.Service("web", 1))
	hub.Topics.SetState(sessions(1, 1, web))
	s1 := fleettest.Join(t, address, ca.Issue(pki.Agent, "s1"))
	s1.State()
	next := sessions(3, 1, web)
	next.Skipped = []string{"web"}
	hub.Topics.SetState(next)
	if state := s1.State(); told(state) != "web 1 of 1" {
		t.Errorf("told %q", told(state))
	}
}

func TestAReportOfTicketKeysIsCutShort(t *testing.T) {
	ca, hub := fleettest.NewAuthority(t), testHub(t, nil)
	address, _ := serveHub(t, hub, ca.Issue(pki.Controller, "c1"))
	many := map[uint32][]byte{1: {1}, 2: bytes.Repeat([]byte{1}, 4096)}
	for epoch := range uint32(1000) {
		many[epoch+3] = []byte("12345678")
	}
	fleettest.Join(t, address, ca.Issue(pki.Agent, "s1")).Send(&ballastv1.FromNode{Message: &ballastv1.FromNode_Keys{Keys: &ballastv1.KeyReport{Tickets: many}}})
	fleettest.Await(t, "the report", func() bool {
		for _, n := range hub.Nodes.Keys().List {
			if n.Report != nil {
				return len(n.Report.Tickets) == rotation.TicketKeysMax-2 && n.Report.Tickets[2] == nil && string(n.Report.Tickets[3]) == "12345678"
			}
		}
		return false
	})
}

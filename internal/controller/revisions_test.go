package controller

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/storetest"
)

// small is a store whose transactions have room for few documents: larger changes are made in steps.
type small struct{ store.Store }

func (s small) Limits() store.Limits { return store.Limits{Documents: 6, Bytes: 1 << 20} }

// fleetOf is what people want, of a revision.
func fleetOf(t *testing.T, client ballastv1connect.FleetClient, revision uint64) *ballastv1.GetFleetResponse {
	t.Helper()
	answer, err := client.GetFleet(t.Context(), &ballastv1.GetFleetRequest{Revision: revision})
	fleettest.Require(t, err)
	answer.Revision, answer.Unconfirmed = 0, ""
	answer.Services = slices.DeleteFunc(answer.Services, func(s *ballastv1.Service) bool { return s.GetOwner() != "" })
	return answer
}

// sorted is a fleet without what a rollback does not bring back: the order, as what is there stays before what returns, and ids that others have now.
func sorted(fleet *ballastv1.GetFleetResponse) *ballastv1.GetFleetResponse {
	fleet = proto.CloneOf(fleet)
	for _, s := range fleet.Services {
		slices.SortFunc(s.Servers, func(a, b *ballastv1.Server) int { return cmp.Compare(a.Name, b.Name) })
		for _, server := range s.Servers {
			server.Id = 0
		}
	}
	slices.SortFunc(fleet.Nodes, func(a, b *ballastv1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return fleet
}

// idsOf are those of servers by service and address.
func idsOf(fleet *ballastv1.GetFleetResponse) map[string]uint32 {
	ids := map[string]uint32{}
	for _, s := range fleet.Services {
		for _, server := range s.Servers {
			ids[s.Name+" "+server.Address] = server.Id
		}
	}
	return ids
}

// everything is an apply of all that a fleet has, as rollback sends it.
func everything(fleet *ballastv1.GetFleetResponse) *ballastv1.ApplyRequest {
	return &ballastv1.ApplyRequest{Services: fleet.Services, Nodes: fleet.Nodes, NodeHealth: fleet.NodeHealth, Replicas: fleet.Replicas, Unserved: fleet.Unserved, Force: true, Exact: true}
}

// Promise: Every one of the last changes of a fleet can be returned to, whoever made it, whatever came after it, and by any controller.
func TestAFleetReturnsToAnyRevision(t *testing.T) {
	for name, s := range map[string]store.Store{"at once": storetest.Open(t), "in steps": small{storetest.Open(t)}} {
		t.Run(name, func(t *testing.T) { returnsToAnyRevision(t, s) })
	}
}

func returnsToAnyRevision(t *testing.T, s store.Store) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random, ca := rand.New(rand.NewPCG(seed, 0)), fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", s, nil)
	me, kube := c.client(ca.Issue(pki.Ctl, "me")), c.client(ca.Issue(pki.Source, "kube"))
	apply(t, me, fleettest.Service("a", 1, 2, 3), fleettest.Service("b", 1, 2), fleettest.Service("c", 1))
	known := map[uint64]*ballastv1.GetFleetResponse{}
	ctx := t.Context()
	changes := []func(service, server string) (*ballastv1.ChangeResponse, error){
		func(service, server string) (*ballastv1.ChangeResponse, error) {
			return me.WeighServer(ctx, &ballastv1.WeighServerRequest{Service: service, Server: server, Weight: random.Uint32N(9), Force: true})
		},
		func(service, server string) (*ballastv1.ChangeResponse, error) {
			return me.DrainServer(ctx, &ballastv1.DrainServerRequest{Service: service, Server: server, Deadline: durationpb.New(time.Hour), Force: true})
		},
		func(service, server string) (*ballastv1.ChangeResponse, error) {
			return me.RemoveServer(ctx, &ballastv1.ServerRequest{Service: service, Server: server, Force: true})
		},
		func(service, _ string) (*ballastv1.ChangeResponse, error) {
			return me.AddServer(ctx, &ballastv1.AddServerRequest{Service: service, Server: &ballastv1.Server{Address: fmt.Sprintf("10.1.%d.%d", random.IntN(200), 1+random.IntN(200))}})
		},
		func(service, _ string) (*ballastv1.ChangeResponse, error) {
			return me.RemoveService(ctx, &ballastv1.RemoveServiceRequest{Service: service, Force: true})
		},
		func(service, _ string) (*ballastv1.ChangeResponse, error) {
			dispatch := []string{"rr", "p2c", "least"}[random.IntN(3)]
			return me.PutService(ctx, &ballastv1.PutServiceRequest{Force: true, Service: &ballastv1.Service{Name: service, Vip: fmt.Sprintf("198.51.100.%d", 10+service[0]), Ports: []uint32{80}, Dispatch: dispatch}})
		},
		func(string, string) (*ballastv1.ChangeResponse, error) {
			return me.AddNode(ctx, &ballastv1.AddNodeRequest{Node: &ballastv1.Node{Name: fmt.Sprintf("lb%d", random.IntN(5)), Tier: "first"}})
		},
		func(string, string) (*ballastv1.ChangeResponse, error) {
			return me.RemoveNode(ctx, &ballastv1.NodeRequest{Node: fmt.Sprintf("lb%d", random.IntN(5)), Force: true})
		},
		func(string, string) (*ballastv1.ChangeResponse, error) { // no revision has it
			return kube.ApplyServices(ctx, &ballastv1.ApplyServicesRequest{Owner: "kube", Force: true, Services: []*ballastv1.Service{{Name: "kube", Vip: "198.51.100.99", Ports: []uint32{80},
				Servers: []*ballastv1.Server{{Address: fmt.Sprintf("10.9.0.%d", 1+random.IntN(9))}}}}})
		},
		func(string, string) (*ballastv1.ChangeResponse, error) { // turned back meanwhile
			for revision, fleet := range known {
				before := idsOf(fleetOf(t, me, 0))
				answer, err := me.Apply(ctx, everything(fleet))
				have := fleetOf(t, me, 0)
				for server, id := range idsOf(have) {
					if was := before[server]; was != 0 && was != id {
						t.Errorf("server %s had id %d, and has %d", server, was, id)
					}
				}
				if err != nil || !proto.Equal(sorted(have), sorted(fleet)) {
					t.Fatalf("rolled back to %d: %v\n%v, want\n%v", revision, err, have, fleet)
				}
				return answer, err
			}
			return me.Apply(ctx, everything(fleetOf(t, me, 0)))
		},
	}
	refused := 0
	for range 60 {
		service := string(rune('a' + random.IntN(3)))
		servers, err := me.ListServers(ctx, &ballastv1.ListServersRequest{})
		fleettest.Require(t, err)
		server := "none"
		for _, one := range servers.Servers {
			if one.Service == service && random.IntN(2) == 0 {
				server = one.Server.Name
			}
		}
		answer, err := changes[random.IntN(len(changes))](service, server)
		if err != nil { // there is none of that name
			if code := connect.CodeOf(err); code != connect.CodeNotFound && code != connect.CodeAlreadyExists && code != connect.CodeInvalidArgument && code != connect.CodeFailedPrecondition {
				t.Fatal(err)
			}
			refused++
			continue
		}
		if len(answer.Changes) > 0 {
			known[answer.Revision] = fleetOf(t, me, 0)
		}
	}
	if len(known) < 10 {
		t.Fatalf("%d changes, %d refused", len(known), refused)
	}
	c.stop()
	c = startController(t, ca, "c2", "127.0.0.1:0", s, nil)
	me = c.client(ca.Issue(pki.Ctl, "me"))
	fleettest.Await(t, "the next controller knows the state", func() bool {
		_, err := me.GetFleet(ctx, &ballastv1.GetFleetRequest{})
		return err == nil
	})
	history, err := me.ListChanges(ctx, &ballastv1.ListChangesRequest{})
	fleettest.Require(t, err)
	listed := 0
	for _, change := range history.Changes {
		if !change.Kept || change.Revision == 0 {
			t.Errorf("not kept: %v", change)
		}
		if known[change.Revision] != nil {
			listed++
		}
	}
	if listed != len(known) {
		t.Errorf("the history has %d of %d revisions", listed, len(known))
	}
	for revision, want := range known {
		if have := fleetOf(t, me, revision); !proto.Equal(have, want) {
			t.Errorf("revision %d was\n%v, and is told as\n%v", revision, want, have)
		}
	}
	if _, err := me.GetFleet(ctx, &ballastv1.GetFleetRequest{Revision: 1 << 60}); connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), "no revision") {
		t.Errorf("a revision that there never was: %v", err)
	}
}

func TestTheHistorySaysWhy(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), nil)
	credentials := ca.Issue(pki.Ctl, "alice")
	apply(t, c.client(credentials), fleettest.Service("web", 1, 2))
	say := func(text string) error {
		_, err := api.NewFleetClient([]string{c.address}, credentials.Client(), api.WithComment(text)).DrainServer(t.Context(),
			&ballastv1.DrainServerRequest{Service: "web", Server: "s1"})
		return err
	}
	for _, forged := range []string{strings.Repeat("x", api.MaxComment+1), "two\nlines", "\x1b]0;", "\xc0\x80"} {
		if err := say(forged); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%q: %v", forged, err)
		}
	}
	const why = "#42: Zürich & s1, 100 %"
	fleettest.Require(t, say(why))
	history, err := c.client(credentials).ListChanges(t.Context(), &ballastv1.ListChangesRequest{})
	fleettest.Require(t, err)
	if len(history.Changes) != 2 || history.Changes[1].Comment != why || history.Changes[0].Comment != "" {
		t.Errorf("history: %v", history)
	}
}

// A drain that was to end at a time which has passed does not begin anew.
func TestWhatWasDrainingThenIsOffNow(t *testing.T) {
	ca := fleettest.NewAuthority(t)
	c := startController(t, ca, "c1", "127.0.0.1:0", storetest.Open(t), nil)
	me := c.client(ca.Issue(pki.Ctl, "me"))
	apply(t, me, fleettest.Service("web", 1, 2))
	drained, err := me.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "s1", Deadline: durationpb.New(time.Second)})
	fleettest.Require(t, err)
	fleettest.Await(t, "the drain ends", func() bool { return fleetOf(t, me, 0).Services[0].Servers[0].State == model.StateOff.String() })
	_, err = me.UndrainServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "s1"})
	fleettest.Require(t, err)
	if state := fleetOf(t, me, drained.Revision).Services[0].Servers[0].State; state != model.StateOff.String() {
		t.Errorf("it would be %s", state)
	}
}

package api_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// byDNS is a service whose servers a name has.
func byDNS(s *ballastv1.Service, name string) *ballastv1.Service {
	s.Source = &ballastv1.ServerSource{From: "dns", Name: &name}
	return s
}

// sourced sets the servers of web.
func sourced(t *testing.T, m *apitest.Memory, name string, servers ...model.Server) (changes []string, unfit []api.Unfit, err error) {
	t.Helper()
	of := model.ServerSource{From: model.SourceDNS, Name: name}
	changes, _, err = m.Change(t.Context(), false, api.SetServers("web", of, servers, &unfit))
	return changes, unfit, err
}

func server(last int) model.Server {
	a := netip.AddrFrom4([4]byte{10, 0, 0, byte(last)})
	return model.Server{Name: a.String(), Address: a, Weight: 1}
}

func listed(t *testing.T, m *apitest.Memory) (ids string) {
	t.Helper()
	fleet, _, err := m.Fleet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range fleet.Service("web").Servers {
		ids += fmt.Sprintf("%s=%d %s ", s.Name, s.ID, s.State)
	}
	return strings.TrimSpace(ids)
}

// Promise: Servers that a source names keep their ids whatever the order that it names them in, also when they come back; and what operators set of them stays.
func TestServersOfASourceKeepTheirIDs(t *testing.T) {
	m := &apitest.Memory{}
	fleet, _ := serveFleet(t, m)
	expect(t, "the file", apply(t, fleet, byDNS(web(), "web.example.com")), "keys: placement added", "keys: cookie epoch 1 added", "keys: current 0 -> 1", "service web: added with 0 servers")
	for _, step := range []struct {
		servers []model.Server
		want    string
	}{
		{[]model.Server{server(1), server(2)}, "10.0.0.1=1 active 10.0.0.2=2 active"},
		{[]model.Server{server(2), server(1)}, "10.0.0.1=1 active 10.0.0.2=2 active"},
		{[]model.Server{server(0), server(2)}, "10.0.0.2=2 active 10.0.0.0=3 active"},
		{[]model.Server{server(1), server(0), server(2)}, "10.0.0.2=2 active 10.0.0.0=3 active 10.0.0.1=1 active"},
	} {
		if _, unfit, err := sourced(t, m, "web.example.com", step.servers...); err != nil || len(unfit) > 0 || listed(t, m) != step.want {
			t.Errorf("have %q, want %q: %v, %v", listed(t, m), step.want, unfit, err)
		}
	}
	must(t)(fleet.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "10.0.0.2"}))
	all := []model.Server{server(0), server(1), server(2)}
	if changes, _, err := sourced(t, m, "web.example.com", all...); err != nil || len(changes) > 0 {
		t.Errorf("the same again: %v, %v", changes, err)
	}
	expect(t, "the same file again", apply(t, fleet, byDNS(web(), "web.example.com")))
	if have := listed(t, m); !strings.Contains(have, "10.0.0.2=2 draining") {
		t.Errorf("what an operator set: %s", have)
	}
	expect(t, "another name", apply(t, fleet, byDNS(web(), "www.example.com")), `service web: source.name "web.example.com" -> "www.example.com"`)
	if _, _, err := sourced(t, m, "web.example.com", server(9)); err != api.ErrOtherSource {
		t.Errorf("an answer of the source before: %v", err)
	}
	expect(t, "a list", apply(t, fleet, web(at("10.0.0.1"))), "service web: source.from dns -> list", `service web: source.name "www.example.com" -> ""`,
		"service web: server 10.0.0.2: removed", "service web: server 10.0.0.0: removed")
	if have := listed(t, m); have != "10.0.0.1=1 active" {
		t.Errorf("have %s", have)
	}
	renamed := byDNS(web(), "web.example.com")
	renamed.Name = "shop"
	apply(t, fleet, renamed)
	if f, _, _ := m.Fleet(t.Context()); len(f.Service("shop").Servers) != 1 {
		t.Error("under another name it has lost its servers until its source answers")
	}
}

// Promise: A source cannot make a service forward to a VIP, to loopback or to no host, or leave it without servers.
func TestServersThatCannotBeAreLeftOut(t *testing.T) {
	m := &apitest.Memory{}
	fleet, _ := serveFleet(t, m)
	apply(t, fleet, byDNS(web(), "web.example.com"))
	bad := func(address string) model.Server {
		return model.Server{Name: strings.ReplaceAll(address, "%", "-"), Address: netip.MustParseAddr(address), Weight: 1}
	}
	lies := []model.Server{bad("198.51.100.10"), bad("127.0.0.1"), bad("0.0.0.0"), bad("224.0.0.1"), bad("255.255.255.255"), bad("::1"), bad("fe80::1%eth0"), bad("::ffff:10.0.0.1")}
	for range 2 {
		_, unfit, err := sourced(t, m, "web.example.com", append(slices.Clone(lies), server(1))...)
		if err != nil || len(unfit) != len(lies) || listed(t, m) != "10.0.0.1=1 active" && !strings.HasPrefix(listed(t, m), "10.0.0.1=") {
			t.Errorf("have %s: %v, %v", listed(t, m), unfit, err)
		}
	}
	if _, unfit, err := sourced(t, m, "web.example.com", lies...); err != api.ErrNoneLeft || len(unfit) != len(lies) {
		t.Errorf("lies alone: %v, %v", unfit, err)
	}
	if have := listed(t, m); len(strings.Fields(have)) != 2 {
		t.Errorf("after lies alone: %s", have)
	}
}

func TestSourcesAreRefusedWhereTheyCannotBe(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	apply(t, fleet, byDNS(web(), "web.example.com"))
	_, err := fleet.AddServer(t.Context(), &ballastv1.AddServerRequest{Service: "web", Server: at("10.0.0.9")})
	if connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "come from dns web.example.com") {
		t.Errorf("a server by hand: %v", err)
	}
	_, err = fleet.RemoveServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "10.0.0.9"})
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("one less: %v", err)
	}
	back := "list"
	expect(t, "by hand again", must(t)(fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: &ballastv1.Service{Name: "web", Source: &ballastv1.ServerSource{From: back}}})),
		"service web: source.from dns -> list", `service web: source.name "web.example.com" -> ""`)

	byFile, _ := serveFleet(t, &apitest.Memory{KeysFromFile: true})
	_, err = byFile.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: byDNS(web(), "web.example.com"), Force: true})
	if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "need controllers") {
		t.Errorf("a load balancer by a file: %v", err)
	}
}

package api_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/pki"
)

// own is one call of ApplyServices, which may harm.
func own(t *testing.T, fleet ballastv1connect.FleetClient, owner string, services ...*ballastv1.Service) []string {
	t.Helper()
	return must(t)(fleet.ApplyServices(t.Context(), &ballastv1.ApplyServicesRequest{Owner: owner, Services: services, Force: true}))
}

// named is a service on its own VIP.
func named(name string, last int, servers ...*ballastv1.Server) *ballastv1.Service {
	return &ballastv1.Service{Name: name, Vip: fmt.Sprintf("198.51.100.%d", last), Ports: []uint32{80}, Servers: servers}
}

// Promise: A program that keeps services changes its own alone, and `ctl apply` of a file leaves them alone.
func TestOwnersChangeTheirOwnServicesAlone(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2")))
	expect(t, "the first", own(t, fleet, "kube", named("a", 1, at("10.0.0.3")), named("b", 2)), "service a: added with 1 server", "service b: added with 0 servers")
	expect(t, "another owner", own(t, fleet, "dns", named("c", 3, at("10.0.0.3"))), "service c: added with 1 server")
	expect(t, "the same again", own(t, fleet, "kube", named("b", 2), named("a", 1, at("10.0.0.3"))))
	expect(t, "less", own(t, fleet, "kube", named("a", 1, at("10.0.0.4"), at("10.0.0.3"))), "service b: removed",
		"service a: server 10.0.0.4: added with address 10.0.0.4, id 2, weight 1, active")
	expect(t, "a file without them", apply(t, fleet, web(at("10.0.0.1"))), "service web: server 10.0.0.2: removed")
	expect(t, "an empty file", apply(t, fleet), "service web: removed")
	answer, err := fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
	if err != nil || len(answer.Services) != 2 || answer.Services[0].GetOwner() != "kube" || answer.Services[1].GetOwner() != "dns" {
		t.Errorf("left are %v, %v", answer.GetServices(), err)
	}
	expect(t, "what a file shows of them and takes back", apply(t, fleet, answer.Services...))
	expect(t, "a file that takes one over", apply(t, fleet, named("a", 1, at("10.0.0.4"), at("10.0.0.3"))), "service a: owner kube -> ")
	expect(t, "nothing any more", own(t, fleet, "dns"), "service c: removed")
}

func TestAnOwnersFirstServiceMakesTheKeysOfAFleet(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	changes := own(t, fleet, "kube", named("a", 1, at("10.0.0.3")))
	expect(t, "the first", changes, "keys: placement added", "keys: cookie epoch 1 added", "keys: current 0 -> 1", "service a: added with 1 server")
}

// Promise: What an operator drains or weighs of a program's services stays so until the program reports something else of that server.
func TestOwnersDoNotUndoWhatOperatorsSetOfServers(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	one := func(weight uint32) *ballastv1.Server { return &ballastv1.Server{Address: "10.0.0.1", Weight: &weight} }
	own(t, fleet, "kube", named("a", 1, one(2), at("10.0.0.2")))
	apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2")))
	must(t)(fleet.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "a", Server: "10.0.0.1"}))
	must(t)(fleet.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "10.0.0.1"}))
	expect(t, "the same again", own(t, fleet, "kube", named("a", 1, one(2), at("10.0.0.2"))))
	expect(t, "another weight", own(t, fleet, "kube", named("a", 1, one(3), at("10.0.0.2"))), "service a: server 10.0.0.1: weight 2 -> 3")
	expect(t, "people's file", apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2"))))
}

func TestOwnersAreRefusedWhatIsNotTheirs(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	apply(t, fleet, web(at("10.0.0.1")))
	own(t, fleet, "dns", named("c", 3, at("10.0.0.3")))
	for what, c := range map[string]struct {
		owner   string
		service *ballastv1.Service
		code    connect.Code
		text    string
	}{
		"people's service":      {"kube", named("web", 9), connect.CodeAlreadyExists, "it is not of kube"},
		"another owner's":       {"kube", named("c", 3), connect.CodeAlreadyExists, "it is not of kube"},
		"another owner's place": {"kube", named("mine", 3), connect.CodeInvalidArgument, "services.mine"},
		"nobody":                {"", named("a", 1), connect.CodeInvalidArgument, "owner: missing"},
		"no name":               {"a b", named("a", 1), connect.CodeInvalidArgument, "services.a.owner"},
		"nonsense":              {"kube", &ballastv1.Service{Name: "a", Vip: "nowhere"}, connect.CodeInvalidArgument, "services.a.vip"},
	} {
		_, err := fleet.ApplyServices(t.Context(), &ballastv1.ApplyServicesRequest{Owner: c.owner, Services: []*ballastv1.Service{c.service}, Force: true})
		if connect.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, %v", what, connect.CodeOf(err), err)
		}
	}
	if _, err := fleet.ApplyServices(t.Context(), &ballastv1.ApplyServicesRequest{Owner: "dns"}); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("what harms, without force: %v", err)
	}
	answer, err := fleet.ApplyServices(t.Context(), &ballastv1.ApplyServicesRequest{Owner: "dns", DryRun: true})
	if err != nil || len(answer.Warnings) != 1 || len(answer.Changes) != 1 {
		t.Errorf("a dry run: %v, %v", answer, err)
	}
	byFile, _ := serveFleet(t, &apitest.Memory{KeysFromFile: true})
	if _, err := byFile.ApplyServices(t.Context(), &ballastv1.ApplyServicesRequest{Owner: "kube"}); connect.CodeOf(err) != connect.CodeUnimplemented {
		t.Errorf("a load balancer by a file: %v", err)
	}
}

// sourceOf is a client of a fleet that shows a certificate of role source.
func sourceOf(t *testing.T, d *apitest.Memory, name string) ballastv1connect.FleetClient {
	t.Helper()
	path, handler := api.NewFleetHandler(d)
	mux := http.NewServeMux()
	mux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r.WithContext(api.WithCaller(r.Context(), api.Caller{Name: name, Role: string(pki.Source)})))
	}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return api.NewFleetClient([]string{server.Listener.Addr().String()}, nil)
}

// Promise: A certificate of role source changes services of its own name alone, and has nodes run or ask nothing.
func TestSourcesKeepServicesOfTheirOwnNameAlone(t *testing.T) {
	fleet := sourceOf(t, &apitest.Memory{}, "kube")
	own(t, fleet, "kube", named("a", 1, at("10.0.0.3")))
	running, asking := named("a", 1, at("10.0.0.3")), named("a", 1, at("10.0.0.3"))
	running.Health = &ballastv1.Health{Check: "exec", Command: []string{"id"}}
	asking.Load = &ballastv1.Load{Endpoint: "http://169.254.169.254:80/"}
	functions := &ballastv1.Service{Name: "a", Protocol: "any", Destinations: "0.0.0.0/0", Servers: []*ballastv1.Server{at("10.0.0.3")}}
	for what, request := range map[string]*ballastv1.ApplyServicesRequest{
		"another name": {Owner: "dns"},
		"a program":    {Owner: "kube", Services: []*ballastv1.Service{running}},
		"a URL":        {Owner: "kube", Services: []*ballastv1.Service{asking}},
		"a name":       {Owner: "kube", Services: []*ballastv1.Service{byDNS(named("a", 1), "web.example.com")}},
		"all packets":  {Owner: "kube", Services: []*ballastv1.Service{functions}},
	} {
		request.Force = true
		if _, err := fleet.ApplyServices(t.Context(), request); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Promise: A certificate of role source gets no port of an address that a service of people or of another owner has; what it has there already, it
// keeps, and gets no more of.
func TestSourcesGetNoPortsAtAddressesOfOthers(t *testing.T) {
	d := &apitest.Memory{}
	people, _ := serveFleet(t, d)
	kube := sourceOf(t, d, "kube")
	all := named("all", 1, at("10.0.0.1"))
	all.Ports, all.PortRanges, all.Health = nil, []string{"all"}, &ballastv1.Health{Check: "none"}
	apply(t, people, all)
	own(t, people, "dns", named("c", 3, at("10.0.0.3")))
	second := named("a", 9, at("10.0.0.4"))
	second.Vips = []string{"198.51.100.9", "198.51.100.3"}
	udp := named("a", 3, at("10.0.0.4"))
	udp.Protocol = "udp"
	refused := func(what string, services ...*ballastv1.Service) {
		t.Helper()
		request := &ballastv1.ApplyServicesRequest{Owner: "kube", Services: services, Force: true}
		if _, err := kube.ApplyServices(t.Context(), request); connect.CodeOf(err) != connect.CodeAlreadyExists || !strings.Contains(err.Error(), "which is not of kube") {
			t.Errorf("%s: %v", what, err)
		}
	}
	port := func(port uint32, last int) *ballastv1.Service {
		s := named("a", last, at("10.0.0.4"))
		s.Ports = []uint32{port}
		return s
	}
	refused("a port of who has all", port(443, 1))
	refused("a port that nobody has", port(443, 3))
	refused("another protocol", udp)
	refused("a second address", second)

	own(t, kube, "kube", port(443, 7))
	theirs := named("later", 7, at("10.0.0.1"))
	apply(t, people, all, theirs) // people may come to an address of a program's
	own(t, kube, "kube", port(443, 7))
	more := port(443, 7)
	more.Servers = append(more.Servers, at("10.0.0.5"))
	expect(t, "what it has, with another server", own(t, kube, "kube", more), "service a: server 10.0.0.5: added with address 10.0.0.5, id 2, weight 1, active")
	more.Ports = []uint32{443, 8443}
	refused("one more port", more)
	refused("another service", port(443, 7), func() *ballastv1.Service { s := port(8443, 7); s.Name = "b"; return s }())
	udp = port(443, 7)
	udp.Protocol = "udp"
	refused("by another protocol", udp)
	expect(t, "an operator's certificate", own(t, people, "kube", port(8443, 7)), "service a: ports 443 -> 8443", "service a: server 10.0.0.5: removed")
}

package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/store"
)

// serveFleet serves a desired state over TCP, without TLS.
func serveFleet(t testing.TB, d api.Desired) (fleet ballastv1connect.FleetClient, url string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(api.NewFleetHandler(d))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return api.NewFleetClient([]string{server.Listener.Addr().String()}, nil), server.URL
}

func web(servers ...*ballastv1.Server) *ballastv1.Service {
	return &ballastv1.Service{Name: "web", Vip: "198.51.100.10", Ports: []uint32{80}, Servers: servers}
}

func at(address string) *ballastv1.Server { return &ballastv1.Server{Address: address} }

func apply(t *testing.T, fleet ballastv1connect.FleetClient, services ...*ballastv1.Service) []string {
	t.Helper()
	answer, err := fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: services, Force: true})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Changes
}

// servers returns "address=id state" of the servers of the first service.
func servers(t *testing.T, fleet ballastv1connect.FleetClient) (list []string) {
	t.Helper()
	answer, err := fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range answer.Services[0].Servers {
		list = append(list, fmt.Sprintf("%s=%d %s", s.Address, s.Id, s.State))
	}
	return list
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, not %q", what, got, want)
	}
}

func must(t *testing.T) func(*ballastv1.ChangeResponse, error) []string {
	return func(answer *ballastv1.ChangeResponse, err error) []string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return answer.Changes
	}
}

func TestApplyLeavesNothingBehindThatItDoesNotName(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	dns := &ballastv1.Service{Name: "dns", Vip: "198.51.100.53", Ports: []uint32{53}, Protocol: "udp"}
	expect(t, "the first apply", apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2")), dns), "keys: placement added", "keys: cookie epoch 1 added",
		"keys: current 0 -> 1", "service web: added with 2 servers", "service dns: added with 0 servers")
	expect(t, "the same again", apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2")), dns))
	expect(t, "in another order", apply(t, fleet, dns, web(at("10.0.0.2"), at("10.0.0.1"))))
	expect(t, "servers", servers(t, fleet), "10.0.0.1=1 active", "10.0.0.2=2 active")
	expect(t, "less", apply(t, fleet, web(at("10.0.0.2"))), "service dns: removed", "service web: server 10.0.0.1: removed")
	expect(t, "nothing", apply(t, fleet), "service web: removed")
}

func TestServersWithoutIDKeepTheirsOrGetTheNext(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2"), at("10.0.0.3")))
	apply(t, fleet, web(at("10.0.0.4"), at("10.0.0.3"), at("10.0.0.1")))
	expect(t, "one comes, one goes", servers(t, fleet), "10.0.0.1=1 active", "10.0.0.3=3 active", "10.0.0.4=4 active")
	apply(t, fleet, web(at("10.0.0.5"), at("10.0.0.2"), at("10.0.0.1"), at("10.0.0.3")))
	expect(t, "one comes back to its connections", servers(t, fleet), "10.0.0.1=1 active", "10.0.0.3=3 active", "10.0.0.5=5 active", "10.0.0.2=2 active")
	renamed := at("10.0.0.6")
	renamed.Name = "10.0.0.1" // another machine under an old name must not get the connections of the old one
	apply(t, fleet, web(renamed, &ballastv1.Server{Address: "10.0.0.7", Id: 100}, at("10.0.0.8")))
	expect(t, "given ones", servers(t, fleet), "10.0.0.6=101 active", "10.0.0.7=100 active", "10.0.0.8=102 active")
}

func TestARenamedServiceKeepsTheIDsOfItsServers(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	named := func(name string, servers ...*ballastv1.Server) *ballastv1.Service {
		s := web(servers...)
		s.Name = name
		return s
	}
	apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2"), at("10.0.0.3")))
	apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2")))
	apply(t, fleet, named("shop", at("10.0.0.4"), at("10.0.0.2")))
	expect(t, "another name, and one comes, one goes", servers(t, fleet), "10.0.0.2=2 active", "10.0.0.4=4 active")
	apply(t, fleet, named("store", at("10.0.0.3"), at("10.0.0.1"), at("10.0.0.2")))
	expect(t, "those come back that left under other names", servers(t, fleet), "10.0.0.2=2 active", "10.0.0.3=3 active", "10.0.0.1=1 active")
}

func TestAPortThatBecomesAServiceOfItsOwnKeepsTheIDsOfItsServers(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	named := func(name string, ports []uint32, servers ...*ballastv1.Server) *ballastv1.Service {
		s := web(servers...)
		s.Name, s.Ports = name, ports
		return s
	}
	a := named("a", []uint32{8081}, at("10.0.0.1"), at("10.0.0.2"))
	apply(t, fleet, named("web", []uint32{8080, 9090}, at("10.0.0.2"), at("10.0.0.1")), a)
	expect(t, "in the order of the file", servers(t, fleet), "10.0.0.2=1 active", "10.0.0.1=2 active")
	apply(t, fleet, named("web", []uint32{8080}, at("10.0.0.1"), at("10.0.0.2")), named("tls", []uint32{9090}, at("10.0.0.1"), at("10.0.0.2")), a)
	answer, err := fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range answer.Services {
		for _, server := range service.Servers {
			if want := map[string]uint32{"10.0.0.2": 1, "10.0.0.1": 2}[server.Address]; service.Name != "a" && server.Id != want {
				t.Errorf("%s of %s has id %d, want %d", server.Address, service.Name, server.Id, want)
			}
		}
	}
	_, err = fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{
		named("web", []uint32{8080}, at("10.0.0.1"), at("10.0.0.2")), named("a", []uint32{8081, 9090}, at("10.0.0.1"), at("10.0.0.2")),
	}})
	if err == nil || !strings.Contains(err.Error(), "service of their own") {
		t.Errorf("a port moved to a service whose ids are others: %v", err)
	}
}

func TestLocalTablesKeepTheirIDs(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	local := func(servers ...*ballastv1.Server) *ballastv1.Service {
		s := web(servers...)
		s.Affinity = "local-table"
		return s
	}
	apply(t, fleet, local(at("10.0.0.1"), at("10.0.0.2")))
	apply(t, fleet, local(at("10.0.0.3"), at("10.0.0.2")))
	expect(t, "one comes, one goes", servers(t, fleet), "10.0.0.2=2 active", "10.0.0.3=3 active")
}

func TestIDsRunOutOnlyWhenAllAreTaken(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	narrow := func(count int) *ballastv1.Service {
		s := web()
		s.CookieBits = 8
		for i := range count {
			s.Servers = append(s.Servers, at(fmt.Sprintf("10.0.0.%d", i+1)))
		}
		return s
	}
	apply(t, fleet, narrow(127))
	_, err := fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{narrow(128)}})
	if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "services[0].servers[127].id: missing") {
		t.Errorf("the 128th server: %v", err)
	}
	apply(t, fleet, narrow(120))
	_, err = fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{withoutIDs(narrow(0), 128)}})
	if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "missing") || strings.Contains(err.Error(), "is the id of") {
		t.Errorf("128 others: %v", err)
	}
	must(t)(fleet.ForgetServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "10.0.0.125"}))
	answer, err := fleet.AddServer(t.Context(), &ballastv1.AddServerRequest{Service: "web", Server: at("10.0.1.1")})
	if err != nil || answer.Id != 125 {
		t.Errorf("the only free id: %v, %v", answer, err)
	}
}

// withoutIDs adds servers at other addresses than narrow's.
func withoutIDs(s *ballastv1.Service, count int) *ballastv1.Service {
	for i := range count {
		s.Servers = append(s.Servers, at(fmt.Sprintf("10.1.0.%d", i+1)))
	}
	return s
}

func TestADryRunChangesNothing(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	apply(t, fleet, web(at("10.0.0.1")))
	answer, err := fleet.Apply(t.Context(), &ballastv1.ApplyRequest{DryRun: true})
	expect(t, "what it would do", must(t)(answer, err), "service web: removed")
	expect(t, "what is there", servers(t, fleet), "10.0.0.1=1 active")
}

func TestChangesAreTriedAgainWhenSomebodyElseWasFaster(t *testing.T) {
	memory := &apitest.Memory{}
	fleet, _ := serveFleet(t, memory)
	apply(t, fleet, web())
	memory.Interfere = func() {
		must(t)(fleet.AddServer(context.Background(), &ballastv1.AddServerRequest{Service: "web", Server: at("10.0.0.1")}))
	}
	answer, err := fleet.AddServer(t.Context(), &ballastv1.AddServerRequest{Service: "web", Server: at("10.0.0.2")})
	if err != nil || answer.Id != 2 {
		t.Errorf("the slower one got %v, %v", answer, err)
	}
	expect(t, "both", servers(t, fleet), "10.0.0.1=1 active", "10.0.0.2=2 active")
}

func TestServersDrainUntilADeadlineAndComeBack(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	apply(t, fleet, web(at("10.0.0.1")))
	before := time.Now()
	must(t)(fleet.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "10.0.0.1", Deadline: durationpb.New(time.Minute), Force: true}))
	answer, err := fleet.ListServers(t.Context(), &ballastv1.ListServersRequest{Service: "web"})
	if err != nil {
		t.Fatal(err)
	}
	server := answer.Servers[0].Server
	left := server.Deadline.AsTime().Sub(before)
	if server.State != "draining" || left < time.Minute || left > time.Minute+10*time.Second || server.Deadline.Nanos != 0 {
		t.Errorf("%v has %s left", server, left)
	}
	must(t)(fleet.UndrainServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "10.0.0.1"}))
	expect(t, "undrained", servers(t, fleet), "10.0.0.1=1 active")
	if again := must(t)(fleet.UndrainServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "10.0.0.1"})); len(again) != 0 {
		t.Errorf("twice: %q", again)
	}
}

func TestAnotherCheckLeavesBehindWhatOnlyTheOldOneHadUseFor(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	s := web()
	s.Health = &ballastv1.Health{Check: "http", Path: "/healthz", Port: 8080}
	s.Load = &ballastv1.Load{Endpoint: "http://:8080/load"}
	apply(t, fleet, s)
	expect(t, "set", must(t)(fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: &ballastv1.Service{Name: "web",
		Health: &ballastv1.Health{Check: "tcp"}, Load: &ballastv1.Load{Source: "cpu"}}})),
		"service web: load.source endpoint -> cpu", `service web: load.endpoint "http://:8080/load" -> ""`, "service web: health.check http -> tcp",
		`service web: health.path "/healthz" -> ""`)
}

// tiers is a fleet of two tiers with a table service of a hundred servers.
func tiers() *ballastv1.ApplyRequest {
	table := web()
	table.Affinity, table.Table = "table", &ballastv1.Table{Entries: 1024}
	return &ballastv1.ApplyRequest{Services: []*ballastv1.Service{withoutIDs(table, 60)}, Nodes: []*ballastv1.Node{{Name: "lb1", Tier: "first"},
		{Name: "lb2", Tier: "second", Address: "192.0.2.2"}, {Name: "lb3", Tier: "second", Address: "192.0.2.3"}}}
}

// nodes returns "name=id state" of the nodes with a tier.
func nodes(t *testing.T, fleet ballastv1connect.FleetClient) (list []string) {
	t.Helper()
	answer, err := fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range answer.Nodes {
		list = append(list, fmt.Sprintf("%s=%d %s", n.Name, n.Id, n.State))
	}
	return list
}

func TestNodesWithoutIDKeepTheirsOrGetTheNext(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	request := tiers()
	must(t)(fleet.Apply(t.Context(), request))
	expect(t, "applied", nodes(t, fleet), "lb1=0 active", "lb2=1 active", "lb3=2 active")
	expect(t, "applied again", must(t)(fleet.Apply(t.Context(), request)))
	request.Nodes[1].Name = "new"
	must(t)(fleet.Apply(t.Context(), request))
	expect(t, "renamed", nodes(t, fleet), "lb1=0 active", "lb3=2 active", "new=1 active")
	answer, err := fleet.AddNode(t.Context(), &ballastv1.AddNodeRequest{Node: &ballastv1.Node{Name: "lb4", Tier: "second", Address: "192.0.2.4"}})
	expect(t, "added", must(t)(answer, err), "node lb4: added with tier second, address 192.0.2.4, id 3, active")
	if answer.Id != 3 {
		t.Errorf("told id %d", answer.Id)
	}
}

func TestNodesDrainAndLeave(t *testing.T) {
	memory := &apitest.Memory{Members: []*ballastv1.NodeStatus{{Role: "agent", Name: "lb3"}, {Role: "lb", Name: "lb2", Health: "healthy"}}}
	fleet, _ := serveFleet(t, memory)
	must(t)(fleet.Apply(t.Context(), tiers()))
	expect(t, "checked", must(t)(fleet.SetNodeHealth(t.Context(), &ballastv1.SetNodeHealthRequest{Health: &ballastv1.Health{Check: "http", Port: 9435, Path: "/metrics"}})),
		"node_health: check none -> http", "node_health: port 0 -> 9435", `node_health: path "" -> "/metrics"`)
	expect(t, "checked otherwise", must(t)(fleet.SetNodeHealth(t.Context(), &ballastv1.SetNodeHealthRequest{Health: &ballastv1.Health{Check: "tcp"}})),
		"node_health: check http -> tcp", `node_health: path "/metrics" -> ""`)
	expect(t, "drained", must(t)(fleet.DrainNode(t.Context(), &ballastv1.NodeRequest{Node: "lb3"})), "node lb3: state active -> draining")
	list, err := fleet.ListNodes(t.Context(), &ballastv1.ListNodesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, n := range list.Nodes {
		told = append(told, fmt.Sprint(n.Role, " ", n.Name, " ", n.Node.GetTier(), " ", n.Node.GetState(), " ", n.Health, strings.Contains(strings.Join(n.Problems, " "), "is not connected, and was not within a day")))
	}
	expect(t, "listed", told, "agent lb3   false", "lb lb2 second active healthyfalse", "lb lb1 first active true", "lb lb3 second draining true")
	memory.KeysFromFile = true // a load balancer by a file knows nobody
	if list, err = fleet.ListNodes(t.Context(), &ballastv1.ListNodesRequest{}); err != nil || len(list.Nodes) != 4 || len(list.Nodes[2].Problems) > 0 {
		t.Errorf("by a file: %v, %v", list, err)
	}
	memory.KeysFromFile = false
	expect(t, "undrained", must(t)(fleet.UndrainNode(t.Context(), &ballastv1.NodeRequest{Node: "lb3"})), "node lb3: state draining -> active")
	must(t)(fleet.RemoveNode(t.Context(), &ballastv1.NodeRequest{Node: "lb3"}))
	must(t)(fleet.RemoveNode(t.Context(), &ballastv1.NodeRequest{Node: "lb2"}))
	expect(t, "left", nodes(t, fleet), "lb1=0 active")
}

func TestNodesThatCannotBeAreRefused(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	must(t)(fleet.Apply(t.Context(), tiers()))
	add := func(n *ballastv1.Node) func() (*ballastv1.ChangeResponse, error) {
		return func() (*ballastv1.ChangeResponse, error) {
			return fleet.AddNode(t.Context(), &ballastv1.AddNodeRequest{Node: n})
		}
	}
	for want, ask := range map[string]func() (*ballastv1.ChangeResponse, error){
		`there is a node "lb2" already`:                 add(&ballastv1.Node{Name: "lb2", Tier: "second"}),
		"nodes[3].tier: missing, and so are bgp and l2": add(&ballastv1.Node{Name: "lb4"}),
		"nodes[3].address: missing":                     add(&ballastv1.Node{Name: "lb4", Tier: "second"}),
		`nodes.lb4.tier: unknown value "both"`:          add(&ballastv1.Node{Name: "lb4", Tier: "both"}),
		"nodes[3].id: 8 is out of range 1-7":            add(&ballastv1.Node{Name: "lb4", Tier: "second", Address: "192.0.2.4", Id: 8}),
		"nodes[0].state: only nodes of the second tier": func() (*ballastv1.ChangeResponse, error) {
			return fleet.DrainNode(t.Context(), &ballastv1.NodeRequest{Node: "lb1"})
		},
		`there is no node "lb9"`: func() (*ballastv1.ChangeResponse, error) {
			return fleet.UndrainNode(t.Context(), &ballastv1.NodeRequest{Node: "lb9"})
		},
		"node_health.port: missing: nodes have no port": func() (*ballastv1.ChangeResponse, error) {
			return fleet.SetNodeHealth(t.Context(), &ballastv1.SetNodeHealthRequest{Health: &ballastv1.Health{Check: "tcp"}})
		},
		`there is no node "lb8"`: func() (*ballastv1.ChangeResponse, error) {
			return fleet.RemoveNode(t.Context(), &ballastv1.NodeRequest{Node: "lb8"})
		},
	} {
		if _, err := ask(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
	}
}

func TestATableIsSetFieldByFieldAndGoesWithTheAffinity(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(at("10.0.0.1"), at("10.0.0.2"))}}))
	put := func(s *ballastv1.Service) []string {
		t.Helper()
		s.Name = "web"
		return must(t)(fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: s, Force: true}))
	}
	limit, none := uint32(100), uint32(0)
	expect(t, "table", put(&ballastv1.Service{Affinity: "table", Table: &ballastv1.Table{PacketLimit: &limit}}), "service web: affinity cookie -> table",
		"service web: table.entries 0 -> 65536", "service web: table.index_bits 0 -> 6", "service web: table.idle_timeout 0s -> 5m0s", "service web: table.packet_limit 0 -> 100")
	expect(t, "size", put(&ballastv1.Service{Table: &ballastv1.Table{Entries: 128}}), "service web: table.entries 65536 -> 128")
	expect(t, "no limit", put(&ballastv1.Service{Table: &ballastv1.Table{PacketLimit: &none}}), "service web: table.packet_limit 100 -> 0")
	changes := put(&ballastv1.Service{Affinity: "hash", Dispatch: "maglev"})
	if !slices.Contains(changes, "service web: table.entries 128 -> 0") {
		t.Errorf("the table stayed: %q", changes)
	}
}

func TestPutServiceKeepsToWhatIsSaidOfItsExistence(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	yes, no := true, false
	if _, err := fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: web(), Exists: &yes}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("set what is not there: %v", err)
	}
	must(t)(fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: web(at("10.0.0.1")), Exists: &no}))
	if _, err := fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: web(), Exists: &no}); connect.CodeOf(err) != connect.CodeAlreadyExists {
		t.Errorf("add what is there: %v", err)
	}
	must(t)(fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: &ballastv1.Service{Name: "web", Dispatch: "p2c"}}))
	expect(t, "servers stay", servers(t, fleet), "10.0.0.1=1 active")
}

func TestSecretsAreToldOnlyWhereNobodyElseTellsThem(t *testing.T) {
	for _, fromFile := range []bool{false, true} {
		memory := &apitest.Memory{}
		fleet, _ := serveFleet(t, memory)
		apply(t, fleet, web())
		memory.KeysFromFile = fromFile
		added, err := fleet.AddKey(t.Context(), &ballastv1.AddKeyRequest{})
		if err != nil || added.Epoch != 2 || (len(added.Secret) == 16) != fromFile {
			t.Errorf("keys from a file: %v: %v, %v", fromFile, added, err)
		}
		must(t)(fleet.UseKey(t.Context(), &ballastv1.KeyRequest{Epoch: 2}))
		must(t)(fleet.DropKey(t.Context(), &ballastv1.KeyRequest{Epoch: 1}))
		keys, err := fleet.ListKeys(t.Context(), &ballastv1.ListKeysRequest{})
		if err != nil || !slices.Equal(keys.Epochs, []uint32{2}) || keys.Current != 2 {
			t.Errorf("keys: %v, %v", keys, err)
		}
	}
}

func TestKeysAreNotMadeForALoadBalancerThatRunsByAFile(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{KeysFromFile: true})
	_, err := fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: web()})
	if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "ballast ctl key generate") {
		t.Errorf("a service without keys: %v", err)
	}
}

// failing fails as it is told to.
type failing struct {
	apitest.Memory
	err error
}

func (f *failing) Change(context.Context, bool, fleet.Edit) ([]string, uint64, error) {
	return nil, 0, f.err
}

func TestFailuresHaveTheirCodes(t *testing.T) {
	for code, err := range map[connect.Code]error{
		connect.CodeAborted:            fmt.Errorf("commit: %w", store.ErrConflict),
		connect.CodeInternal:           errors.New("disk full"),
		connect.CodeFailedPrecondition: connect.NewError(connect.CodeFailedPrecondition, errors.New("runs by controllers")),
	} {
		fleet, _ := serveFleet(t, &failing{err: err})
		if _, got := fleet.RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{}); connect.CodeOf(got) != code {
			t.Errorf("%v became %v", err, got)
		}
	}
}

func TestTheFleetAPIIsJSONOverPlainHTTP(t *testing.T) {
	fleet, url := serveFleet(t, &apitest.Memory{})
	apply(t, fleet, web(at("10.0.0.1")))
	post := func(method, body string) (code int, answer map[string]any) {
		t.Helper()
		response, err := http.Post(url+"/ballast.v1.Fleet/"+method, "application/json", bytes.NewBufferString(body))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil || json.Unmarshal(text, &answer) != nil {
			t.Fatalf("%s: %q, %v", method, text, err)
		}
		return response.StatusCode, answer
	}
	if code, answer := post("DrainServer", `{"service": "web", "server": "10.0.0.1", "deadline": "600s", "force": true}`); code != 200 || answer["revision"] != "2" {
		t.Errorf("drain: %d %v", code, answer)
	}
	if code, answer := post("GetFleet", `{}`); code != 200 || answer["services"].([]any)[0].(map[string]any)["name"] != "web" {
		t.Errorf("fleet: %d %v", code, answer)
	}
	if code, answer := post("RemoveService", `{"service": "shop"}`); code != 404 || answer["code"] != "not_found" || !strings.Contains(fmt.Sprint(answer["message"]), "no service") {
		t.Errorf("removing what is not there: %d %v", code, answer)
	}
	if code, answer := post("PutService", `{"service": {"name": "web", "colour": "red"}}`); code != 400 || !strings.Contains(fmt.Sprint(answer["message"]), "colour") {
		t.Errorf("an unknown field: %d %v", code, answer)
	}
	if code, answer := post("PutService", `{"service": {"name": "web", "cookie_bits": 14, "tableSlots": 251}}`); code != 200 {
		t.Errorf("both ways to write a name: %d %v", code, answer)
	}
}

func TestADaemonWithoutAFleetSaysSo(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	fleet := api.NewFleetClient([]string{server.Listener.Addr().String()}, nil)
	if _, err := fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{}); err == nil || !strings.Contains(err.Error(), "no fleet") {
		t.Errorf("an agent: %v", err)
	}
	local := api.NewClient(filepath.Join(t.TempDir(), "ctl.sock")).Fleet()
	if _, err := local.GetFleet(t.Context(), &ballastv1.GetFleetRequest{}); err == nil || !strings.Contains(err.Error(), "is it running") {
		t.Errorf("nobody: %v", err)
	}
}

package api_test

import (
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
)

// harm is a change that needs force, and what is said of it.
type harm struct {
	change  func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error)
	warning string
}

func put(t *testing.T, s *ballastv1.Service) func(ballastv1connect.FleetClient, bool) (*ballastv1.ChangeResponse, error) {
	return func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
		s.Name = "web"
		return fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: s, Force: force})
	}
}

// Promise: A change that takes out the last (healthy) server or breaks connections is refused, naming the harm,
// unless forced.
// Also held by TestTheLastHealthyServerGoesByForceAlone.
func TestWhatHarmsClientsOrCannotBeTakenBackNeedsForce(t *testing.T) {
	zero := uint32(0)
	draining := at("10.0.0.2")
	draining.State = "draining"
	idle := at("10.0.0.3")
	idle.Weight = &zero
	announcing := func(name, state string) *ballastv1.Node {
		return &ballastv1.Node{Name: name, State: state, Bgp: &ballastv1.BGP{As: 64600, NeighborAs: 64512, Neighbors: []string{"10.0.0.254"}}}
	}
	cases := map[string]harm{
		"drain of the last": {func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
			return fleet.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "10.0.0.1", Force: force})
		}, "service web: no server is left that takes new connections"},
		"removal of the last": {func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
			return fleet.RemoveServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "10.0.0.1", Force: force})
		}, "no server is left"},
		"weight 0 of the last": {func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
			return fleet.WeighServer(t.Context(), &ballastv1.WeighServerRequest{Service: "web", Server: "10.0.0.1", Force: force})
		}, "no server is left"},
		"removal of the service": {func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
			return fleet.RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{Service: "web", Force: force})
		}, "service web: it goes"},
		"a vip":        {put(t, &ballastv1.Service{Vip: "198.51.100.99"}), "vip or protocol changes"},
		"further vips": {put(t, &ballastv1.Service{Vips: []string{"198.51.100.10", "2001:db8::10"}}), "2001:db8::10 comes: a server that has not got it"},
		"a port":       {put(t, &ballastv1.Service{Ports: []uint32{443}}), "port 80 goes"},
		"apply without the service": {func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
			return fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Force: force})
		}, "service web: it goes"},
		"apply without the nodes that announce": {func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
			current, err := fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
			if err != nil {
				return nil, err
			}
			return fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: current.Services, Force: force})
		}, "no active node announces VIPs any more"},
		"drain of the last that announces": {func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
			return fleet.DrainNode(t.Context(), &ballastv1.NodeRequest{Node: "lb1", Force: force})
		}, "no active node announces VIPs any more"},
		"apply with old keys": {func(fleet ballastv1connect.FleetClient, force bool) (*ballastv1.ChangeResponse, error) {
			current, err := fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
			if err != nil {
				return nil, err
			}
			return fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: current.Services, Force: force, ForceKeys: true,
				Keys: &ballastv1.Keys{Placement: make16(9), Current: 1, Cookie: map[uint32][]byte{1: make16(1)}}})
		}, "keys: epoch 2 goes"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			fleet, _ := serveFleet(t, &apitest.Memory{})
			must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(at("10.0.0.1"), draining, idle)},
				Nodes: []*ballastv1.Node{announcing("lb1", ""), announcing("lb2", "draining")},
				Keys:  &ballastv1.Keys{Placement: make16(9), Current: 2, Cookie: map[uint32][]byte{1: make16(1), 2: make16(2)}}}))
			before, _ := fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{})
			_, err := c.change(fleet, false)
			warnings := api.WarningsOf(err)
			if connect.CodeOf(err) != connect.CodeFailedPrecondition || len(warnings) == 0 || !strings.Contains(strings.Join(warnings, "; "), c.warning) ||
				!strings.Contains(err.Error(), "repeat it with force") {
				t.Errorf("without force: %v, warnings %q", err, warnings)
			}
			if after, _ := fleet.GetFleet(t.Context(), &ballastv1.GetFleetRequest{}); after.Revision != before.Revision {
				t.Error("it was done all the same")
			}
			if answer, err := c.change(fleet, true); err != nil || !slices.Equal(answer.Warnings, warnings) || len(answer.Changes) == 0 {
				t.Errorf("with force: %v, %v", answer, err)
			}
		})
	}
}

// Promise: An affinity by which connections break needs force while some live, and one that keeps them all needs none.
func TestAnAffinityThatBreaksConnectionsNeedsForceWhileSomeLive(t *testing.T) {
	memory := &apitest.Memory{Live: func(uint16) uint64 { return 1 }}
	fleet, _ := serveFleet(t, memory)
	must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(at("10.0.0.1"), at("10.0.0.2"))}}))
	set := func(affinity, dispatch string, force bool) (*ballastv1.ChangeResponse, error) {
		return fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: &ballastv1.Service{Name: "web", Affinity: affinity, Dispatch: dispatch}, Force: force})
	}
	for range 2 {
		must(t)(set("table", "rr", false))
		must(t)(set("cookie", "rr", false))
	}
	const warning = "service web: affinity cookie -> hash: of 2 connections all break: "
	if _, err := set("hash", "maglev", false); !strings.Contains(strings.Join(api.WarningsOf(err), "; "), warning) || !strings.Contains(err.Error(), "repeat it with force") {
		t.Errorf("while two live: %v", err)
	}
	if answer, err := set("hash", "maglev", true); err != nil || len(answer.Warnings) != 1 {
		t.Errorf("by force: %v, %v", answer, err)
	}
	memory.Live = nil // agents count none
	must(t)(set("cookie", "rr", false))
	memory.Estimated = true // nobody knows
	if _, err := set("hash", "maglev", false); !strings.Contains(strings.Join(api.WarningsOf(err), "; "), "of connections that nobody counts all break") {
		t.Errorf("while nobody counts: %v", err)
	}
}

// Promise: A file by which all servers get other addresses needs force, says how many connections they have, and what becomes of them; repeated, or by force twice, it says the same.
func TestOtherAddressesForServersNeedForce(t *testing.T) {
	memory := &apitest.Memory{Live: func(uint16) uint64 { return 3 }}
	fleet, _ := serveFleet(t, memory)
	named := func(name, address string) *ballastv1.Server {
		s := at(address)
		s.Name = name
		return s
	}
	must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(named("s1", "10.0.0.1"), named("s2", "10.0.0.2"))}}))
	dead := &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(named("s1", "10.9.0.1"), named("s2", "10.9.0.2"))}, AllowRemove: true}
	const warning = "2 of its 2 servers (s1 10.0.0.1 -> 10.9.0.1, s2 10.0.0.2 -> 10.9.0.2): nobody has seen them answer; 6 connections stay with the old servers"
	for range 2 {
		if _, err := fleet.Apply(t.Context(), dead); !strings.Contains(strings.Join(api.WarningsOf(err), "; "), warning) || !strings.Contains(err.Error(), "repeat it with force") {
			t.Errorf("without force: %v", err)
		}
	}
	dead.DryRun = true
	if answer, err := fleet.Apply(t.Context(), dead); err != nil || len(answer.Warnings) != 1 || !slices.Contains(answer.Live, "service web: server s1: 3 connections stay until they end") {
		t.Errorf("dry: %v, %v", answer, err)
	}
	dead.DryRun, dead.Force = false, true
	if answer, err := fleet.Apply(t.Context(), dead); err != nil || len(answer.Warnings) != 1 {
		t.Errorf("by force: %v, %v", answer, err)
	}
	dead.Force = false
	must(t)(fleet.Apply(t.Context(), dead)) // it is so by now
}

// Promise: To give up a VIP needs force while connections need it.
func TestAVIPThatConnectionsNeedIsGivenUpByForceAlone(t *testing.T) {
	memory := &apitest.Memory{Live: func(uint16) uint64 { return 3 }}
	fleet, _ := serveFleet(t, memory)
	must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(at("10.0.0.1"))}}))
	off := web(at("10.0.0.1"))
	off.Announce = "off"
	change := &ballastv1.ApplyRequest{Services: []*ballastv1.Service{off}}
	if _, err := fleet.Apply(t.Context(), change); !strings.Contains(strings.Join(api.WarningsOf(err), "; "), "service web: announce is off: 3 connections break when another host takes the VIP") {
		t.Errorf("%v", err)
	}
	memory.Live = func(uint16) uint64 { return 0 }
	must(t)(fleet.Apply(t.Context(), change))
}

// Promise: It needs force also where removed servers alone have connections, also if the service gets another name.
func TestAnAffinityThatBreaksConnectionsOfRemovedServersNeedsForce(t *testing.T) {
	for name, to := range map[string]string{"same name": "web", "another name": "shop"} {
		memory := &apitest.Memory{Live: func(id uint16) uint64 { return uint64(id / 2) }} // the second server and the third have one
		fleet, _ := serveFleet(t, memory)
		must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(at("10.0.0.1"), at("10.0.0.2"), at("10.0.0.3"))}}))
		for _, server := range []string{"10.0.0.2", "10.0.0.3"} {
			must(t)(fleet.RemoveServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: server, Force: true}))
		}
		next := web(at("10.0.0.1"))
		next.Name, next.Affinity, next.Dispatch = to, "hash", "maglev"
		_, err := fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{next}})
		if warnings := strings.Join(api.WarningsOf(err), "; "); !strings.Contains(warnings, "affinity cookie -> hash: of 2 connections all break: ") {
			t.Errorf("%s: %v", name, err)
		}
		memory.Live = nil // agents count none
		if _, err := fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{next}}); err != nil {
			t.Errorf("%s: where none lives: %v", name, err)
		}
	}
}

// Servers that are active and unhealthy are no reason to let the last healthy one go.
func TestTheLastHealthyServerGoesByForceAlone(t *testing.T) {
	memory := &apitest.Memory{Unhealthy: map[string]bool{"10.0.0.2": true}}
	fleet, _ := serveFleet(t, memory)
	checked := web(at("10.0.0.1"), at("10.0.0.2"), at("10.0.0.3"))
	checked.Health = &ballastv1.Health{Check: "tcp"}
	must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{checked}}))
	drain := func(server string, force bool) (*ballastv1.ChangeResponse, error) {
		return fleet.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: server, Force: force})
	}
	must(t)(drain("10.0.0.3", false))
	const warning = "service web: no healthy server is left that takes new connections: all_down (keep) decides who gets them"
	if _, err := drain("10.0.0.1", false); !slices.Equal(api.WarningsOf(err), []string{warning}) {
		t.Errorf("without force: %v", err)
	}
	must(t)(drain("10.0.0.2", false)) // which had no new connections anyway
	must(t)(fleet.UndrainServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "10.0.0.2"}))
	if answer, err := drain("10.0.0.1", true); err != nil || !slices.Equal(answer.Warnings, []string{warning}) {
		t.Errorf("with force: %v, %v", answer, err)
	}
	// Nobody is healthy any more, and no worse.
	must(t)(fleet.RemoveServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "10.0.0.1"}))
}

func make16(b byte) []byte { return slices.Repeat([]byte{b}, 16) }

func TestWhatHarmsNobodyNeedsNoForce(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(at("10.0.0.1"), at("10.0.0.2"))}}))
	must(t)(fleet.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "10.0.0.1"}))
	must(t)(fleet.UndrainServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "10.0.0.1"}))
	must(t)(fleet.RemoveServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "10.0.0.2"}))
	must(t)(put(t, &ballastv1.Service{Dispatch: "p2c"})(fleet, false))
	must(t)(put(t, &ballastv1.Service{Ports: []uint32{80, 443}})(fleet, false))
	must(t)(fleet.PutService(t.Context(), &ballastv1.PutServiceRequest{Service: &ballastv1.Service{Name: "empty", Vip: "198.51.100.11", Ports: []uint32{80}}}))
	must(t)(fleet.RemoveService(t.Context(), &ballastv1.RemoveServiceRequest{Service: "empty"}))
	if _, err := fleet.AddKey(t.Context(), &ballastv1.AddKeyRequest{}); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"lb1", "lb2"} {
		must(t)(fleet.AddNode(t.Context(), &ballastv1.AddNodeRequest{Node: &ballastv1.Node{Name: name, Tier: "first",
			Bgp: &ballastv1.BGP{As: 64600, NeighborAs: 64512, Neighbors: []string{"10.0.0.254"}}}}))
	}
	must(t)(fleet.DrainNode(t.Context(), &ballastv1.NodeRequest{Node: "lb1"}))
	must(t)(fleet.UndrainNode(t.Context(), &ballastv1.NodeRequest{Node: "lb1"}))
	must(t)(fleet.RemoveNode(t.Context(), &ballastv1.NodeRequest{Node: "lb2"}))
	must(t)(fleet.DrainNode(t.Context(), &ballastv1.NodeRequest{Node: "lb1", Force: true}))
	renamed := web(at("10.0.0.1"))
	renamed.Name, renamed.Ports, renamed.Dispatch = "shop", []uint32{80, 443}, "p2c"
	must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{renamed}}))
}

// Promise: A predecessor that connections still go to is removed by force alone, by `service set` and by `apply`.
func TestAPredecessorThatIsNotIdleGoesByForceAlone(t *testing.T) {
	memory := &apitest.Memory{Predecessors: map[string]uint64{"web": 7}}
	fleet, _ := serveFleet(t, memory)
	with := web(at("10.0.0.1"))
	with.Predecessor = &ballastv1.Predecessor{Addresses: &ballastv1.Addresses{Addresses: []string{"10.0.0.9"}}}
	without := web(at("10.0.0.1"))
	must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{with}}))
	none := &ballastv1.Service{Predecessor: &ballastv1.Predecessor{Addresses: &ballastv1.Addresses{}}}
	for name, remove := range map[string]func(force bool) (*ballastv1.ChangeResponse, error){
		"set": func(force bool) (*ballastv1.ChangeResponse, error) { return put(t, none)(fleet, force) },
		"apply": func(force bool) (*ballastv1.ChangeResponse, error) {
			return fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{without}, Force: force})
		},
	} {
		memory.Predecessors["web"] = 7
		_, err := remove(false)
		if warnings := api.WarningsOf(err); len(warnings) != 1 || !strings.Contains(warnings[0], "its predecessor goes, and about 7 connections") {
			t.Errorf("%s: %v", name, err)
		}
		must(t)(remove(true))
		must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{with}}))
		memory.Predecessors["web"] = 0
		must(t)(remove(false))
		must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{with}}))
	}
}

// A dry run tells what needs force; what is refused anyway is refused for what is wrong with it.
func TestADryRunTellsOfHarmAndMistakesComeFirst(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	must(t)(fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(at("10.0.0.1"))}}))
	answer, err := fleet.Apply(t.Context(), &ballastv1.ApplyRequest{DryRun: true})
	if err != nil || len(answer.Warnings) != 1 || len(answer.Changes) != 1 {
		t.Errorf("dry run: %v, %v", answer, err)
	}
	_, err = put(t, &ballastv1.Service{Vip: "198.51.100.12", Affinity: "hash", Dispatch: "rr"})(fleet, false)
	if connect.CodeOf(err) != connect.CodeInvalidArgument || api.WarningsOf(err) != nil {
		t.Errorf("a change that harms and makes no sense: %v", err)
	}
}

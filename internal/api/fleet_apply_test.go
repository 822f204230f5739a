package api_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ballast-lb/ballast/internal/api/apitest"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
)

// Promise: `ctl apply` keeps drains and weights that `ctl` set and the file does not change, and undoes what else
// the file does not contain.
func TestApplyKeepsDrainsAndWeightsUntilTheFileSaysSomethingElseOfThem(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	weighing := func(address string, weight uint32) *ballastv1.Server {
		return &ballastv1.Server{Address: address, Weight: &weight}
	}
	apply(t, fleet, web(at("10.0.0.1"), weighing("10.0.0.2", 2), at("10.0.0.3")))
	must(t)(fleet.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "10.0.0.1", Deadline: durationpb.New(time.Hour)}))
	must(t)(fleet.WeighServer(t.Context(), &ballastv1.WeighServerRequest{Service: "web", Server: "10.0.0.2", Weight: 7}))

	edited := web(at("10.0.0.1"), weighing("10.0.0.2", 2), at("10.0.0.4"))
	edited.Dispatch = "p2c"
	answer, err := fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{edited}, Force: true})
	expect(t, "an edit elsewhere", must(t)(answer, err), "service web: dispatch rr -> p2c", "service web: server 10.0.0.3: removed",
		"service web: server 10.0.0.4: added with address 10.0.0.4, id 4, weight 1, active")
	if kept := answer.Kept; len(kept) != 3 || kept[0] != "service web: server 10.0.0.1: state active -> draining" || kept[2] != "service web: server 10.0.0.2: weight 2 -> 7" {
		t.Errorf("kept: %q", kept)
	}
	expect(t, "the same again", apply(t, fleet, edited))

	off := at("10.0.0.1")
	off.State = "off"
	expect(t, "an edit of both", apply(t, fleet, web(off, weighing("10.0.0.2", 3))), "service web: dispatch p2c -> rr", "service web: server 10.0.0.4: removed",
		"service web: server 10.0.0.1: state draining -> off", "service web: server 10.0.0.1: deadline "+deadlineOf(answer.Kept)+" -> never", "service web: server 10.0.0.2: weight 7 -> 3")
	expect(t, "and back", apply(t, fleet, web(at("10.0.0.1"), weighing("10.0.0.2", 2))), "service web: server 10.0.0.1: state off -> active", "service web: server 10.0.0.2: weight 3 -> 2")
}

// deadlineOf returns to what a deadline was set.
func deadlineOf(changes []string) string {
	i := slices.IndexFunc(changes, func(line string) bool { return strings.Contains(line, "deadline") })
	_, deadline, _ := strings.Cut(changes[i], "-> ")
	return deadline
}

func TestAFileThatCatchesUpWithADrainEndsItLater(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2")))
	must(t)(fleet.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "10.0.0.1"}))
	draining := at("10.0.0.1")
	draining.State = "draining"
	request := &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(draining, at("10.0.0.2"))}, Unchanged: true}
	expect(t, "what is so already", must(t)(fleet.Apply(t.Context(), request)))
	expect(t, "without the drain", apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2"))), "service web: server 10.0.0.1: state draining -> active")
}

func TestApplyKeepsADrainOfANodeOfTheSecondTier(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	request := &ballastv1.ApplyRequest{Nodes: []*ballastv1.Node{{Name: "lb1", Tier: "second", Address: "10.1.0.1"}, {Name: "lb2", Tier: "second", Address: "10.1.0.2"}},
		NodeHealth: &ballastv1.Health{Check: "tcp", Port: 9435}}
	must(t)(fleet.Apply(t.Context(), request))
	must(t)(fleet.DrainNode(t.Context(), &ballastv1.NodeRequest{Node: "lb2"}))
	request.Nodes = append(request.Nodes, &ballastv1.Node{Name: "lb3", Tier: "first"})
	expect(t, "an edit elsewhere", must(t)(fleet.Apply(t.Context(), request)), "node lb3: added with tier first")
	request.Nodes[1].State = "off"
	expect(t, "an edit of it", must(t)(fleet.Apply(t.Context(), request)), "node lb2: state draining -> off")
}

func TestApplySaysThatAKeptDrainLeavesNobodyToTakeNewConnections(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2")))
	must(t)(fleet.DrainServer(t.Context(), &ballastv1.DrainServerRequest{Service: "web", Server: "10.0.0.1"}))
	if _, err := fleet.Apply(t.Context(), &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(at("10.0.0.1"))}}); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("the last server that takes new connections went: %v", err)
	}
}

func TestWhatWasConfirmedIsWhatIsDone(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	apply(t, fleet, web(at("10.0.0.1")))
	request := &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(at("10.0.0.2"))}, DryRun: true, Force: true}
	confirmed := must(t)(fleet.Apply(t.Context(), request))
	must(t)(fleet.AddServer(t.Context(), &ballastv1.AddServerRequest{Service: "web", Server: at("10.0.0.3")}))
	request.DryRun, request.Confirmed = false, confirmed
	if _, err := fleet.Apply(t.Context(), request); connect.CodeOf(err) != connect.CodeAborted || !strings.Contains(err.Error(), "10.0.0.3: removed") {
		t.Errorf("somebody else came in between: %v", err)
	}
	must(t)(fleet.RemoveServer(t.Context(), &ballastv1.ServerRequest{Service: "web", Server: "10.0.0.3"}))
	request.DryRun, request.Confirmed = true, nil
	confirmed = must(t)(fleet.Apply(t.Context(), request))
	request.DryRun, request.Confirmed = false, confirmed
	expect(t, "what was confirmed", must(t)(fleet.Apply(t.Context(), request)), confirmed...)

	request.Services[0].Servers = append(request.Services[0].Servers, at("10.0.0.9"))
	request.Confirmed, request.Unchanged = nil, true
	if _, err := fleet.Apply(t.Context(), request); connect.CodeOf(err) != connect.CodeAborted {
		t.Errorf("a change where none was looked at: %v", err)
	}
}

func TestAnApplyThatLosesServersNeedsToSaySo(t *testing.T) {
	fleet, _ := serveFleet(t, &apitest.Memory{})
	apply(t, fleet, web(at("10.0.0.1"), at("10.0.0.2")))
	request := &ballastv1.ApplyRequest{Services: []*ballastv1.Service{web(at("10.0.0.1"))}}
	if _, err := fleet.Apply(t.Context(), request); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "1 of its 2 servers that take new connections go") {
		t.Errorf("it is applied: %v", err)
	}
	request.DryRun = true
	if answer, err := fleet.Apply(t.Context(), request); err != nil || len(answer.Removals) != 1 {
		t.Errorf("a dry run tells of %q, %v", answer.GetRemovals(), err)
	}
	request.DryRun, request.AllowRemove = false, true
	expect(t, "allowed", must(t)(fleet.Apply(t.Context(), request)), "service web: server 10.0.0.2: removed")
}

package report

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestNodesOfTheFleetThatSayNothingAreNamed(t *testing.T) {
	now := time.Now()
	fleet := &model.Fleet{Nodes: []model.Node{{Name: "lb1"}}, Services: []model.Service{{Name: "web", Servers: []model.Server{{Name: "s1"}, {Name: "s2", State: model.StateOff}}}}}
	node := func(role, name, ready string, silent time.Duration) *ballastv1.NodeStatus {
		return &ballastv1.NodeStatus{Role: role, Name: name, Ready: ready, LastSeen: timestamppb.New(now.Add(-silent)), Problems: []string{"why"}}
	}
	connected := []*ballastv1.NodeStatus{node("lb", "lb9", "yes", time.Hour), node("agent", "s9", "no", 0), node("agent", "hung", hub.ReadyUnknown, 4*time.Second)}
	lost := []*ballastv1.NodeStatus{
		node("lb", "lb1", hub.ReadyLost, restarts), node("lb", "lb2", hub.ReadyLost, time.Hour), // whom only routers know
		node("agent", "s1", hub.ReadyLost, time.Hour), node("agent", "s2", hub.ReadyLost, time.Hour), node("agent", "gone", hub.ReadyLost, time.Hour),
	}
	names := func(problems []string) (names []string) {
		for _, problem := range problems {
			name, rest, _ := strings.Cut(problem, " has not reported since 20")
			if names = append(names, name); !strings.Contains(rest, "(why): changes do not reach it") {
				t.Error(problem)
			}
		}
		return names
	}
	if have, want := names(unheard(fleet, connected, lost, now)), []string{"agent hung", "lb lb1", "agent s1"}; !slices.Equal(have, want) {
		t.Errorf("named are %q, want %q", have, want)
	}
	lost = lost[:1]
	if problems := unheard(fleet, nil, lost, now.Add(-time.Second)); problems != nil {
		t.Errorf("a load balancer that may start again: %q", problems)
	}
	hung := node("agent", "s1", hub.ReadyLost, time.Second)
	hung.Problems = []string{hub.FellSilent}
	if problems := unheard(fleet, nil, []*ballastv1.NodeStatus{hung}, now); len(problems) != 1 {
		t.Errorf("an agent that was silent until its connection ended: %q", problems)
	}
	fleet.Nodes, fleet.Services = nil, nil
	if problems := unheard(fleet, nil, lost, now); problems != nil {
		t.Errorf("a node that was removed: %q", problems)
	}
}

package lb

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/linux/check"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
)

// judged is a service of which servers 2 and 3 are unhealthy as the tables have it; 3 gets new connections all the same.
func judged() *dataplane.Snapshot {
	web := model.Service{Name: "web"}
	for id := range uint16(5) {
		web.Servers = append(web.Servers, model.Server{Name: fmt.Sprint("s", id+1), ID: id + 1, Weight: 1})
	}
	state := &desired.State{Unhealthy: map[string]fleet.Unhealthy{"web": {Down: []uint16{2}, Kept: []uint16{3}}}}
	state.Running = model.Fleet{Services: []model.Service{web}}
	return &dataplane.Snapshot{State: state}
}

func status(id uint32, state, detail string) *ballastv1.ServerStatus {
	return &ballastv1.ServerStatus{Service: "web", Server: &ballastv1.Server{Id: id}, Health: state, HealthDetail: detail}
}

// Promise: A load balancer calls a server unhealthy once its tables give it nothing new, and not before.
func TestHealthIsToldAsTheTablesHaveIt(t *testing.T) {
	const behind = "timed out; the tables do not follow yet: it gets new connections"
	for _, c := range []struct {
		given *ballastv1.ServerStatus
		want  string
	}{
		{status(1, health.Unhealthy, "timed out"), "unknown " + behind},
		{status(1, health.Healthy, ""), "healthy "},
		{status(2, health.Unhealthy, "timed out"), "unhealthy timed out"},
		{status(2, health.Healthy, ""), "unhealthy "},
		{status(3, health.Unhealthy, "kept"), "unhealthy kept"},
		{status(3, health.Unchecked, ""), "unchecked "},
	} {
		given := c.given.Health
		asApplied(judged(), []*ballastv1.ServerStatus{c.given})
		if have := c.given.Health + " " + c.given.HealthDetail; have != c.want {
			t.Errorf("server %d, %s: %q, want %q", c.given.Server.Id, given, have, c.want)
		}
	}
}

// Promise: Of servers that controllers judge, a load balancer tells what its own checks find, and since when no controller has sent anything.
func TestOwnChecksCompleteWhatControllersJudge(t *testing.T) {
	results := []check.Result{{Service: "web", ID: 1, Healthy: true}, {Service: "web", ID: 2, Healthy: true}, {Service: "web", ID: 3, Detail: "refused"}, {Service: "web", ID: 4, Detail: "timed out"},
		{Service: "gone", ID: 4, Detail: "timed out"}}
	now := time.Now()
	for silent, suffix := range map[time.Time]string{{}: "", now.Add(-4500 * time.Millisecond): "; no controller has sent anything for 4s"} {
		list := []*ballastv1.ServerStatus{status(1, health.Unknown, ""), status(2, health.Unhealthy, ""), status(3, health.Unhealthy, "kept"), status(4, health.Unknown, ""),
			status(5, health.Unknown, ""), status(1, health.Unchecked, "")}
		seenHere(list, results, silent, now)
		var have []string
		for _, s := range list {
			have = append(have, s.Health+" "+s.HealthDetail)
		}
		want := []string{"healthy " + judgedAlone + suffix, "unhealthy by the controllers' word" + suffix, "unhealthy kept" + suffix, "unknown " + failsHere + ": timed out" + suffix,
			"unknown controllers have not judged it unhealthy; this load balancer does not check it" + suffix, "unchecked "}
		if !slices.Equal(have, want) {
			t.Errorf("told is %q, want %q", have, want)
		}
	}
	want := []string{"service web: server s4 (timed out): " + failsHere}
	if have := overruled(judged(), results); !slices.Equal(have, want) {
		t.Errorf("problems are %q, want %q", have, want)
	}
	results = append(results, check.Result{Service: "web", ID: 5, Detail: "timed out"})
	if have := overruled(judged(), results); len(have) != 1 || have[0] != "service web: server s4 (timed out) and 1 more: "+failsHere {
		t.Errorf("problems of two are %q", have)
	}
}

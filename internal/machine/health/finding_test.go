package health

import (
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

const noVIP = "198.51.100.10 is not an address of this host"

var missing, none = Loss{Reason: noVIP}, Loss{}

// direct makes all load balancers see servers healthy by checks that do not go through the tunnel.
func direct(j *Judge, now time.Time, ids ...uint16) {
	for _, lb := range lbs {
		for _, id := range ids {
			j.Report(now, lb, id, View{Healthy: true, Direct: true, Detail: "direct: port 80"})
		}
	}
}

func TestWhatAnAgentFindsLostCountsWhereNoCheckGoesThroughTheTunnel(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1, 2)
	direct(j, start, 1, 2)
	j.Found(start, "s1", 1, none, &svc.Health)
	wantDown(t, j, start, svc)
	wantState(t, j, 1, Healthy, "direct: port 80 (lb1, lb2, lb3)")
	now := start.Add(time.Second)
	if !j.Found(now, "s1", 1, missing, &svc.Health) {
		t.Error("the loss is nothing to judge")
	}
	wantDown(t, j, now, svc, 1)
	wantState(t, j, 1, Unhealthy, noVIP+" (agent s1); direct: port 80 (lb1, lb2, lb3)")
	wantState(t, j, 2, Healthy)
	if since := j.DownSince(1); !since.Equal(now) {
		t.Errorf("down since %s, want %s", since, now)
	}
	j.Report(now, "lb2", 1, View{Healthy: true}) // through the tunnel
	wantDown(t, j, now, svc)
	wantState(t, j, 1, Healthy)
	j.Report(now, "lb2", 1, View{Detail: "timed out"})
	wantDown(t, j, now, svc, 1)
}

func TestALossIsOverWhenItsAgentHasFoundNoneForRiseIntervals(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1, 2)
	now, out := start, time.Duration(0)
	direct(j, now, 1, 2)
	for fall := range 6 {
		j.Found(now, "s1", 1, missing, &svc.Health)
		wantDown(t, j, now, svc, 1)
		began := now
		for len(j.Down(now, svc, lbs)) > 0 {
			now = now.Add(100 * time.Millisecond) // far more often than agents speak
			direct(j, now, 1, 2)
			j.Found(now, "s1", 1, none, &svc.Health)
			if now.Sub(began) > 5*time.Minute {
				t.Fatalf("after %d falls the server does not come back", fall+1)
			}
		}
		took := now.Sub(began)
		if took < time.Duration(svc.Health.Rise)*time.Duration(svc.Health.Interval) || took < out {
			t.Errorf("after fall %d it is back within %v, before that it took %v", fall+1, took, out)
		}
		out = took
	}
	if out < 30*time.Second {
		t.Errorf("an agent that changes its mind all the time is believed after %v", out)
	}
}

func TestAnAgentThatIsSilentTakesNoServerOut(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1, 2)
	j.Found(start, "s1", 1, missing, &svc.Health)
	for after := time.Duration(0); after <= 2*ViewLife; after += time.Second {
		now := start.Add(after)
		direct(j, now, 1, 2)
		if down, want := len(j.Down(now, svc, lbs)) > 0, after < ViewLife; down != want {
			t.Fatalf("%v after the agent's last word: down is %v", after, down)
		}
	}
	if len(j.findings) > 0 {
		t.Errorf("kept: %v", j.findings)
	}
}

func TestAllDownSaysWhatHappensWhenAllAgentsFindPacketsLost(t *testing.T) {
	for policy, want := range map[model.AllDown][]uint16{model.AllDownKeep: nil, model.AllDownAll: nil, model.AllDownNone: {1, 2}} {
		j, svc := &Judge{}, service(policy, 1, 2)
		direct(j, start, 1, 2)
		wantDown(t, j, start, svc)
		for id, agent := range []string{1: "s1", 2: "s2"} {
			if agent != "" {
				j.Found(start, agent, uint16(id), missing, &svc.Health)
			}
		}
		wantDown(t, j, start, svc, want...)
		wantState(t, j, 2, Unhealthy, noVIP)
	}
}

func TestWhatAnAgentFindsLostCountsWithoutChecksToo(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1, 2)
	svc.Health = model.Health{}
	wantDown(t, j, start, svc)
	j.Found(start, "s1", 1, missing, &svc.Health)
	wantDown(t, j, start, svc, 1)
	wantState(t, j, 1, Unhealthy, noVIP+" (agent s1)")
	wantState(t, j, 2, Unchecked)
	j.Found(start.Add(time.Second), "s1", 1, none, &svc.Health)
	wantDown(t, j, start.Add(time.Second), svc)
	wantState(t, j, 1, Unchecked)
}

func TestALossThatNoCheckSeesCountsWhereOneSucceeds(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1, 2)
	for _, lb := range lbs {
		for _, id := range []uint16{1, 2} {
			j.Report(start, lb, id, View{Healthy: true})
		}
	}
	j.Found(start, "s1", 1, Loss{Reason: "the kernel resets hellos", Unseen: true}, &svc.Health)
	j.Found(start, "s2", 2, missing, &svc.Health)
	wantDown(t, j, start, svc, 1)
	wantState(t, j, 1, Unhealthy, "the kernel resets hellos (agent s1)")
	wantState(t, j, 2, Healthy)
	now := start.Add(time.Duration(svc.Health.Rise+1) * time.Duration(svc.Health.Interval))
	for at := start; at.Before(now); at = at.Add(time.Duration(svc.Health.Interval)) {
		j.Found(at, "s1", 1, none, &svc.Health)
	}
	wantDown(t, j, now, svc)
}

// Promise: What an agent finds lost from now on counts at once: checks through the tunnel overrule it that began later.
func TestASuccessFromBeforeALossKnowsNothingOfIt(t *testing.T) {
	for name, c := range map[string]struct {
		before bool // the agent had said that nothing is lost
		age    time.Duration
		down   bool
	}{"before": {true, time.Second, true}, "after": {true, 0, false}, "the first word of the agent": {false, time.Second, false}} {
		t.Run(name, func(t *testing.T) {
			j, svc := &Judge{}, service(model.AllDownKeep, 1, 2)
			say(j, start, true, 1, 2)
			if c.before {
				j.Found(start, "s1", 1, none, &svc.Health)
			}
			now := start.Add(2 * time.Second)
			j.Found(now, "s1", 1, missing, &svc.Health)
			for _, lb := range lbs {
				for _, id := range []uint16{1, 2} {
					j.Report(now, lb, id, View{Healthy: true, Succeeded: now.Add(-c.age)})
				}
			}
			if down := len(j.Down(now, svc, lbs)) > 0; down != c.down {
				t.Errorf("down is %t", down)
			}
			now = now.Add(time.Second)
			j.Report(now, "lb2", 1, View{Healthy: true, Succeeded: now})
			wantDown(t, j, now, svc)
		})
	}
}

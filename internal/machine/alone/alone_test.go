package alone

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// run looks once a second.
type run struct {
	Machine
	now time.Time
}

func (r *run) look(seconds int, hears, agrees bool) bool {
	for range seconds {
		r.now = r.now.Add(time.Second)
		r.Look(r.now, hears, agrees)
	}
	_, judges := r.Judges()
	return judges
}

func TestItJudgesOnceNoControllerIsHeardForPatience(t *testing.T) {
	r := run{now: start}
	if r.look(10, true, true) || r.look(3, false, true) {
		t.Error("it judges too early")
	}
	if !r.look(1, false, true) {
		t.Error("it does not judge")
	}
	if since, _ := r.Judges(); since != r.now {
		t.Errorf("it judges since %v", since)
	}
}

// Promise: When controllers judge again, a load balancer hands back once they agree with it, within 20 s
// otherwise, and a server that failed meanwhile gets nothing in between.
// Also held by TestItDoesNotFlap and TestLoadBalancersWithoutControllersTakeOutServersThatFail.
func TestItHandsBackWhenControllersAgree(t *testing.T) {
	r := run{now: start}
	r.look(10, false, false)
	if !r.look(10, true, false) {
		t.Error("it hands back to controllers that have not seen what it sees")
	}
	if r.look(1, true, true) {
		t.Error("it judges though controllers agree")
	}
}

func TestItHandsBackToControllersThatGoOnDisagreeing(t *testing.T) {
	r := run{now: start}
	r.look(10, false, false)
	if !r.look(20, true, false) {
		t.Error("it hands back too early")
	}
	if r.look(1, true, false) {
		t.Error("it never hands back")
	}
}

func TestAControllerThatComesAndGoesEndsNoOutage(t *testing.T) {
	r := run{now: start}
	for range 10 {
		r.look(2, false, true)
		r.look(1, true, true)
	}
	if _, judges := r.Judges(); !judges {
		t.Error("nobody judges")
	}
}

func TestAnEarlierProcessIsFollowedAtOnce(t *testing.T) {
	var r run
	r.Resume(start)
	if r.now = start; !r.look(3, true, false) {
		t.Error("it hands back before controllers agree")
	}
}

// However controllers come and go, it changes its mind at most once within Patience or settled.
func TestItDoesNotFlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, last, before := run{now: start}, start.Add(-time.Hour), false
		for range 300 {
			judges := r.look(1, rapid.Bool().Draw(t, "hears"), rapid.Bool().Draw(t, "agrees"))
			if judges == before {
				continue
			}
			if least := 2 * time.Second; r.now.Sub(last) < least {
				t.Fatalf("%t after %v", judges, r.now.Sub(last))
			}
			last, before = r.now, judges
		}
	})
}

package discovery

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

var start = time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC)

func at(last ...int) (answer Answer) {
	for _, n := range last {
		answer.Servers = append(answer.Servers, Found{Address: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), Weight: 1})
	}
	return answer
}

// show is what a service should have: d is draining.
func show(servers []model.Server) string {
	var list []string
	for _, s := range servers {
		text := strings.TrimPrefix(s.Name, "10.0.0.")
		if s.Weight != 1 {
			text += fmt.Sprintf("*%d", s.Weight)
		}
		if s.State == model.StateDraining {
			text += "d"
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}

// world is a service that takes what is wanted of it.
type world struct {
	t       *testing.T
	tracker Tracker
	service model.Service
	led     time.Time
	now     time.Time
}

func newWorld(t *testing.T) *world {
	return &world{t: t, now: start, service: model.Service{Name: "web", Forward: model.ForwardIPIP}}
}

func (w *world) step(later time.Duration, answer *Answer, want string) {
	w.t.Helper()
	w.now = w.now.Add(later)
	if answer != nil {
		w.tracker.Take(*answer, w.now)
	}
	if servers, _, ok := w.tracker.Wanted(&w.service, w.led, w.now); ok {
		w.service.Servers = servers
	}
	if have := show(w.service.Servers); have != want {
		w.t.Errorf("after %v: have %q, want %q", w.now.Sub(start), have, want)
	}
}

func answerOf(a Answer) *Answer { return &a }

// Promise: A source that does not answer, answers that there is nobody, or with more than can be, takes away no server.
func TestABadAnswerTakesNoServerAway(t *testing.T) {
	var many []int
	for n := range 10_000 {
		many = append(many, n)
	}
	draining := at(1)
	draining.Servers[0].Draining = true
	weightless := at(1)
	weightless.Servers[0].Weight = 0
	for what, bad := range map[string]Answer{
		"does not answer": {Err: errors.New("the resolver failed")}, "knows nobody": {}, "names 10000": at(many...), "drains all": draining, "weighs nobody": weightless,
	} {
		w := newWorld(t)
		w.step(0, &bad, "")
		w.step(time.Second, answerOf(at(1, 2)), "1 2")
		w.step(time.Hour, &bad, "1 2")
		w.step(time.Hour, nil, "1 2")
		if s := w.tracker.Status(w.now, "c1"); s.Problem == "" || !strings.Contains(s.Problem, "2h0m0s old") || s.Servers != 2 {
			t.Errorf("%s: %+v", what, s)
		}
		w.step(time.Second, answerOf(at(2)), "2 1d")
		w.step(time.Second, &bad, "2 1d")
		w.step(time.Hour, &bad, "2 1d")
		w.step(time.Second, answerOf(at(2)), "2")
		if s := w.tracker.Status(w.now, "c1"); s.Problem != "" {
			t.Errorf("%s, then a good answer: %+v", what, s)
		}
	}
}

// Promise: A server that its source names no more drains for a minute before it is removed, and comes back as it was.
func TestServersThatLeaveDrainFirst(t *testing.T) {
	w := newWorld(t)
	w.step(0, answerOf(at(1, 2, 3)), "1 2 3")
	w.step(time.Second, answerOf(at(3, 1)), "1 3 2d")
	w.step(Leaving-2*time.Second, answerOf(at(1, 3)), "1 3 2d")
	w.step(time.Second, answerOf(at(1, 2, 3)), "1 2 3")
	w.step(time.Second, answerOf(at(1, 3)), "1 3 2d")
	w.step(Leaving-time.Second, nil, "1 3 2d")
	w.step(time.Second, nil, "1 3")
	w.step(time.Second, answerOf(at(4)), "4 1d 3d")
	w.step(Leaving, nil, "4")
}

// Promise: Controllers that hear different answers and take turns in leading a service drain no server, until one has led it for a minute.
func TestAChangeOfLeaderDrainsNobodyAtOnce(t *testing.T) {
	one, two := newWorld(t), newWorld(t)
	lead := func(leader, other *world, later time.Duration) {
		leader.now, leader.service.Servers = other.now, other.service.Servers
		leader.led, other.led = leader.now.Add(later), time.Time{}
	}
	one.led = start
	one.step(0, answerOf(at(1, 2)), "1 2")
	two.step(0, answerOf(at(2, 3)), "2 3") // it would do so
	for range 10 {
		lead(two, one, time.Second)
		two.step(time.Second, nil, "2 3 1")
		two.step(Settling/2, answerOf(at(2, 3)), "2 3 1")
		if s := two.tracker.Status(two.now, "c2"); s.Problem != "servers that it has not named since this controller leads the service stay for 30s more" {
			t.Errorf("says %q", s.Problem)
		}
		lead(one, two, time.Second)
		one.step(time.Second, nil, "1 2 3")
		one.step(Settling-time.Second, answerOf(at(1, 2)), "1 2 3")
	}
	one.step(time.Second, nil, "1 2 3d")
	one.step(0, answerOf(at(1)), "1 2d 3d") // it has named this one as the leader: at once
	lead(two, one, 0)
	two.step(0, nil, "2 3 1")
	lead(one, two, 0)
	one.tracker = Tracker{} // its next life
	one.step(time.Second, nil, "2 3 1")
	one.step(0, answerOf(at(1, 4)), "1 4 2 3")
	one.step(time.Second, answerOf(at(1)), "1 4d 2 3")
	one.step(Settling-2*time.Second, nil, "1 4d 2d 3d")
	one.step(Leaving, nil, "1")
}

func TestServersAreEachOnce(t *testing.T) {
	w := newWorld(t)
	twice := at(2, 1, 2)
	twice.Servers[0].Port, twice.Servers[2].Port, twice.Servers[2].Weight = 80, 81, model.MaxWeight
	w.step(0, &twice, fmt.Sprintf("1 2*%d", model.MaxWeight))
	named := twice.Servers[1]
	named.Name = "b"
	w.step(0, &Answer{Servers: append([]Found{named}, twice.Servers...)}, fmt.Sprintf("b*2 2*%d", model.MaxWeight))
	w.step(0, &twice, fmt.Sprintf("1 2*%d", model.MaxWeight))
	w.service.Forward = model.ForwardNAT
	w.step(0, nil, fmt.Sprintf("1 2-80 2-81*%[1]d 2*%[1]dd", model.MaxWeight))
}

func TestAnOldAnswerIsSaidToBeOld(t *testing.T) {
	var tracker Tracker
	problem := func(later time.Duration, want string) {
		t.Helper()
		if s := tracker.Status(start.Add(later), "c2"); want == "" && s.Problem != "" || !strings.Contains(s.Problem, want) {
			t.Errorf("after %v: %q, want %q", later, s.Problem, want)
		}
	}
	problem(0, "it has not answered yet")
	tracker.Take(Answer{Err: errors.New("refused")}, start)
	problem(0, "refused; it has never answered")
	tracker.Take(at(1), start)
	problem(0, "")
	problem(staleAfter, "")
	problem(staleAfter+time.Second, "the last answer is 3m1s old")
	tracker.Observe(false, nil, nil, start)
	problem(behindAfter, "")
	problem(behindAfter+time.Second, "not carried out by controller c2")
	tracker.Observe(true, []string{"10.0.0.9: packets would loop"}, nil, start)
	problem(behindAfter+time.Second, "left out: 10.0.0.9: packets would loop")
	tracker.Observe(false, nil, errors.New("no id is left"), start)
	problem(0, "not carried out: no id is left")
}

// Whatever a source says, in whatever order and however often: once it has named somebody, somebody takes new connections; and what it says last is so in
// the end.
func TestSomebodyIsLeftWhateverASourceSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tracker Tracker
		service, now, last := model.Service{Forward: model.ForwardIPIP}, start, Answer{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
			answer := at(rapid.SliceOfN(rapid.IntRange(1, 5), 0, 5).Draw(t, "servers")...)
			for i := range answer.Servers {
				answer.Servers[i].Draining = rapid.Bool().Draw(t, "draining")
			}
			if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
				answer = Answer{Err: errors.New("no")}
			}
			good := tracker.Take(answer, now) == nil
			if good {
				last = answer
			}
			servers, _, ok := tracker.Wanted(&service, time.Time{}, now)
			if ok != good {
				t.Fatalf("an answer is good: %v, acted on: %v", good, ok)
			}
			if ok {
				service.Servers = servers
			}
			taking := 0
			for _, s := range service.Servers {
				if s.TakesNew() {
					taking++
				}
			}
			if len(last.Servers) > 0 && taking == 0 {
				t.Fatalf("nobody is left of %v", last)
			}
		}
		if len(last.Servers) == 0 {
			return
		}
		tracker.Take(last, now)
		for range 2 {
			servers, _, _ := tracker.Wanted(&service, time.Time{}, now)
			service.Servers, now = servers, now.Add(Leaving)
		}
		if want := merged(last.Servers); len(service.Servers) != len(want) {
			t.Fatalf("in the end %s, of %v", show(service.Servers), want)
		}
	})
}

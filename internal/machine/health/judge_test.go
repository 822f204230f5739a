package health

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

var lbs = []string{"lb1", "lb2", "lb3"}

func service(policy model.AllDown, ids ...uint16) *model.Service {
	s := model.NewService()
	s.Health = *settings()
	s.Health.AllDown = policy
	for _, id := range ids {
		s.Servers = append(s.Servers, model.Server{ID: id, Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(id)}), Weight: 1})
	}
	return &s
}

// say makes all load balancers see the same of some servers.
func say(j *Judge, now time.Time, healthy bool, ids ...uint16) {
	for _, lb := range lbs {
		for _, id := range ids {
			j.Report(now, lb, id, View{Healthy: healthy, Detail: map[bool]string{false: "connect: connection refused"}[healthy]})
		}
	}
}

func wantDown(t *testing.T, j *Judge, now time.Time, svc *model.Service, want ...uint16) {
	t.Helper()
	if have := j.Down(now, svc, lbs); !slices.Equal(have, want) {
		t.Errorf("down: %v, want %v", have, want)
	}
}

func wantState(t *testing.T, j *Judge, id uint16, state string, details ...string) {
	t.Helper()
	have, detail := j.Status(id)
	if have != state {
		t.Errorf("server %d is %s (%s), want %s", id, have, detail, state)
	}
	for _, part := range details {
		if !strings.Contains(detail, part) {
			t.Errorf("server %d: %q, want %q in it", id, detail, part)
		}
	}
}

func TestMostOfTheLoadBalancersDecide(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1, 2)
	say(j, start, true, 1, 2)
	wantDown(t, j, start, svc)
	wantState(t, j, 1, Healthy)
	j.Report(start, "lb1", 1, View{Detail: "HTTP 503"})
	wantDown(t, j, start, svc)
	wantState(t, j, 1, Healthy, "not for lb1: HTTP 503")
	j.Report(start, "lb3", 1, View{Detail: "HTTP 503"})
	wantDown(t, j, start, svc, 1)
	wantState(t, j, 1, Unhealthy, "HTTP 503 (lb1, lb3); not for lb2")
	if have := j.DownSince(1); !have.Equal(start) {
		t.Errorf("down since %s, want %s", have, start)
	}
	j.Report(start.Add(time.Second), "lb3", 1, View{Healthy: true})
	wantDown(t, j, start.Add(time.Second), svc)
}

func TestWhatIsWrongWithAHealthyServerIsTold(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownNone, 1)
	j.Report(start, "lb1", 1, View{Healthy: true, Detail: "no timestamps"})
	j.Report(start, "lb2", 1, View{Healthy: true, Detail: "no timestamps"})
	j.Report(start, "lb3", 1, View{Healthy: true})
	wantDown(t, j, start, svc)
	wantState(t, j, 1, Healthy, "no timestamps (lb1, lb2)")
}

// Promise: What is said of a server's health does not contradict itself: who sees it otherwise than most is said to.
func TestWhatIsSaidOfHealthDoesNotContradictIt(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownNone, 1)
	say(j, start, true, 1)
	wantDown(t, j, start, svc)
	const waits = "answers again after connect: connection refused, needs 16 successful checks in a row"
	j.Report(start, "lb2", 1, View{Detail: waits})
	wantDown(t, j, start, svc)
	if _, text := j.Status(1); text != "not for lb2: "+waits {
		t.Errorf("healthy: %s", text)
	}
	j.Report(start, "lb1", 1, View{Detail: waits})
	j.Report(start, "lb3", 1, View{Healthy: true, Detail: "no timestamps"})
	wantDown(t, j, start, svc, 1)
	if _, text := j.Status(1); text != waits+" (lb1, lb2); not for lb3: no timestamps" {
		t.Errorf("unhealthy: %s", text)
	}
}

// Promise: One load balancer of three that sees all servers down changes nothing, because the majority of those
// assigned decides.
func TestOneWrongLoadBalancerOfThreeNeverTakesAServerDown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j, svc, now := &Judge{}, service(model.AllDownNone, 1, 2, 3), start
		wrong := rapid.SampledFrom(lbs).Draw(t, "wrong")
		heard := map[string]time.Time{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, time.Second, RepeatInterval}).Draw(t, "pause"))
			for _, lb := range rapid.Permutation(lbs).Draw(t, "order") {
				// The right ones repeat themselves as they must, and may be late at the start.
				if lb != wrong && now.Sub(heard[lb]) < RepeatInterval && rapid.Bool().Draw(t, "silent") {
					continue
				}
				heard[lb] = now
				for _, id := range []uint16{1, 2, 3} {
					j.Report(now, lb, id, View{Healthy: lb != wrong || rapid.Bool().Draw(t, "lie"), Detail: "lies"})
				}
				if down := j.Down(now, svc, lbs); len(down) > 0 {
					t.Fatalf("%s took down %v", wrong, down)
				}
			}
		}
	})
}

func TestTheFirstLoadBalancerToSpeakDoesNotDecideAlone(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownNone, 1)
	j.Report(start, "lb1", 1, View{Detail: "timed out"})
	wantDown(t, j, start, svc)
	wantState(t, j, 1, Healthy, "not for lb1: timed out")
	// The others have had their time and said nothing: they are gone.
	for now := start; now.Before(start.Add(ViewLife)); now = now.Add(RepeatInterval) {
		j.Report(now, "lb1", 1, View{Detail: "timed out"})
		wantDown(t, j, now, svc)
	}
	j.Report(start.Add(ViewLife), "lb1", 1, View{Detail: "timed out"})
	wantDown(t, j, start.Add(ViewLife), svc, 1)
}

// Promise: When check results are lost, a decision stays for 15 s; then health is unknown, which is not unhealthy.
func TestWhatIsNotRepeatedIsForgottenAndUnknownIsNotDown(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownNone, 1, 2)
	wantDown(t, j, start, svc)
	wantState(t, j, 1, Unknown, "no load balancer")
	say(j, start, false, 1)
	wantDown(t, j, start, svc, 1)
	wantDown(t, j, start.Add(ViewLife-1), svc, 1)
	wantDown(t, j, start.Add(2*ViewLife), svc)
	wantState(t, j, 1, Unknown)
	if len(j.views)+len(j.heard) > 0 {
		t.Errorf("views of the past are kept: %v, %v", j.views, j.heard)
	}
}

func TestNewLoadBalancersDoNotBringAServerBackBeforeTheyHaveSeenIt(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownNone, 1, 2)
	say(j, start, false, 1)
	wantDown(t, j, start, svc, 1)
	others := []string{"lb3", "lb4", "lb5"}
	if have := j.Down(start, svc, others); !slices.Equal(have, []uint16{1}) {
		t.Errorf("down: %v, want 1", have)
	}
	j.Report(start, "lb4", 1, View{Healthy: true})
	if have := j.Down(start, svc, others); len(have) > 0 {
		t.Errorf("down: %v though as many see it up as down", have)
	}
}

// Promise: Unhealthy servers stay unhealthy when another controller takes over.
func TestATakeOverBeginsWithWhatWasDown(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1, 2, 3)
	j.Restore(start, []uint16{2}, nil)
	wantDown(t, j, start, svc, 2)
	wantState(t, j, 2, Unhealthy)
	say(j, start, false, 1, 2, 3)
	wantDown(t, j, start, svc, 2) // the last set that was not empty is 1 and 3
	say(j, start.Add(time.Second), true, 2)
	wantDown(t, j, start.Add(time.Second), svc, 1, 3)
}

func TestATakeOverKeepsServersThatFailAndAreUsedUnhealthy(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1, 2, 3)
	j.Restore(start, []uint16{2}, []uint16{1, 3})
	wantDown(t, j, start, svc, 2) // before any load balancer has said a word
	if kept := j.Kept(); !slices.Equal(kept, []uint16{1, 3}) {
		t.Errorf("kept are %v", kept)
	}
	for _, id := range []uint16{1, 2, 3} {
		wantState(t, j, id, Unhealthy)
	}
}

// Promise: When all second-tier nodes seem dead, `node_health.all_down` decides as for servers.
// Promise: When all load balancers see all servers down, `all_down` uses the last healthy set, all, or none;
// `withdraw` also withdraws the VIP from BGP, and metrics and status show that no server is healthy.
// Also held by TestTheVIPFollowsChecksAsAllDownSays and TestMetricsSayWhatChecksSayAndWhoIsUsedApart.
func TestAllDownSaysWhoGetsNewConnectionsThen(t *testing.T) {
	for _, c := range []struct {
		policy model.AllDown
		down   []uint16
	}{{model.AllDownKeep, []uint16{1}}, {model.AllDownWithdraw, []uint16{1}}, {model.AllDownAll, nil}, {model.AllDownNone, []uint16{1, 2, 3}}} {
		t.Run(c.policy.String(), func(t *testing.T) {
			j, svc := &Judge{}, service(c.policy, 1, 2, 3)
			say(j, start, true, 2, 3)
			say(j, start, false, 1)
			wantDown(t, j, start, svc, 1)
			say(j, start, false, 2, 3)
			wantDown(t, j, start, svc, c.down...)
			if all := slices.Sorted(slices.Values(slices.Concat(c.down, j.Kept()))); !slices.Equal(all, []uint16{1, 2, 3}) {
				t.Errorf("unhealthy are %v: what all_down leaves new connections is not among them", all)
			}
			if c.policy != model.AllDownNone {
				wantState(t, j, 3, Unhealthy, "connection refused", "all the same", "all_down: "+c.policy.String())
			}
		})
	}
}

func TestKeepGoesOnWithWhatIsLeftOfTheLastSet(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1, 2, 3)
	say(j, start, true, 2, 3)
	say(j, start, false, 1)
	wantDown(t, j, start, svc, 1)
	say(j, start, false, 2, 3)
	svc.Servers[2].State = model.StateDraining
	wantDown(t, j, start, svc, 1, 3)
	svc.Servers[1].Weight = 0
	wantDown(t, j, start, svc, 2, 3) // nobody of the set is left: all that there are
}

func TestServersThatFailTogetherAreKeptTogether(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1, 2, 3, 4)
	say(j, start, true, 1, 2, 3, 4)
	wantDown(t, j, start, svc)
	say(j, start, false, 1)
	wantDown(t, j, start, svc, 1)
	now := start.Add(fallSpread(&svc.Health) + 1)
	for i, fallen := range [][]uint16{{1, 2}, {1, 2, 3}, {1}} { // the last of them falls: the set without 1 stood long enough
		now = now.Add(fallSpread(&svc.Health) / 4)
		say(j, now, false, uint16(i+2))
		wantDown(t, j, now, svc, fallen...)
	}
	say(j, now, true, 4)
	wantDown(t, j, now, svc, 1, 2, 3)
	say(j, now.Add(fallSpread(&svc.Health)+1), false, 4)
	wantDown(t, j, now.Add(fallSpread(&svc.Health)+1), svc, 1, 2, 3) // 4 was alone for long: it is what is left
}

func TestServersThatTakeNothingNewDoNotKeepAServiceAlive(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1, 2)
	svc.Servers[1].State = model.StateDraining
	say(j, start, true, 2)
	say(j, start, false, 1)
	wantDown(t, j, start, svc)
	wantState(t, j, 1, Unhealthy, "all the same")
}

func TestWithoutChecksNobodyIsDown(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownNone, 1)
	say(j, start, false, 1)
	wantDown(t, j, start, svc, 1)
	svc.Health.Check = model.CheckNone
	wantDown(t, j, start, svc)
	wantState(t, j, 1, Unchecked)
}

func TestAllDownNeverLeavesNobodyUnlessItSaysSo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]model.AllDown{model.AllDownKeep, model.AllDownAll}).Draw(t, "policy")
		j, svc, now := &Judge{}, service(policy), start
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 8).Draw(t, "pause")) * time.Second)
			id := uint16(rapid.IntRange(1, 6).Draw(t, "id"))
			switch rapid.SampledFrom([]string{"add", "remove", "drain", "say", "say", "say"}).Draw(t, "what") {
			case "add":
				svc.Servers = append(svc.Servers, service(policy, id).Servers...)
			case "remove":
				svc.Servers = slices.DeleteFunc(svc.Servers, func(s model.Server) bool { return s.ID == id })
			case "drain":
				for i := range svc.Servers {
					svc.Servers[i].State = model.StateDraining
				}
			case "say":
				say(j, now, rapid.Bool().Draw(t, "healthy"), id)
			}
			down := j.Down(now, svc, lbs)
			candidates := 0
			left := 0
			for i := range svc.Servers {
				if svc.Servers[i].TakesNew() {
					candidates++
					if !slices.Contains(down, svc.Servers[i].ID) {
						left++
					}
				}
			}
			if candidates > 0 && left == 0 {
				t.Fatalf("nobody of %d is left, down: %v", candidates, down)
			}
		}
	})
}

func TestTheOrderOfReportsDoesNotMatter(t *testing.T) {
	type word struct {
		after   time.Duration
		lb      string
		id      uint16
		healthy bool
	}
	rapid.Check(t, func(t *rapid.T) {
		var words []word
		said := map[string]bool{}
		for range rapid.IntRange(1, 30).Draw(t, "words") {
			w := word{time.Duration(rapid.IntRange(0, 12).Draw(t, "after")) * time.Second, rapid.SampledFrom(append(lbs, "stranger")).Draw(t, "lb"),
				uint16(rapid.IntRange(1, 4).Draw(t, "id")), rapid.Bool().Draw(t, "healthy")}
			if key := fmt.Sprint(w.after, w.lb, w.id); !said[key] { // nobody says two things at once
				said[key] = true
				words = append(words, w)
			}
		}
		decide := func(words []word) ([]uint16, string) {
			j, svc := &Judge{}, service(model.AllDownKeep, 1, 2, 3, 4)
			j.Down(start, svc, lbs)
			for _, w := range words {
				j.Report(start.Add(w.after), w.lb, w.id, View{Healthy: w.healthy, Detail: "failed"})
			}
			down := j.Down(start.Add(13*time.Second), svc, lbs)
			var states []string
			for id := range uint16(5) {
				state, detail := j.Status(id)
				states = append(states, state+" "+detail)
			}
			return down, strings.Join(states, "\n")
		}
		down, states := decide(words)
		again, statesAgain := decide(rapid.Permutation(words).Draw(t, "permutation"))
		if !slices.Equal(down, again) || states != statesAgain {
			t.Fatalf("down %v or %v\n%s\nor\n%s", down, again, states, statesAgain)
		}
	})
}

func TestAServerThatIsAddedIsDownUntilItIsSeenHealthy(t *testing.T) {
	j, svc, now := &Judge{}, service(model.AllDownKeep, 1, 2), start
	wantDown(t, j, now, svc) // a service that is new: nothing is known of any server
	wantState(t, j, 1, Unknown)
	say(j, now, true, 1, 2)
	wantDown(t, j, now, svc)
	svc = service(model.AllDownKeep, 1, 2, 3)
	wantDown(t, j, now, svc, 3)
	wantState(t, j, 3, Unhealthy, "added, and not checked yet")
	say(j, now, false, 3)
	wantDown(t, j, now, svc, 3)
	wantState(t, j, 3, Unhealthy, "connection refused (lb1, lb2, lb3)")
	say(j, now, true, 3)
	wantDown(t, j, now, svc)
	wantState(t, j, 3, Healthy)

	svc = service(model.AllDownKeep, 1, 2, 3, 4) // which nobody checks
	patience := ViewLife + time.Duration(svc.Health.Interval+svc.Health.Timeout)
	for _, after := range []time.Duration{0, RepeatInterval, 2 * RepeatInterval, patience - 1} {
		say(j, start.Add(after), true, 1, 2, 3)
		wantDown(t, j, start.Add(after), svc, 4)
	}
	wantDown(t, j, start.Add(patience), svc)
	wantState(t, j, 4, Unknown)

	svc = service(model.AllDownKeep, 5, 6) // instead of all others
	wantDown(t, j, start.Add(patience), svc)
	if kept := j.Kept(); !slices.Equal(kept, []uint16{5, 6}) {
		t.Errorf("kept: %v", kept)
	}
}

func TestAJudgeThatTakesOverWaitsForNobodyWhoWasNotDown(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1, 2, 3)
	j.Restore(start, []uint16{3}, nil)
	wantDown(t, j, start, svc, 3)
	wantState(t, j, 1, Unknown)
}

// Promise: What is known of a server's health has the time of the newest word about it, which stands still while words are lost.
func TestHealthHasTheTimeOfTheNewestWord(t *testing.T) {
	j, svc := &Judge{}, service(model.AllDownKeep, 1)
	wantDown(t, j, start, svc)
	if have := j.Reported(1); !have.IsZero() {
		t.Errorf("nobody has said anything, and it was told at %v", have)
	}
	say(j, start, true, 1)
	j.Report(start.Add(time.Second), "lb2", 1, View{Healthy: true})
	for _, after := range []time.Duration{time.Second, 10 * time.Second, ViewLife + 500*time.Millisecond} { // no word since
		wantDown(t, j, start.Add(after), svc)
		if have := j.Reported(1); !have.Equal(start.Add(time.Second)) {
			t.Errorf("after %v it was told at %v", after, have)
		}
	}
	wantDown(t, j, start.Add(3*ViewLife), svc)
	wantState(t, j, 1, Unknown)
	if have := j.Reported(1); !have.IsZero() {
		t.Errorf("unknown, and told at %v", have)
	}
}

// two has lb1 and lb2 alone check, and lb2 see a server up before it falls silent, and lb1 see it down.
func two(t *testing.T) (j *Judge, svc *model.Service) {
	j, svc = &Judge{}, service(model.AllDownKeep, 1, 2)
	say(j, start, true, 1, 2)
	j.Down(start, svc, lbs[:2])
	j.Report(start.Add(6*time.Second), "lb1", 1, View{Detail: "timed out"})
	if down := j.Down(start.Add(6*time.Second), svc, lbs[:2]); len(down) > 0 {
		t.Errorf("of two that both see it now, one alone takes it down: %v", down)
	}
	return j, svc
}

// Promise: Votes of a load balancer that is silent for 3 s do not count: the one that is left decides, and an old vote brings no server back.
func TestVotesOfSilentLoadBalancersDoNotCount(t *testing.T) {
	j, svc := two(t)
	now := start.Add(7 * time.Second)
	expect := func(what string, want ...uint16) {
		t.Helper()
		if down := j.Down(now, svc, lbs[:2]); !slices.Equal(down, want) {
			t.Errorf("%s: down is %v", what, down)
		}
	}
	j.Silence(map[string]bool{"lb2": true})
	expect("lb2 is silent", 1)
	wantState(t, j, 1, Unhealthy, "timed out (lb1)")
	j.Silence(nil)
	expect("lb2 is back, and has said nothing new", 1)
	j.Report(now, "lb1", 2, View{Detail: "timed out"})
	expect("lb1 does not decide alone about the other server", 1)
	j.Report(now, "lb2", 1, View{Healthy: true})
	expect("lb2 reaches it now")
}

func TestWhenAllAreSilentNothingChanges(t *testing.T) {
	j, svc := two(t)
	now := start.Add(7 * time.Second)
	j.Silence(map[string]bool{"lb2": true})
	j.Down(now, svc, lbs[:2])
	j.Silence(map[string]bool{"lb1": true, "lb2": true})
	for after := time.Duration(0); after < ViewLife; after += time.Second {
		if down := j.Down(now.Add(after), svc, lbs[:2]); !slices.Equal(down, []uint16{1}) {
			t.Fatalf("after %v: down is %v", after, down)
		}
	}
	if down := j.Down(now.Add(ViewLife), svc, lbs[:2]); len(down) > 0 {
		t.Errorf("nobody has said anything for %v: down is %v", ViewLife, down)
	}
}

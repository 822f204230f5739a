package sources

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

var start = time.Unix(1000, 0)

func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

// list is what a controller tells that knows of two, if it is told nothing else.
func list(controller string, addresses ...int) List {
	l := List{Controller: controller, Alive: []string{"c1", "c2"}}
	for _, i := range addresses {
		l.Addresses = append(l.Addresses, address(i))
	}
	return l
}

// pass steps through a time by seconds, or by minutes if it is long.
func (s *Sources) pass(now *time.Time, d time.Duration) {
	step := time.Second
	if d > time.Hour {
		step = time.Minute
	}
	for end := now.Add(d); now.Before(end); {
		*now = now.Add(step)
		s.Observe(len(s.listed) > 0, false, *now)
		s.Step(*now)
	}
}

// limited are sources that two controllers have told, and that strangers are kept out by.
func limited(t *testing.T, now *time.Time, addresses ...int) *Sources {
	t.Helper()
	s := &Sources{}
	s.Update("s1", list("c1", addresses...), *now)
	s.Update("s2", list("c2", addresses...), *now)
	s.pass(now, Settle)
	if !s.Limited {
		t.Fatalf("not limited after %v: %s", Settle, s.Doubt())
	}
	return s
}

func (s *Sources) expect(t *testing.T, when string, want ...int) {
	t.Helper()
	var addresses []netip.Addr
	for _, i := range want {
		addresses = append(addresses, address(i))
	}
	if have := s.Addresses(); !slices.Equal(have, addresses) {
		t.Errorf("%s: known are %v, want %v", when, have, addresses)
	}
}

func TestStrangersAreKeptOutOnlyAfterListsHaveBeenGoodForLong(t *testing.T) {
	now := start
	s := &Sources{}
	s.Update("s1", list("c1"), now) // it has just been started: nobody has joined it yet
	s.Update("s2", list("c2"), now)
	s.pass(&now, 2*Settle)
	if s.Limited {
		t.Fatal("limited to nobody")
	}
	s.Update("s1", list("c1", 1), now)
	s.pass(&now, Settle-time.Second)
	s.Update("s2", list("c2", 2), now)
	s.expect(t, "at once", 1, 2)
	if s.Limited {
		t.Fatal("limited before the lists have settled")
	}
	if s.pass(&now, 2*time.Second); !s.Limited {
		t.Fatalf("not limited: %s", s.Doubt())
	}
}

func TestEachDoubtKeepsTheDoorOpenAndSaysWhatToDo(t *testing.T) {
	for want, doubtful := range map[string]func(*Sources, time.Time){
		"no controller lists":                  func(s *Sources, now time.Time) { s.Leave("s1", now); s.Leave("s2", now) },
		"controllers c2 live and send nothing": func(s *Sources, now time.Time) { s.Leave("s2", now) },
		"no address is known of load balancers lb7": func(s *Sources, now time.Time) {
			l := list("c2", 1)
			l.Silent = []string{"lb7"}
			s.Update("s2", l, now)
		},
		"check that it reaches its store": func(s *Sources, now time.Time) { // they are cut off from the store
			for _, c := range []string{"c1", "c2"} {
				l := list(c, 1)
				l.Alive = nil
				s.Update("s"+c[1:], l, now)
			}
		},
		"the 16384 that fit": func(s *Sources, now time.Time) {
			all := make([]int, model.MaxTunnelSources+1)
			for i := range all {
				all[i] = i + 1
			}
			s.Update("s2", list("c2", all...), now)
		},
	} {
		now := start
		s := limited(t, &now, 1)
		doubtful(s, now)
		if doubt := s.Doubt(); !strings.Contains(doubt, want) || !strings.Contains(doubt, ": ") {
			t.Errorf("doubt %q, want %q", doubt, want)
		}
		s.pass(&now, patience-time.Second)
		if !s.Limited {
			t.Errorf("%s: a moment is enough", want)
		}
		if s.pass(&now, 2*time.Second); s.Limited {
			t.Errorf("%s: still limited", want)
		}
		s.pass(&now, 2*Settle)
		if s.Limited {
			t.Errorf("%s: limited again", want)
		}
		fresh := &Sources{}
		fresh.Update("s1", list("c1", 1), start)
		fresh.Update("s2", list("c2", 1), start)
		doubtful(fresh, start)
		now = start
		if fresh.pass(&now, 2*Settle); fresh.Limited {
			t.Errorf("%s: limited in spite of it", want)
		}
	}
}

// A load balancer that is upgraded leaves, and comes back with addresses: meanwhile nobody knows it.
func TestNobodyIsKeptOutWhileLoadBalancersAreUpgraded(t *testing.T) {
	now := start
	s := &Sources{}
	silent := list("c1", 1)
	silent.Silent = []string{"lb2"}
	s.Update("s1", silent, now)
	s.Update("s2", list("c2", 1), now)
	s.pass(&now, 2*Settle)
	s.Update("s1", list("c1", 1), now) // lb2 has left
	s.pass(&now, Settle/2)
	if s.Limited {
		t.Fatal("limited while a load balancer was away")
	}
	s.Update("s1", list("c1", 1, 2), now)
	if s.pass(&now, Settle); !s.Limited {
		t.Fatal("never limited")
	}
	s.expect(t, "in the end", 1, 2)
}

func TestAControllerThatIsRestartedWithAShortListDropsNobody(t *testing.T) {
	now := start
	s := limited(t, &now, 1, 2)
	for range 3 {
		for _, c := range []string{"1", "2"} { // a rolling restart
			s.Leave("s"+c, now)
			s.pass(&now, 2*time.Second)
			s.Update("s"+c, list("c"+c), now)
			s.pass(&now, 30*time.Second)
		}
		if s.expect(t, "after a rolling restart", 1, 2); !s.Limited {
			t.Fatal("a rolling restart takes the limit away")
		}
		s.Update("s1", list("c1", 1, 2), now)
		s.pass(&now, time.Minute)
	}
}

func TestAnAddressIsForgottenWhenAllControllersHaveLackedItForADay(t *testing.T) {
	now := start
	s := limited(t, &now, 1, 2)
	s.Update("s1", list("c1", 1), now)
	s.pass(&now, 2*life)
	s.expect(t, "one controller tells it", 1, 2)
	s.Update("s2", list("c2", 1), now)
	s.pass(&now, life-time.Minute)
	s.expect(t, "within a day", 1, 2)
	s.Leave("s2", now) // and nobody can say whether c2 knows it again
	s.pass(&now, 2*life)
	s.expect(t, "while one controller is away", 1, 2)
	s.Update("s2", list("c2", 1), now)
	s.pass(&now, life-time.Minute)
	s.expect(t, "within a day of good lists", 1, 2)
	s.pass(&now, 2*time.Minute)
	s.expect(t, "after a day", 1)
}

func TestAfterARestartWhatWasKnownHoldsUntilControllersAreMissing(t *testing.T) {
	now := start
	s := &Sources{Limited: true}
	s.Restore([]netip.Addr{address(1), address(2)}, now)
	s.Step(now)
	s.pass(&now, patience/2)
	s.Update("s1", list("c1", 1), now)
	s.Update("s2", list("c2"), now)
	s.pass(&now, 2*Settle)
	if s.expect(t, "after a restart", 1, 2); !s.Limited {
		t.Fatal("a restart takes the limit away")
	}
}

func TestNoMoreAddressesAreKnownThanFitHoweverManyAreTold(t *testing.T) {
	now := start
	s := limited(t, &now, 1, 2)
	addresses := make([]int, 1024)
	for round := range 20 {
		for i := range addresses {
			addresses[i] = 100 + round*len(addresses) + i
		}
		s.Update("s2", list("c2", append([]int{2}, addresses...)...), now)
		s.pass(&now, time.Second)
	}
	known := s.Addresses()
	if len(known) != model.MaxTunnelSources {
		t.Errorf("%d addresses are known", len(known))
	}
	for _, address := range slices.Concat(list("c1", 1).Addresses, list("c2", addresses...).Addresses) {
		if !slices.Contains(known, address) {
			t.Fatalf("%s is forgotten, which is told", address)
		}
	}
	if doubt := s.Doubt(); !strings.Contains(doubt, "more addresses within a day") {
		t.Errorf("doubt: %q", doubt)
	}
	s.Update("s2", list("c2", 2), now)
	if s.pass(&now, life+2*Settle); !s.Limited {
		t.Errorf("a day later: %s", s.Doubt())
	}
}

// Load balancers by a file, beside controllers, are strangers too: there is a day to connect them.
func TestStrangersTunnelsPutTheLimitOffForADay(t *testing.T) {
	now := start
	s := &Sources{}
	s.Update("s1", list("c1", 1), now)
	s.Update("s2", list("c2", 1), now)
	for now.Before(start.Add(settleDoubted - 2*Settle)) {
		s.Observe(true, true, now)
		if s.pass(&now, Settle/2); s.Limited {
			t.Fatalf("limited after %v", now.Sub(start))
		}
	}
	if s.pass(&now, Settle); !s.Limited {
		t.Fatal("strangers have stopped, and there is no limit")
	}
	now = start
	s = &Sources{}
	s.Update("s1", list("c1", 1), now)
	s.Update("s2", list("c2", 1), now)
	for !s.Limited {
		s.Observe(true, true, now)
		if s.pass(&now, time.Minute); now.After(start.Add(settleDoubted + 2*time.Minute)) {
			t.Fatal("strangers keep the door open for ever")
		}
	}
	if earliest, latest := s.Until(); now.Before(latest) || earliest != latest {
		t.Errorf("limited at %v, told %v, %v", now, earliest, latest)
	}
}

// Addresses that are translated on the way are not those that load balancers tell.
func TestStrangersAreNotKeptOutWhereNoLoadBalancerIsSeen(t *testing.T) {
	now := start
	s := &Sources{}
	s.Update("s1", list("c1", 1), now)
	s.Update("s2", list("c2", 1), now)
	for strangers := range 2 {
		for range 100 {
			now = now.Add(time.Hour)
			s.Observe(false, strangers > 0, now)
			if s.Step(now); s.Limited {
				t.Fatal("limited to load balancers that send nothing here")
			}
		}
	}
	now = now.Add(time.Hour)
	s.Observe(true, false, now)
	if s.Step(now); !s.Limited {
		t.Fatal("not limited although one sends")
	}
}

// Whatever controllers, load balancers and streams do: nobody is kept out whom a controller that is connected, or could be, has told lately.
func TestNoLoadBalancerThatAControllerKnowsIsKeptOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, now := &Sources{}, start
		joined := map[string]map[int]bool{"c1": {}, "c2": {}} // load balancers by controller
		connected := map[string]bool{}
		alive := map[string]bool{"c1": true, "c2": true}
		tell := func() {
			for c := range connected {
				l := List{Controller: c}
				for name := range alive {
					l.Alive = append(l.Alive, name)
				}
				for i := range joined[c] {
					l.Addresses = append(l.Addresses, address(i))
				}
				s.Update(c, l, now)
			}
		}
		for range rapid.IntRange(1, 80).Draw(t, "events") {
			c, lb := rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "controller"), rapid.IntRange(1, 3).Draw(t, "load balancer")
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0:
				if joined[c][lb] = true; !alive[c] {
					delete(joined[c], lb)
				}
			case 1:
				delete(joined[c], lb)
			case 2:
				if alive[c] {
					connected[c] = true
				}
			case 3:
				delete(connected, c)
				s.Leave(c, now)
			case 4:
				if alive[c] = !alive[c]; !alive[c] {
					delete(alive, c)
					delete(connected, c)
					clear(joined[c])
					s.Leave(c, now)
				}
			}
			tell()
			s.pass(&now, time.Duration(rapid.SampledFrom([]int{1, 20, 61, 700}).Draw(t, "seconds"))*time.Second)
			since := now.Sub(s.since) // a new load balancer behind a controller that is away is known when patience ends
			for c := range joined {
				for i := range joined[c] {
					if s.Limited && !slices.Contains(s.Addresses(), address(i)) && (connected[c] || since > patience) {
						t.Fatalf("%s of %s is kept out: %s", address(i), c, fmt.Sprint(s.Doubt()))
					}
				}
			}
		}
	})
}

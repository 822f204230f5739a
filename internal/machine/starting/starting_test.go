package starting

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/slowstart"
	"github.com/ballast-lb/ballast/internal/model"
)

var began = time.Unix(1e9, 0)

func serviceOf(over time.Duration, ids ...uint16) *model.Service {
	s := model.NewService()
	s.Dispatch, s.SlowStart = model.DispatchRR, model.Duration(over)
	for _, id := range ids {
		s.Servers = append(s.Servers, model.Server{ID: id, Weight: 1, Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(id)})})
	}
	return &s
}

// who are the ids that start.
func (s *Service) who(now time.Time) []uint16 {
	parts, _ := s.Parts(now)
	return slices.Sorted(maps.Keys(parts))
}

func TestWhoBeginsStarts(t *testing.T) {
	const over = time.Minute
	var s Service
	expect := func(what string, want ...uint16) {
		t.Helper()
		if have := s.who(began); !slices.Equal(have, want) {
			t.Errorf("%s: %v start, want %v", what, have, want)
		}
	}
	s.Follow(began, serviceOf(over, 1, 2), map[uint16]bool{2: true})
	expect("those that were there are whole")
	s.Follow(began, serviceOf(over, 1, 2, 3), map[uint16]bool{2: true})
	expect("one is added", 3)
	s.Follow(began, serviceOf(over, 1, 2, 3), nil)
	expect("one is healthy again", 2, 3)
	drained := serviceOf(over, 1, 2, 3)
	drained.Servers[2].State = model.StateDraining
	s.Follow(began, drained, nil)
	expect("one drains", 2)
	weightless := serviceOf(over, 1, 2, 3)
	weightless.Servers[0].Weight = 0
	s.Follow(began, weightless, nil)
	s.Follow(began, serviceOf(over, 1, 2, 3), nil)
	expect("both are back", 1, 2, 3)
	var another Service
	another.Follow(began, serviceOf(over, 1, 2), nil)
	replaced := serviceOf(over, 1, 2)
	replaced.Servers[1].Address = netip.MustParseAddr("10.0.9.9")
	another.Follow(began, replaced, nil)
	if have := another.who(began); !slices.Equal(have, []uint16{2}) {
		t.Errorf("another server with an id that was used: %v start", have)
	}
	another.Follow(began, serviceOf(0, 1), nil)
	another.Follow(began, serviceOf(0, 1, 2), nil)
	if have := another.who(began); len(have) > 0 {
		t.Errorf("without slow_start %v start", have)
	}
}

// Promise: A server begins with a tenth of its weight, never has less than before, and has all of it when slow_start has passed.
func TestAPartGrowsFromATenthToTheWhole(t *testing.T) {
	for _, over := range []time.Duration{time.Duration(model.MinSlowStart), 30 * time.Second, time.Duration(model.MaxSlowStart)} {
		var s Service
		s.Follow(began, serviceOf(over, 1), nil)
		s.Follow(began, serviceOf(over, 1, 2), nil)
		now, want := began, uint8(1)
		for {
			parts, again := s.Parts(now)
			if len(parts) == 0 {
				break
			}
			if parts[2].Tenths != want || again <= 0 {
				t.Fatalf("%v: after %v %+v, in %v again, want %d tenths", over, now.Sub(began), parts, again, want)
			}
			if before, _ := s.Parts(now.Add(again - 1)); before[2].Tenths != want {
				t.Fatalf("%v: after %v it has %d tenths before its time", over, now.Sub(began), before[2].Tenths)
			}
			now, want = now.Add(again), want+1
		}
		if now != began.Add(over) || want != slowstart.Whole {
			t.Errorf("%v: whole after %v and %d steps", over, now.Sub(began), want)
		}
		if parts, _ := s.Parts(began.Add(-time.Hour)); parts[2].Tenths != 1 {
			t.Errorf("%v: with a clock that was set back: %+v", over, parts)
		}
	}
}

func TestWhoHasBegunGoesOnByTheLatestSlowStart(t *testing.T) {
	var s Service
	s.Follow(began, serviceOf(time.Hour, 1), nil)
	s.Follow(began, serviceOf(time.Hour, 1, 2), nil)
	later := began.Add(45 * time.Second)
	s.Follow(later, serviceOf(time.Minute, 1, 2), nil)
	if parts, _ := s.Parts(later); parts[2].Tenths != 7 {
		t.Errorf("three quarters: %+v", parts)
	}
	s.Follow(later, serviceOf(30*time.Second, 1, 2), nil)
	if have := s.who(later); len(have) > 0 {
		t.Errorf("shorter than it has been there: %v start", have)
	}
}

func TestClassesAreSharedOutInTicks(t *testing.T) {
	for over, tick := range map[time.Duration]time.Duration{time.Second: shortestTick, 30 * time.Second: 300 * time.Millisecond, time.Hour: longestTick} {
		var s Service
		service := serviceOf(over, 1)
		service.Dispatch = model.DispatchLCF
		s.Follow(began, service, nil)
		service = serviceOf(over, 1, 2)
		service.Dispatch = model.DispatchLCF
		s.Follow(began, service, nil)
		if _, again := s.Parts(began); again != tick {
			t.Errorf("%v: again in %v, want %v", over, again, tick)
		}
		if parts, _ := s.Parts(began.Add(2*tick + 1)); parts[2].Tick != 2 {
			t.Errorf("%v: %+v in the third tick", over, parts)
		}
	}
}

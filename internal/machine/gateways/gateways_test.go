package gateways

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var lbs = []netip.Addr{netip.MustParseAddr("10.30.2.1"), netip.MustParseAddr("10.30.2.2"), netip.MustParseAddr("10.30.2.3")}

// fleet answers as bpf/bfd does: by what comes alone.
type fleet struct {
	Machine
	now    time.Time
	random *rand.Rand
	dead   map[netip.Addr]bool
	last   map[netip.Addr]Packet // answers
}

func newFleet(t *testing.T) *fleet {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	f := &fleet{now: time.Unix(1000, 0), random: rand.New(rand.NewPCG(seed, seed)), dead: map[netip.Addr]bool{}, last: map[netip.Addr]Packet{}}
	f.Follow(lbs)
	return f
}

func discriminator(lb netip.Addr) uint32 { return 77 + uint32(lb.As4()[3]) }

func answer(p Probe) (Packet, bool) {
	state := map[State]State{Down: Init, Init: Up, Up: Up}[p.State]
	if p.Yours != 0 && p.Yours != discriminator(p.To) || p.Yours == 0 && p.State != Down {
		return Packet{}, false
	}
	return Packet{State: state, Mine: discriminator(p.To), Yours: p.Mine}, true
}

// round is one interval.
func (f *fleet) round() {
	for _, p := range f.Step(f.now, f.random.Uint32) {
		if packet, ok := answer(p); ok && !f.dead[p.To] {
			f.last[p.To] = packet
			f.Answer(p.To, packet)
		}
	}
	f.now = f.now.Add(Interval)
}

func (f *fleet) rounds(n int) {
	for range n {
		f.round()
	}
}

func TestAllThatAnswerAreUsed(t *testing.T) {
	f := newFleet(t)
	f.rounds(rejoin + 1)
	if f.Use() != nil {
		t.Errorf("used before it has answered %d times: %v", rejoin, f.Use())
	}
	f.round()
	if !slices.Equal(f.Use(), lbs) {
		t.Errorf("used: %v", f.Use())
	}
}

func TestADeadOneIsLeftAfterTheDetectionTime(t *testing.T) {
	f := newFleet(t)
	f.rounds(10)
	f.dead[lbs[1]] = true
	died := f.now.Add(-Interval) // just after it has answered
	for slices.Contains(f.Use(), lbs[1]) {
		f.round()
	}
	if took := f.now.Add(-Interval).Sub(died); took != (Multiplier+1)*Interval {
		t.Errorf("left after %s", took)
	}
	if s := f.Status()[1]; s.Answers || s.Used || !s.Heard.Equal(died) {
		t.Errorf("%+v", s)
	}
	f.dead[lbs[1]] = false
	f.rounds(rejoin)
	if slices.Contains(f.Use(), lbs[1]) {
		t.Error("used again at once")
	}
	f.rounds(2)
	if !slices.Equal(f.Use(), lbs) {
		t.Errorf("used: %v", f.Use())
	}
}

func TestTheLastThatAnsweredAreKeptWhenNoneDoes(t *testing.T) {
	f := newFleet(t)
	f.rounds(10)
	f.dead[lbs[0]] = true
	f.rounds(10)
	for _, lb := range lbs {
		f.dead[lb] = true
	}
	f.rounds(100)
	if !slices.Equal(f.Use(), lbs[1:]) {
		t.Errorf("used: %v", f.Use())
	}
	f.dead[lbs[0]] = false
	f.rounds(10)
	if !slices.Equal(f.Use(), lbs[:1]) {
		t.Errorf("used: %v", f.Use())
	}
}

func TestNothingThatWasLostInAHaltOfThisHostIsHeldAgainstOthers(t *testing.T) {
	f := newFleet(t)
	f.rounds(10)
	f.now = f.now.Add(time.Hour)
	f.round()
	if !slices.Equal(f.Use(), lbs) {
		t.Errorf("used: %v", f.Use())
	}
}

func TestALoadBalancerThatIsListedNoMoreIsLeft(t *testing.T) {
	f := newFleet(t)
	f.rounds(10)
	f.Follow(nil) // of nothing known nothing follows
	f.Follow(lbs[1:])
	f.round()
	if !slices.Equal(f.Use(), lbs[1:]) {
		t.Errorf("used: %v", f.Use())
	}
	if f.Answer(lbs[0], f.last[lbs[0]]) {
		t.Error("it is heard yet")
	}
}

func TestALoadBalancerThatBeginsAnewIsUsedAgain(t *testing.T) {
	f := newFleet(t)
	f.rounds(10)
	f.peers[lbs[2]].theirs = 5 // it had another discriminator: it refuses what is sent to that
	f.rounds(Multiplier + 1)
	if slices.Contains(f.Use(), lbs[2]) {
		t.Error("used although it answers nothing")
	}
	f.rounds(rejoin + 3)
	if !slices.Equal(f.Use(), lbs) {
		t.Errorf("used: %v", f.Use())
	}
}

func TestOneThatWantsToBeLeftIsLeftAtOnce(t *testing.T) {
	f := newFleet(t)
	f.rounds(10)
	probes := f.Step(f.now, f.random.Uint32)
	f.Answer(lbs[0], Packet{State: AdminDown, Mine: 1, Yours: probes[0].Mine})
	f.Step(f.now.Add(Interval), f.random.Uint32)
	if !slices.Equal(f.Use(), lbs[1:]) {
		t.Errorf("used: %v", f.Use())
	}
}

// Promise: A dead load balancer does not come back into a function's route by packets that are forged, late or sent again.
func TestAnAnswerCountsOnceAndInTime(t *testing.T) {
	f := newFleet(t)
	f.rounds(10)
	recorded := f.last[lbs[0]]
	f.dead[lbs[0]] = true
	kept := f.Step(f.now, f.random.Uint32)[0] // it is asked, and its answer is kept back
	late, _ := answer(kept)
	f.now = f.now.Add(Interval)
	heard := f.Status()[0].Heard
	for range 2 * Multiplier {
		f.round()
		for name, packet := range map[string]Packet{
			"sent again": recorded,
			"by a guess": {State: Up, Mine: recorded.Mine, Yours: f.random.Uint32()},
			"of nothing": {State: Up, Mine: recorded.Mine},
		} {
			if f.Answer(lbs[0], packet) {
				t.Errorf("%s: it is taken", name)
			}
		}
	}
	if f.Answer(lbs[0], late) {
		t.Error("late: it is taken")
	}
	if f.Answer(lbs[1], f.last[lbs[2]]) {
		t.Error("that of another: it is taken")
	}
	if slices.Contains(f.Use(), lbs[0]) || !f.Status()[0].Heard.Equal(heard) {
		t.Errorf("%v: %+v", f.Use(), f.Status()[0])
	}
	if want := uint64(2*Multiplier*3 + 2); f.Refused() != want {
		t.Errorf("%d are refused instead of %d", f.Refused(), want)
	}
}

// A reference that looks at all that was asked: a load balancer is dead if the last Multiplier questions have no answer.
func TestWhoIsUsedFollowsFromTheLastQuestions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		f := &fleet{now: time.Unix(1000, 0), random: rand.New(rand.NewPCG(seed, seed)), dead: map[netip.Addr]bool{}, last: map[netip.Addr]Packet{}}
		f.Follow(lbs)
		answered := map[netip.Addr][]bool{}
		var use []netip.Addr
		for i := range rapid.IntRange(1, 60).Draw(t, "rounds") {
			probes := f.Step(f.now, f.random.Uint32)
			var live []netip.Addr
			for _, lb := range lbs {
				if lives(answered[lb]) {
					live = append(live, lb)
				}
			}
			if len(live) > 0 {
				use = live
			}
			if !slices.Equal(f.Use(), use) {
				t.Fatalf("round %d: %v instead of %v: %v", i, f.Use(), use, answered)
			}
			for _, p := range probes {
				packet, ok := answer(p)
				ok = ok && rapid.IntRange(0, 3).Draw(t, fmt.Sprint("answers ", p.To)) > 0
				answered[p.To] = append(answered[p.To], ok)
				if ok && !f.Answer(p.To, packet) {
					t.Fatalf("round %d: the answer of %s is refused", i, p.To)
				}
			}
			f.now = f.now.Add(Interval)
		}
	})
}

// lives goes through what a load balancer has answered from the beginning: the first answer after a death is the handshake's.
func lives(answered []bool) bool {
	silent, up, known := 0, 0, false
	for _, ok := range answered {
		switch {
		case !ok:
			if silent++; silent >= Multiplier {
				up, known = 0, false
			}
		case known:
			silent = 0
			up++
		default:
			silent, known = 0, true
		}
	}
	return up >= rejoin
}

package netdev

import (
	"math/rand/v2"
	"testing"
)

// answer is what is known of a clock's offset when its answer, made `made` ms after the question, was looked at `seen` ms after it.
func answer(offset, asked, made, seen uint32) Offset {
	value := offset + asked + made
	return Offset{value - (asked + seen), value - asked}
}

// Promise: A busy load balancer that reads answers late does not take different clocks for one.
func TestALateLookAtAnswersDoesNotMakeTwoClocksOfOne(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 10000 {
		offset, asked := random.Uint32(), random.Uint32()
		all := answer(offset, asked, 0, 900)
		for range clockConnections {
			asked += 10 + random.Uint32N(1000)
			made := random.Uint32N(500)
			next, ok := all.meet(answer(offset, asked, made, made+random.Uint32N(900)))
			if !ok {
				t.Fatalf("seed %d: %v was taken for another clock", seed, all)
			}
			all = next
		}
		if late := int32(all.high - offset); late < 0 || late > 500 {
			t.Fatalf("seed %d: the offset is taken to be %d ms more than it is", seed, late)
		}
	}
}

func TestClocksOfSingleConnectionsAreToldApart(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	mistakes := 0
	for range 10000 {
		if _, ok := answer(random.Uint32(), 0, 1, 1000).meet(answer(random.Uint32(), 5, 1, 1000)); ok {
			mistakes++
		}
	}
	if mistakes > 2 { // 1 in two million each
		t.Errorf("seed %d: %d of 10000 were taken for one clock", seed, mistakes)
	}
}

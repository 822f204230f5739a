package replica

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// periods lets as many deletion intervals pass at all nodes.
func (f *fleet) periods(n int) {
	for range n {
		for _, id := range f.ids() {
			f.nodes[id].NextPeriod()
		}
	}
}

func TestAPacketInANewPeriodRenewsTheWholeChain(t *testing.T) {
	f := newFleet(t, DefaultConfig(3), 5)
	key := at(9, 10)
	for range 100 { // much longer than any timeout
		f.packet(1, key, 77)
		f.deliverAll()
		f.periods(1)
	}
	if tuple := f.tuple(key); !slices.Equal(tuple, []Owner{77, 77, 77}) || f.nodes[1].Cached(key) != 77 {
		t.Errorf("%v, cached %d", tuple, f.nodes[1].Cached(key))
	}
}

func TestARefreshCarriesTheOwnerThatIsKnown(t *testing.T) {
	f := newFleet(t, DefaultConfig(2), 5)
	f.packet(1, at(9, 10), 77)
	f.deliverAll()
	f.periods(1)
	f.packet(1, at(9, 10), 88)
	if m := f.messages[0]; m.Kind != WhoOwns || m.Owner != 77 {
		t.Errorf("%+v", m)
	}
}

func TestARefreshThatIsLostIsTriedAgainWithTheNextPacket(t *testing.T) {
	f := newFleet(t, DefaultConfig(2), 5)
	f.packet(1, at(9, 10), 77)
	f.deliverAll()
	f.periods(1)
	for range 3 {
		f.packet(1, at(9, 10), 88)
		if len(f.messages) != 1 {
			t.Fatalf("%v", f.messages)
		}
		f.messages = nil
	}
	f.packet(1, at(9, 10), 88)
	f.deliverAll()
	f.packet(1, at(9, 10), 88)
	if len(f.messages) != 0 {
		t.Errorf("%v", f.messages)
	}
}

func TestCachesExpireFirstThenTheTailTheHeadLast(t *testing.T) {
	f := newFleet(t, DefaultConfig(3), 5) // timeout 6, then 2 for each step
	key := at(9, 10)
	f.packet(1, key, 77)
	f.deliverAll()
	for period := 1; period <= 13; period++ {
		f.periods(1)
		var want []Owner
		for _, lasts := range []int{12, 10, 8} { // head, middle, tail
			if period < lasts {
				want = append(want, 77)
			} else {
				want = append(want, 0)
			}
		}
		if got := f.tuple(key); !slices.Equal(got, want) || (f.nodes[1].Cached(key) == 77) != (period < 6) {
			t.Errorf("after %d periods: %v, want %v, cached %d", period, got, want, f.nodes[1].Cached(key))
		}
	}
}

// Connections that fall silent for any time and come back, on nodes whose periods are not in step: no two answers differ while one may
// remember the first.
func TestASilentConnectionIsEitherRememberedByAllOrForgottenByAll(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	for range 200 {
		config := DefaultConfig(2 + random.IntN(2))
		f := newFleet(t, config, 5)
		key := ring.Key(random.Uint64())
		phases := random.Perm(5) // when in a period each node's begins
		for step := range 5 * 60 {
			f.nodes[uint16(1+slices.Index(phases, step%5))].NextPeriod()
			if random.IntN(30) != 0 && step%40 > 5 { // silences of 7 periods and more
				continue
			}
			if f.silent(key) {
				delete(f.answers, key)
			}
			f.packet(uint16(1+random.IntN(5)), key, Owner(1+random.IntN(1000)))
			f.deliverAll()
			if tuple := f.tuple(key); !isPrefix(tuple) {
				t.Fatalf("seed %d: %v", seed, tuple)
			}
		}
	}
}

// silent reports whether no node of the chain knows a connection.
func (f *fleet) silent(key ring.Key) bool {
	for _, owner := range f.tuple(key) {
		if owner != 0 {
			return false
		}
	}
	return true
}

func TestEntriesDoNotExpireBetweenANewViewAndItsSync(t *testing.T) {
	f := newFleet(t, DefaultConfig(2), 5)
	key := at(9, 10) // chain 4 5
	f.packet(1, key, 77)
	f.deliverAll()
	f.change(Change{Fail: []uint16{5}})
	f.give(f.messages[3]) // node 4 has the view; the others do not, so there is no sync
	f.periods(50)
	if owner, _ := f.nodes[4].Lookup(key); owner != 77 {
		t.Errorf("node 4 has %d", owner)
	}
	f.settle()
	f.periods(7)
	if owner, _ := f.nodes[4].Lookup(key); owner != 77 {
		t.Errorf("node 4 has %d: the wait for the sync counts", owner)
	}
	f.periods(20)
	if owner, _ := f.nodes[4].Lookup(key); owner != 0 {
		t.Errorf("node 4 has %d for ever", owner)
	}
}

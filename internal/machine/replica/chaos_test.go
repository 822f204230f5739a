package replica

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/ring"
)

// run plays a random schedule and returns the fleet, synced.
func run(t testing.TB, config Config, nodes int, seed uint64) *chaos {
	config.Timeout = 1 << 20 // connections are as long as the schedule; that they expire is tested apart
	c := &chaos{fleet: newFleet(t, config, nodes), random: rand.New(rand.NewPCG(seed, 7)), next: uint16(nodes)}
	for range 8 {
		c.keys = append(c.keys, ring.Key(c.random.Uint64()))
	}
	for range 1500 {
		c.step()
	}
	c.settle()
	return c
}

func TestEveryAnswerOfAConnectionIsTheSameWhateverHappens(t *testing.T) {
	seed := rand.Uint64()
	for length := 2; length <= 4; length++ {
		for i := range uint64(60) {
			t.Run(fmt.Sprintf("L=%d,seed=%d", length, seed+i), func(t *testing.T) {
				config := DefaultConfig(length)
				config.CopyEntries, config.CopyWindow = 2, 1
				config.DirectToHead = i%2 == 0
				c := run(t, config, length+2, seed+i)
				if c.controller.State.Lost > 0 {
					t.Fatalf("chains were left without a common node: %v", c)
				}
				for _, key := range c.keys {
					if tuple := c.tuple(key); !isPrefix(tuple) {
						t.Errorf("after the sync the chain of %#x has %v", key, tuple)
					}
				}
				for _, id := range c.ids() {
					if got := c.nodes[id].Counters.Conflicts; got != 0 {
						t.Errorf("node %d saw %d conflicts", id, got)
					}
				}
			})
		}
	}
}

func TestTheSameScheduleGivesTheSameStates(t *testing.T) {
	for seed := range uint64(5) {
		one, two := run(t, DefaultConfig(3), 5, seed), run(t, DefaultConfig(3), 5, seed)
		if got, want := string(two.text()), string(one.text()); got != want {
			t.Errorf("seed %d: two runs differ", seed)
		}
	}
}

func (f *fleet) text() (text []byte) {
	text = f.controller.Append(text)
	for _, id := range f.ids() {
		text = f.nodes[id].Append(text)
	}
	for i := range f.messages {
		text = f.messages[i].Append(text)
	}
	return text
}

func TestACloneOfANewNodeTakesEntries(t *testing.T) {
	config := DefaultConfig(2)
	clone := newFleet(t, config, 4).nodes[4].Clone()
	clone.Receive(Message{Kind: Owns, To: 4, Key: 7, Owner: 8})
	if clone.Cached(7) != 8 {
		t.Error("it does not")
	}
}

func TestAClonesFutureIsItsOwn(t *testing.T) {
	c := run(t, DefaultConfig(2), 4, 1)
	before := string(c.text())
	clone := *c.fleet
	clone.nodes, clone.messages = map[uint16]*Node{}, nil
	clone.controller = c.controller.Clone()
	for _, id := range c.ids() {
		clone.nodes[id] = c.nodes[id].Clone()
	}
	if string(clone.text()) != before {
		t.Fatal("a clone is not like the original")
	}
	other := chaos{&clone, rand.New(rand.NewPCG(1, 2)), c.keys, c.next}
	for range 500 {
		other.step()
	}
	if string(c.text()) != before {
		t.Error("what a clone does changes the original")
	}
}

// Found by random schedules. An entry that only the head has is copied; the copy for the second node is lost, then the head fails.
func TestNoNodeGetsACopyBeforeThoseBetweenItAndTheFirstCommonNode(t *testing.T) {
	for _, inOrder := range []bool{true, false} {
		config := DefaultConfig(3)
		config.EvenTo, config.Rules.SyncInOrder, config.Rules.ShareCopies = 0, inOrder, false
		f := newFleet(t, config, 6)
		key := at(11, 12) // chain 4 5 6
		f.packet(1, key, 77)
		f.deliver(0) // the question
		f.deliver(0) // the head writes
		f.messages = nil
		f.restart(6)
		for len(f.messages) > 0 {
			if m := f.messages[0]; m.Kind == Copy && m.To == 5 {
				f.messages = f.messages[1:]
				continue
			}
			f.deliver(0)
		}
		delete(f.nodes, 4)
		f.change(Change{Fail: []uint16{4}})
		f.settle()
		if tuple := f.tuple(key); isPrefix(tuple) != inOrder {
			t.Errorf("in order: %v; the chain has %v", inOrder, tuple)
		}
	}
}

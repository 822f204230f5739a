package anolis

import (
	"context"
	"math"
	"reflect"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// small is section 6.5 at a hundredth of the rate.
func small(chain int) parameters {
	p := section65(chain)
	p.rate, p.busy = 660, around
	return p
}

// play runs a world within an experiment of its own, with rules that a test may change.
func play(t *testing.T, seed uint64, p parameters, change func(*replica.Rules)) (world *world, outcome *sim.Outcome) {
	t.Helper()
	experiment := sim.Experiment{Claims: outcomes(), Run: func(run *sim.Run) {
		world = newWorld(run, p)
		change(&world.config.Rules)
		world.simulate()
		world.plot()
		world.tell()
	}}
	outcome, err := sim.Once(context.Background(), experiment, seed)
	if err != nil {
		t.Fatal(err)
	}
	return world, outcome
}

func unchanged(*replica.Rules) {}

func TestNoConnectionBreaksWithReplicasAndSomeDoWithout(t *testing.T) {
	for chain := 1; chain <= 3; chain++ {
		w, _ := play(t, 1, small(chain), unchanged)
		if got, want := int64(len(w.connections)), w.expected(); math.Abs(float64(got-want)) > 20 {
			t.Errorf("L = %d: %d connections, want %d", chain, got, want)
		}
		if (w.broken > 0) != (chain == 1) || chain > 1 && w.completed() != int64(len(w.connections)) {
			t.Errorf("L = %d: %d of %d broken, %d completed", chain, w.broken, len(w.connections), w.completed())
		}
		if w.synced[0] <= 0 || w.synced[1] <= 0 || w.open != 0 {
			t.Errorf("L = %d: synced after %v, %d connections open", chain, w.synced, w.open)
		}
	}
}

func TestConnectionsBreakWhenARuleIsSwitchedOff(t *testing.T) {
	p := small(3)
	p.loss = 0.2
	for name, change := range map[string]func(*replica.Rules){
		"first entries are kept":             func(r *replica.Rules) { r.KeepFirst = false },
		"only entries of tails are answered": func(r *replica.Rules) { r.CacheableAtTail = false },
	} {
		broken, whole := 0, 0
		for seed := range uint64(5) {
			with, _ := play(t, seed, p, unchanged)
			without, _ := play(t, seed, p, change)
			broken, whole = broken+without.broken, whole+with.broken
		}
		if broken == 0 || whole != 0 {
			t.Errorf("without the rule that %s: %d broken; with all rules: %d", name, broken, whole)
		}
	}
}

func TestALostMessageBreaksNothing(t *testing.T) {
	for seed := range uint64(5) {
		p := small(2)
		p.loss = 0.1
		if w, _ := play(t, seed, p, unchanged); w.broken != 0 || w.completed() != int64(len(w.connections)) {
			t.Errorf("seed %d: %d broken, %d of %d completed", seed, w.broken, w.completed(), len(w.connections))
		}
	}
}

func TestTheSameSeedTellsTheSame(t *testing.T) {
	_, one := play(t, 7, small(1), unchanged)
	_, two := play(t, 7, small(1), unchanged)
	if !reflect.DeepEqual(one, two) {
		t.Errorf("%v, then %v", one, two)
	}
}

// A key's chain and its forwarder say how many messages its first packet takes.
func TestMessagesOfAConnectionAreThoseThatCountingGives(t *testing.T) {
	for _, direct := range []bool{false, true} {
		config := replica.DefaultConfig(3)
		config.DirectToHead = direct
		c := newCluster(config, 5, nil)
		list := ring.Even([]uint16{1, 2, 3, 4, 5}, 1)
		for i := range uint64(200) {
			key, forwarder := ring.Key((i+1)*0x9e3779b97f4a7c15), int(1+i%5)
			chain := ring.Chains{Length: 3}.At(list, key.Position())
			hops := []uint16{uint16(forwarder)}
			if !direct {
				hops = append(hops, chain[2].Node)
			}
			hops = append(hops, chain[0].Node, chain[1].Node, chain[2].Node, uint16(forwarder))
			want := 0
			for i := range hops[1:] {
				if hops[i] != hops[i+1] {
					want++
				}
			}
			before := c.sent
			c.flow(forwarder, key, 1)
			if got := c.sent - before; got != want {
				t.Fatalf("direct %v, key %d at node %d: %d messages, want %d", direct, i, forwarder, got, want)
			}
		}
	}
}

func TestScalingIsWithinItsBands(t *testing.T) {
	experiment := scaling()
	outcome, err := sim.Once(context.Background(), experiment, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, claim := range experiment.Claims {
		got, reported := outcome.Values[claim.ID]
		margin := 0.05 * math.Abs(got) // one seed
		if !reported || got < claim.Low-margin || got > claim.High+margin {
			t.Errorf("%s: %v (%v), want %v..%v", claim.ID, got, reported, claim.Low, claim.High)
		}
	}
}

package check

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

// long reports whether there are minutes for a test.
func long() bool { return os.Getenv("BALLAST_LONG") != "" }

// found are seeds of schedules that broke a promise once.
var found = []uint64{
	3903631919265613588, // two nodes between two that shared the copying: the second alone had an entry
}

// Half of the schedules are the same every time, so that the test stands still; the other half are new. The million are played by
// ballast-lab sim run anolis-property. BALLAST_SEED=n plays one.
func TestNoScheduleBreaksAPromise(t *testing.T) {
	if seed, err := strconv.ParseUint(os.Getenv("BALLAST_SEED"), 10, 64); err == nil {
		if trace, broken := (Schedules{}).Replay(seed); broken {
			t.Errorf("seed %d:\n%v", seed, trace)
		}
		return
	}
	n := uint64(3000)
	if long() {
		n = 500_000
	}
	fresh := rand.Uint64()
	for i := range n {
		seed := i
		switch {
		case i < uint64(len(found)):
			seed = found[i]
		case i >= n/2:
			seed = fresh + i
		}
		if violation := (Schedules{}).Play(seed); violation != nil {
			trace, _ := Schedules{}.Replay(seed)
			t.Fatalf("seed %d:\n%v", seed, trace)
		}
	}
}

func TestNoStateOfSmallFleetsBreaksAPromise(t *testing.T) {
	proofs := Proofs()
	if !long() {
		proofs = slices.DeleteFunc(proofs, func(s Small) bool { return s.Slow })
	}
	for _, small := range proofs {
		visited := small.Search()
		if visited.Example != nil || !visited.Whole {
			t.Errorf("%s: %d states, all %v:\n%v", small.Name, visited.States, visited.Whole, visited.Example)
		}
	}
}

// The checker can fail: it does when the assumption of the proof does not hold, and without each rule that is not superfluous.
func TestEveryRuleIsMissedWhenItIsNotThere(t *testing.T) {
	for _, mutant := range Mutants() {
		if mutant.Safe != "" {
			continue
		}
		most := 600
		switch {
		case long():
			most = patience
		case mutant.Rare:
			continue
		}
		if _, found := mutant.Random(0, most); !found {
			t.Errorf("%d schedules without %s: nothing is broken", most, mutant.Name())
		}
	}
}

func TestEveryRuleIsAMutant(t *testing.T) {
	mutants := Mutants()
	for _, rule := range Rules() {
		if !slices.ContainsFunc(mutants, func(m Mutant) bool { return slices.Equal(m.Without, []string{rule}) }) {
			t.Errorf("no mutant is without %s", rule)
		}
	}
}

// A counterexample is as short as can be, and says what happens.
func TestACounterexampleIsPlayedAgain(t *testing.T) {
	schedules := Schedules{LoseCommon: true}
	for seed := uint64(0); ; seed++ {
		violation := schedules.Play(seed)
		if violation == nil || violation.Kind != Affinity {
			continue
		}
		one, ok := schedules.Replay(seed)
		two, _ := schedules.Replay(seed)
		if !ok || one.Violation.Kind != Affinity || one.String() != two.String() {
			t.Fatalf("seed %d: %v\n%v", seed, one, two)
		}
		for i := range one.Steps {
			less := slices.Delete(slices.Clone(one.Steps), i, i+1)
			if _, violation := run(one.setup, less); violation != nil && violation.Kind == Affinity {
				t.Errorf("step %d does not matter:\n%v", i+1, one)
			}
		}
		return
	}
}

func TestSearchFindsTheShortestCounterexample(t *testing.T) {
	mutant := Mutant{Without: []string{"KeepFirst"}}
	if trace := mutant.search(); trace == nil || len(trace.Steps) != 5 { // two packets, and three Writes between them
		t.Errorf("%v", trace)
	}
}

// search visits the states of the smallest fleets until one breaks what the mutant breaks, and returns the counterexample, or nil.
func (m Mutant) search() *Trace {
	for _, small := range Proofs() {
		if small.Slow {
			continue
		}
		small.Without = append(small.Without, m.Without...)
		small.LoseCommon = m.LoseCommon
		if example := small.Search().Example; example != nil && (m.Breaks == "" || example.Violation.Kind == m.Breaks) {
			return example
		}
	}
	return nil
}

package check

import (
	"fmt"
	"math"
	"strings"

	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/sim"
)

// Experiments returns the experiments of this package.
func Experiments() []sim.Experiment {
	return []sim.Experiment{property(), states(), rules()}
}

// schedules is how many one seed of anolis-property plays: ten seeds play a million.
const schedules = 100_000

func property() sim.Experiment {
	none := func(id, what string) sim.Claim {
		return sim.Claim{ID: id, What: what, Unit: "%", Paper: "0 (proof)", Low: 0, High: 0}
	}
	return sim.Experiment{
		Name:   "anolis-property",
		Title:  "Random schedules of lost, repeated and overtaken messages, crashes and changes of nodes",
		Source: "Anolis 4.4, property 1",
		Method: "Chains of 1 to 4, 2 to 9 nodes, 1 to 3 keys, 30 to 230 steps and a quiet end; half of the schedules with periods and expiry. Assumptions: " +
			"simulator.md, \"The replica protocol, checked\".",
		Claims: []sim.Claim{
			none("answers", "schedules in which an answer about a connection changes"),
			none("tuples", "schedules after which the nodes of a chain disagree"),
			none("ends", "schedules that never end, or never sync"),
			{ID: "lose-common", What: "the same when chains may lose all nodes that know them", Unit: "%", Low: 1, High: 100,
				Note: "the assumption of the proof: the checker must find this"},
		},
		Run: runProperty,
	}
}

// runProperty ends with the counterexample when there is one.
func runProperty(run *sim.Run) {
	first := run.Seed * schedules
	for i := range uint64(schedules) {
		if i%64 == 0 {
			run.Progress(int64(i), schedules)
		}
		if (Schedules{}).Play(first+i) != nil {
			trace, _ := Schedules{}.Replay(first + i)
			script.Check(fmt.Errorf("schedule %d:\n%v", first+i, trace))
		}
	}
	for _, id := range []string{"answers", "tuples", "ends"} {
		run.Share(id, 0, schedules)
	}
	broken := int64(0)
	const lost = schedules / 100
	for i := range uint64(lost) {
		if (Schedules{LoseCommon: true}).Play(first+i) != nil {
			broken++
		}
	}
	run.Share("lose-common", broken, lost)
}

func states() sim.Experiment {
	return sim.Experiment{
		Name:   "anolis-states",
		Title:  "All states of small fleets, whatever is lost, overtaken, late or crashes",
		Source: "Anolis 4.4, property 1",
		Method: "One key; two or three packets; a message may stay on its way for ever; time stands still.",
		Seeds:  1, // chance plays no part
		Claims: []sim.Claim{
			{ID: "states", What: "states visited", Low: 100_000, High: math.Inf(1)},
			{ID: "unfinished", What: "fleets not all of whose states were visited", Low: 0, High: 0},
			{ID: "broken", What: "fleets with a state that breaks a promise", Paper: "0 (proof)", Low: 0, High: 0},
		},
		Run: func(run *sim.Run) {
			visited, unfinished, broken := 0, 0, 0
			for i, small := range Proofs() {
				v := small.Search()
				visited += v.States
				if v.Example != nil {
					broken++
				} else if !v.Whole {
					unfinished++
				}
				run.Progress(int64(i+1), int64(len(Proofs())))
			}
			run.Value("states", float64(visited))
			run.Value("unfinished", float64(unfinished))
			run.Value("broken", float64(broken))
		},
	}
}

// patience is how many schedules anolis-rules plays without a rule until it gives up. trials are as many as it plays where nothing is
// to be found.
const (
	patience = 40_000
	trials   = 4_000
)

func rules() sim.Experiment {
	e := sim.Experiment{
		Name:   "anolis-rules",
		Title:  "What each rule of the protocol is for: random schedules without it",
		Source: "Anolis 4.3, and rules of our own",
		Method: fmt.Sprintf("Which of up to %d schedules is the first that breaks something without the rule; more: none was found. 0: where another rule makes it superfluous, none of %d does; "+
			"then both are switched off, and a schedule counts that does not break without the other rule alone.", patience, trials),
		Seeds: 1,
		Run:   runRules,
	}
	for _, mutant := range Mutants() {
		claim := sim.Claim{ID: mutant.id(), What: "without " + mutant.Name(), Unit: "schedules", Low: 1, High: patience}
		if mutant.Safe != "" {
			claim.Unit, claim.Low, claim.High, claim.Note = "", 0, 0, mutant.Safe
		}
		e.Claims = append(e.Claims, claim)
	}
	return e
}

func (m Mutant) id() string {
	return strings.NewReplacer(" and ", "-", " ", "-").Replace(strings.ToLower(m.Name()))
}

func runRules(run *sim.Run) {
	mutants := Mutants()
	for i, mutant := range mutants {
		played, found := mutant.until(run)
		value := float64(played)
		switch {
		case mutant.Safe == "" && !found:
			value = patience + 1
		case mutant.Safe != "" && found:
			value = 1
		case mutant.Safe != "":
			value = 0
		}
		run.Value(mutant.id(), value)
		run.Progress(int64(i+1), int64(len(mutants)))
	}
}

// until plays schedules until one breaks something, or for as long as it may take.
func (m Mutant) until(run *sim.Run) (played int, found bool) {
	const some = 500
	most := patience
	if m.Safe != "" {
		most = trials
	}
	for played < most && !found {
		run.StopIfUnwanted()
		more, hit := m.Random(run.Seed*patience+uint64(played), some)
		played, found = played+more, hit
	}
	return played, found
}

package check

import (
	"reflect"
	"strings"

	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// Rules returns the names of all rules of the protocol.
func Rules() (names []string) {
	rules := reflect.TypeFor[replica.Rules]()
	for i := range rules.NumField() {
		names = append(names, rules.Field(i).Name)
	}
	return names
}

// switchOff switches rules off by name. It panics when there is no such rule.
func switchOff(rules *replica.Rules, names []string) {
	for _, name := range names {
		reflect.ValueOf(rules).Elem().FieldByName(name).SetBool(false)
	}
}

// Mutant is the protocol without some of its rules, or used against its assumption.
type Mutant struct {
	Without    []string // the first makes the second superfluous, if there are two
	LoseCommon bool

	Breaks Kind   // what its counterexamples break; empty: anything
	Rare   bool   // thousands of schedules are played before one breaks something
	Safe   string // why there is no counterexample; empty: there is one
}

// Mutants returns the protocol without each of its rules, and without two where one hides what the other is for.
func Mutants() []Mutant {
	mutants := []Mutant{{LoseCommon: true}}
	for _, rule := range Rules() {
		mutants = append(mutants, Mutant{Without: []string{rule}, Safe: superfluous[rule], Rare: rare[rule]})
	}
	return append(mutants,
		Mutant{Without: []string{"CheckView", "LimitHops"}, Breaks: Endless},
		Mutant{Without: []string{"CheckView", "CheckHead"}, Breaks: Affinity},
		Mutant{Without: []string{"CheckView", "CheckMembers"}, Breaks: Affinity},
		Mutant{Without: []string{"CheckView", "WaitForViews"}, Breaks: Tuple, Rare: true},
	)
}

// rare are the rules that need a particular order of many steps to be missed.
var rare = map[string]bool{"CountAcks": true, "StopCancelled": true, "SyncInOrder": true, "SyncCacheableAtTail": true, "CheckView": true, "RenewByOwns": true}

// superfluous is why rules can be switched off alone.
var superfluous = map[string]string{
	"SendBack":        "it saves packets while views differ",
	"LimitHops":       "CheckView keeps messages from going in circles: nodes with the same view agree where a message goes next",
	"CheckHead":       "with CheckView, only a tail of the same view begins a Write, and it sends it to the head",
	"CheckMembers":    "with CheckView, a Write never leaves the chain",
	"AnswerCacheable": "with CheckView, WhoOwns reaches nobody but the tail",
	"ShareCopies":     "one node then sends what several could: nodes of an earlier version can do nothing else",
	"TailAnswersCacheable": "what a node behind the first common node has, that one has, too; and when the tail is the first common node, what it has is what counts: " +
		"its entries are as good when they are not cacheable",
	"RefreshKeepsOwner":  "while ExpireInOrder makes chains remember what caches know, a refresh meets the owner there",
	"WaitForViews":       "with CheckView, nobody takes a Copy before it has the view",
	"MoreNodesThanChain": "with CutAtKey, the nodes of a chain keep their order even when all are in it; the rule is left for the next failure",
}

// Name returns what is missing.
func (m Mutant) Name() string {
	if m.LoseCommon {
		return "a common node"
	}
	return strings.Join(m.Without, " and ")
}

// Random plays schedules from a seed on until one breaks something, at most most, and returns how many it played. Of two rules, the
// first alone must not break it.
func (m Mutant) Random(seed uint64, most int) (played int, found bool) {
	for played < most && !found {
		found = m.broken(m.Without, seed) && (len(m.Without) < 2 || !m.broken(m.Without[:1], seed))
		played++
		seed++
	}
	return played, found
}

func (m Mutant) broken(without []string, seed uint64) bool {
	violation := Schedules{Without: without, LoseCommon: m.LoseCommon}.Play(seed)
	return violation != nil && (m.Breaks == "" || violation.Kind == m.Breaks)
}

package check

import (
	"fmt"
	"slices"
	"strings"
)

// Trace is a counterexample: steps that break a promise.
type Trace struct {
	Steps     []Step
	Violation Violation

	setup *Setup
}

// String returns one line for each step: what happens, and what the nodes of each key's chain have then, head first.
func (t *Trace) String() string {
	var text strings.Builder
	c := &t.setup.Config
	fmt.Fprintf(&text, "%d nodes, chains of %d, timeout %d, table for %d", t.setup.Nodes, c.Chain, c.Timeout, c.Entries)
	w := newWorld(t.setup)
	fmt.Fprintf(&text, ";%s\n", describeList(w.controller.List()))
	for i := range w.keys {
		fmt.Fprintf(&text, "key %d: %016x, chain", i, uint64(w.keys[i].key))
		for _, member := range w.chains(w.keys[i].key)[0] {
			fmt.Fprintf(&text, " %d", member.Node)
		}
		text.WriteByte('\n')
	}
	ticks := 0
	for i := range t.Steps {
		if at := w.find(&t.Steps[i]); at >= 0 {
			w.do(&t.Steps[i], at)
		}
		line := t.Steps[i].String()
		if t.Steps[i].Action == Tick {
			if ticks++; i+1 < len(t.Steps) && t.Steps[i+1].Action == Tick {
				continue // as one line with the next
			}
			line, ticks = fmt.Sprintf("%.2f periods pass", float64(ticks)/phases), 0
		}
		fmt.Fprintf(&text, "%3d. %s", i+1, line)
		for key := range w.keys {
			fmt.Fprintf(&text, " %v", w.tuple(w.keys[key].key))
		}
		text.WriteByte('\n')
	}
	fmt.Fprintf(&text, "%s: %s\n", t.Violation.Kind, t.Violation.Text)
	return text.String()
}

// run plays steps on a new fleet. Those that cannot be done are left out of what it returns, and so are those after a violation.
func run(setup *Setup, steps []Step) (done []Step, violation *Violation) {
	w := newWorld(setup)
	for i := range steps {
		at := w.find(&steps[i])
		if at < 0 || !w.do(&steps[i], at) {
			continue
		}
		done = append(done, steps[i])
		if w.violation != nil {
			break
		}
	}
	return done, w.violation
}

// shrink leaves out steps as long as the same promise is still broken: large parts first, then smaller ones (Zeller and Hildebrandt,
// "Simplifying and Isolating Failure-Inducing Input", 2002).
func shrink(t *Trace) *Trace {
	best := *t
	for size := len(best.Steps) / 2; size >= 1; {
		smaller := false
		for from := len(best.Steps) - size; from >= 0 && from+size <= len(best.Steps); from -= size {
			less := slices.Concat(best.Steps[:from], best.Steps[from+size:])
			if done, violation := run(t.setup, less); violation != nil && violation.Kind == t.Violation.Kind {
				best.Steps, best.Violation, smaller = done, *violation, true
				from = min(from, len(best.Steps))
			}
		}
		if !smaller || size > 1 {
			size /= 2
		}
	}
	return &best
}

// The list of scenarios and running one of them.
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/process"
)

// A Scenario puts one promise of Ballast to the test in a real network.
type Scenario struct {
	Name     string
	Promise  string
	Deadline time.Duration
	lengths  int // how often a --duration fits into a run; 0: once
	run      func(*stage) error
}

// stage is where a scenario plays: it opens trials and fills in the result.
type stage struct {
	Options
	ctx    context.Context
	result *Result
}

// Scenarios lists all scenarios by name.
func Scenarios() []Scenario { return slices.Clone(scenarios) }

// ErrUsage is what is asked for that does not exist.
var ErrUsage = errors.New("not possible")

// Run runs a scenario to its end or its deadline, which is of machine time. The result is valid also with an error, as far as it
// got; an error says why the promise was not tested to the end. A broken promise is no error but an outcome.
func Run(ctx context.Context, name string, options Options) (Result, error) {
	at := slices.IndexFunc(scenarios, func(s Scenario) bool { return s.Name == name })
	if at < 0 {
		var names []string
		for _, known := range scenarios {
			names = append(names, known.Name)
		}
		return Result{}, fmt.Errorf("run scenario %q: %w: there is none of that name: use one of %s", name, ErrUsage, strings.Join(names, " "))
	}
	scenario := scenarios[at]
	if err := options.complete(); err != nil {
		return Result{}, err
	}
	ctx, cancel := withMachineTime(ctx, options.stretched(scenario.Deadline)+2*time.Duration(max(scenario.lengths, 1))*options.Duration)
	defer cancel()
	result := Result{Scenario: name, Promise: scenario.Promise, Seed: options.Seed}
	options.Progress("scenario %s, seed %d: %s", name, options.Seed, scenario.Promise)
	machine() // is measured from now on
	begin := time.Now()
	err := scenario.run(&stage{Options: options, ctx: ctx, result: &result})
	result.Seconds = round(time.Since(begin))
	return result, result.conclude(err)
}

// complete fills in what the caller left open.
func (o *Options) complete() error {
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()>>1 | 1
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	o.Binary = cmp.Or(o.Binary, self)
	o.Processes = cmp.Or(o.Processes, filepath.Join(filepath.Dir(self), process.Program))
	return nil
}

// trial plays and adds the outcome to the result.
func (s *stage) trial(what setup, act func(*trial) error) (Trial, error) {
	outcome, err := s.play(what, act)
	if err != nil {
		// What clients have seen until then counts.
		if outcome.Broken > 0 && !what.baseline && !what.cuts {
			s.result.addTrial(outcome, false)
			s.unbroken(outcome)
		}
		return outcome, err
	}
	s.result.addTrial(outcome, what.baseline)
	if what.baseline {
		s.result.Baseline.Affinity = what.services[0].Affinity
	}
	return outcome, nil
}

// play opens a network, lets act do its events, ends the traffic, collects the outcome and removes the network.
func (s *stage) play(what setup, act func(*trial) error) (outcome Trial, err error) {
	before := overflowed()
	t, err := newTrial(s.ctx, s.Options, what)
	if err != nil {
		return Trial{}, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	stopWatching := s.watch(t)
	defer stopWatching()
	if err = act(t); err == nil {
		err = t.finish()
	}
	t.outcome.Overflowed = overflowed() - before
	if err != nil {
		if t.ctx.Err() == nil || errors.Is(context.Cause(t.ctx), errOutOfTime) {
			err = errors.Join(err, t.deaths())
		}
		t.addEnded()
		return t.outcome, fmt.Errorf("%s: %w", what.name, err)
	}
	return t.outcome, nil
}

// unbroken is the promise of most trials: every connection completed.
func (s *stage) unbroken(outcome Trial) {
	s.result.expect(outcome.Attempted > 0, "%s: no connection was attempted", outcome.Name)
	s.result.expect(outcome.Broken == 0, "%s: %d of %d connections broken: %v",
		outcome.Name, outcome.Broken, outcome.Attempted, outcome.BrokenBy)
	s.result.expect(outcome.Broken == 0 || outcome.Overflowed == 0,
		"%s: this machine lost %d packets, for which its CPUs had no time (softnet_stat): it cannot carry this traffic, and that alone breaks connections",
		outcome.Name, outcome.Overflowed)
}

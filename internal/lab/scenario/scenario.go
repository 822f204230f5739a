// Package scenario is what the scenarios of a lab have in common: a promise, a run, a result, services and traffic.
package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ballast-lb/ballast/internal/lab/fleet"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/lab/world"
	"github.com/ballast-lb/ballast/internal/model"
)

// A Scenario puts one promise of Ballast to the test in a real network.
type Scenario struct {
	Name     string
	Promise  string
	Deadline time.Duration
	Lengths  int // how often a --duration fits into a run; 0: once
	Do       func(*Run)
}

// Options are what the caller of a scenario may choose.
type Options struct {
	host.Options
	Duration time.Duration        // scenario-specific length; 0 = the scenario's own
	Dispatch string               // churn: the policy of the service, or AllPolicies; empty = Ballast's default
	Affinity string               // churn, ipv6: of the service, cookie or table; empty = cookie
	Beside   string               // pair: haproxy; what else is put through the same events; empty = nothing
	Rate     float64              // churn, ipv6: share of the usual traffic, over 0, at most 1; 0 = 1
	Live     func(world.Snapshot) // called several times a second with the state of the traffic
}

// TrafficShare is the share of the usual traffic that clients offer.
func (o *Options) TrafficShare() float64 { return cmp.Or(o.Rate, 1) }

// Stretched is how long what takes a time at the usual rate may take.
func (o *Options) Stretched(usual time.Duration) time.Duration {
	return time.Duration(float64(usual) / o.TrafficShare())
}

// Run is one run of a scenario: it has trials and fills in the result.
type Run struct {
	Options
	Context context.Context
	Result  *Result
}

// ErrUsage is what is asked for that does not exist.
var ErrUsage = errors.New("not possible")

// Run carries the scenario out to its end or its deadline, which is of machine time. The result is valid also with an error, as far as
// it got; an error says why the promise was not tested to the end. A broken promise is no error but an outcome.
func (s *Scenario) Run(ctx context.Context, options Options) (Result, error) {
	if err := options.Complete(); err != nil {
		return Result{}, err
	}
	ctx, cancel := loadmeter.WithTimeout(ctx, options.Stretched(s.Deadline)+2*time.Duration(max(s.Lengths, 1))*options.Duration)
	defer cancel()
	result := Result{Scenario: s.Name, Promise: s.Promise, Seed: options.Seed}
	options.Progress("scenario %s, seed %d: %s", s.Name, options.Seed, s.Promise)
	loadmeter.Begin()
	begin := time.Now()
	err := script.Try(func() { s.Do(&Run{Options: options, Context: ctx, Result: &result}) })
	result.Seconds = world.Round(time.Since(begin))
	return result, result.conclude(err)
}

// Trial runs a trial and adds its outcome to the result. A baseline must break connections, any other trial none unless it cuts some.
func (run *Run) Trial(what world.Setup, act func(*world.Trial)) world.Result {
	outcome, err := run.try(what, act)
	if what.Baseline || what.Cuts || outcome.Broken == 0 { // else what clients have seen until then counts
		script.Check(err)
	}
	run.Result.AddTrial(outcome, what.Baseline)
	switch {
	case what.Baseline:
		run.Result.Baseline.Affinity = what.Services[0].Affinity.String()
		run.Result.Expect(outcome.Broken > 0, "the baseline broke nothing: the events prove nothing")
	case !what.Cuts:
		run.Unbroken(outcome)
	}
	script.Check(err)
	return outcome
}

// Uncounted runs a trial and leaves it to the caller what that says about the promise.
func (run *Run) Uncounted(what world.Setup, act func(*world.Trial)) world.Result {
	return script.Must(run.try(what, act))
}

func (run *Run) try(what world.Setup, act func(*world.Trial)) (world.Result, error) {
	return world.RunTrial(run.Context, run.Options.Options, what, run.watch, act)
}

// Unbroken is the promise of most trials: every connection completed.
func (run *Run) Unbroken(outcome world.Result) {
	run.Result.Expect(outcome.Attempted > 0, "%s: no connection was attempted", outcome.Name)
	run.Result.Expect(outcome.Broken == 0, "%s: %d of %d connections broken: %v",
		outcome.Name, outcome.Broken, outcome.Attempted, outcome.BrokenBy)
	run.Result.Expect(outcome.Broken == 0 || outcome.Overflowed == 0,
		"%s: this machine lost %d packets, for which its CPUs had no time (softnet_stat): it cannot carry this traffic, and that alone breaks connections",
		outcome.Name, outcome.Overflowed)
}

// WithAffinity gives a service with cookies the affinity that was asked for.
func (run *Run) WithAffinity(one *fleet.Service) *fleet.Service {
	switch run.Affinity {
	case "", "cookie":
	case "table":
		one.Affinity = model.AffinityTable
	default:
		script.Check(fmt.Errorf("%s with affinity %s: %w: it promises nothing there: use cookie or table", run.Result.Scenario, run.Affinity, ErrUsage))
	}
	return one
}

// Length is the caller's duration, or the scenario's own.
func (o *Options) Length(own time.Duration) time.Duration {
	if o.Duration != 0 {
		return o.Duration
	}
	return own
}

// Package sim runs experiments of the papers, and ours, many times with different seeds, and judges what they claim.
//
// An experiment is deterministic in its seed: the same seed gives the same bytes on any machine and any number of cores. Nothing here
// knows the time or does input or output; `ballast-lab sim` does.
package sim

import (
	"context"
	"sync/atomic"

	"github.com/ballast-lb/ballast/internal/lab/script"
)

// DefaultSeeds is how often an experiment is run when neither it nor the user says.
const DefaultSeeds = 10

// Experiment is a question with a published answer, or one that no test bed can be asked.
type Experiment struct {
	Name   string // as in `ballast-lab sim run NAME`: "cheetah-2a"
	Title  string // one line: what is varied, what is measured
	Source string // paper with section or figure, or "beyond the papers"
	Method string // a few sentences: parameters, what is assumed where the paper is silent; may be empty

	Claims  []Claim  // in the order of the table
	Figures []Figure // for the points of Run.Point; may be empty, when there are none
	Seeds   int      // how many are run unless the user says; 0: DefaultSeeds
	Extra   bool     // not among "all", which are the papers': it is ours, or takes long

	// Run does one run; package script may end it. It calls Run.Progress every now and then. Every claim must be given its value with
	// Run.Value or Run.Share.
	Run func(run *Run)
}

// Claim is one number that an experiment measures, what the paper says of it, and what an honest run gives.
type Claim struct {
	ID    string // unique in its experiment, lower case: "beamer-80"
	What  string // for people: "broken by Beamer at 80 updates/min"
	Unit  string // "%", "x", "s", "" ...
	Paper string // the paper's value as it is printed there: "almost 1 %"; empty: the paper has none

	// The mean over all seeds must lie in [Low, High], in Unit. One may be infinite. A claim with neither is shown but not judged.
	Low, High float64

	// Known says that the paper's value is known not to reproduce. Low and High then are what an honest run gives.
	Known bool

	// Fitted says that constants were chosen, or assumed, so that the value comes out: it shows that the model can have it, and nothing else.
	Fitted bool

	// Note says why a value does not reproduce, and by what that was tested, or "not known"; or what else is to be said.
	Note string
}

// Figure is a diagram of an experiment. The points of series "NAME/rest" belong to the figure NAME; those of series without a slash to
// the first figure.
type Figure struct {
	Name       string // "" will do for the only one
	Title      string
	X, Y       string // axes, with units
	LogX, LogY bool   // points that are not positive are left out on such an axis
}

// Run is one run of an experiment. Use it on one goroutine.
type Run struct {
	Seed uint64

	ctx     context.Context
	outcome *Outcome

	// Read by who shows progress, on another goroutine.
	done, total atomic.Int64
}

// Outcome is what one run told.
type Outcome struct {
	Values map[string]float64 // by claim
	Shares map[string]Share   // by claim, of those that Run.Share told
	Points []Point            // in the order in which they were told
}

// Share is a number of hits in a number of trials.
type Share struct {
	Hits, Of int64
}

// Point is a point of a series of a figure.
type Point struct {
	Series string
	X, Y   float64
}

// Value tells the value of a claim in this run, in the claim's unit. The last one counts.
func (r *Run) Value(id string, v float64) { r.outcome.Values[id] = v }

// Share tells the value of a claim that is counted: hits in a number of trials, told as a share of 1, or in percent when the claim's unit is
// "%". When no run has a hit, the table says "<= 3/n" instead of 0: that many could be missed by chance (95 %).
func (r *Run) Share(id string, hits, of int64) { r.outcome.Shares[id] = Share{Hits: hits, Of: of} }

// Point adds a point to a series. Points of the same series and x in different runs become one: their mean, with its interval. So give x from
// a grid that is the same for all seeds.
func (r *Run) Point(series string, x, y float64) {
	r.outcome.Points = append(r.outcome.Points, Point{Series: series, X: x, Y: y})
}

// Progress tells how much of the run is done: events, connections, or whatever the rate should count. It is cheap, but not to be called for each
// event.
func (r *Run) Progress(done, total int64) {
	r.done.Store(done)
	r.total.Store(total)
	r.StopIfUnwanted()
}

// StopIfUnwanted ends the run, deferred calls included, when nobody waits for it any more. Progress does so too.
func (r *Run) StopIfUnwanted() { script.Check(r.ctx.Err()) }

// Once does one run of an experiment, for tests.
func Once(ctx context.Context, experiment Experiment, seed uint64) (*Outcome, error) {
	return newRun(ctx, seed).do(experiment)
}

func newRun(ctx context.Context, seed uint64) *Run {
	return &Run{Seed: seed, ctx: ctx, outcome: &Outcome{Values: map[string]float64{}, Shares: map[string]Share{}}}
}

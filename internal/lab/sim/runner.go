package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Plan is what is to be run.
type Plan struct {
	Experiments []Experiment
	Seeds       int    // of each experiment; 0: as many as each wants
	Base        uint64 // the first seed; the next ones follow
	Workers     int    // runs at the same time, at least 1; the results do not depend on it
}

// job is one run of a plan.
type job struct {
	experiment, seed int
	run              *Run
}

// Runner runs a plan. Make it with NewRunner.
type Runner struct {
	plan     Plan
	jobs     []job
	outcomes [][]*Outcome // by experiment and seed

	mutex    sync.Mutex
	next     int          // job
	running  map[int]bool // jobs
	finished int          // jobs
	events   int64        // of finished jobs
	problems []error      // by job
}

// Status is how far a runner is.
type Status struct {
	Runs, Of int      // finished, and all
	Part     float64  // 0 to 1: of all runs, those under way included by their own account
	Events   int64    // that runs told as their progress, since the beginning
	Running  []string // names of experiments, each once
}

// NewRunner lays out a plan: the first seed of all experiments, then the second of all. So the part that is done soon tells
// how long the rest takes, although experiments differ in length.
func NewRunner(plan Plan) *Runner {
	r := &Runner{plan: plan, running: map[int]bool{}, outcomes: make([][]*Outcome, len(plan.Experiments))}
	most := 0
	for i, experiment := range plan.Experiments {
		r.outcomes[i] = make([]*Outcome, plan.seeds(experiment))
		most = max(most, len(r.outcomes[i]))
	}
	for seed := range most {
		for i := range plan.Experiments {
			if seed < len(r.outcomes[i]) {
				r.jobs = append(r.jobs, job{experiment: i, seed: seed})
			}
		}
	}
	r.problems = make([]error, len(r.jobs))
	return r
}

func (p Plan) seeds(experiment Experiment) int {
	switch {
	case p.Seeds > 0:
		return p.Seeds
	case experiment.Seeds > 0:
		return experiment.Seeds
	}
	return DefaultSeeds
}

// Run runs the plan and returns a result for each experiment all of whose runs succeeded, in the order of the plan, and the
// errors of the others, joined. When the context ends it returns no results and the context's error.
func (r *Runner) Run(ctx context.Context) ([]Result, error) {
	var workers sync.WaitGroup
	for range max(r.plan.Workers, 1) {
		workers.Go(func() {
			for ctx.Err() == nil && r.step(ctx) {
			}
		})
	}
	workers.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var results []Result
	for i, experiment := range r.plan.Experiments {
		var seeds []uint64
		whole := true
		for seed, outcome := range r.outcomes[i] {
			seeds = append(seeds, r.plan.Base+uint64(seed))
			whole = whole && outcome != nil
		}
		if whole {
			results = append(results, summarize(experiment, seeds, r.outcomes[i]))
		}
	}
	return results, errors.Join(r.problems...)
}

// step does the next run, if there is one.
func (r *Runner) step(ctx context.Context) bool {
	r.mutex.Lock()
	number := r.next
	if number == len(r.jobs) {
		r.mutex.Unlock()
		return false
	}
	r.next++
	one := &r.jobs[number]
	one.run = newRun(ctx, r.plan.Base+uint64(one.seed))
	r.running[number] = true
	r.mutex.Unlock()

	experiment := r.plan.Experiments[one.experiment]
	outcome, err := one.run.do(experiment)

	r.mutex.Lock()
	defer r.mutex.Unlock()
	delete(r.running, number)
	r.outcomes[one.experiment][one.seed] = outcome
	r.finished++
	r.events += one.run.done.Load()
	if err != nil {
		r.problems[number] = fmt.Errorf("run %s with seed %d: %w", experiment.Name, one.run.Seed, err)
	}
	one.run = nil // its memory is needed by the next
	return true
}

// Status may be called while Run runs.
func (r *Runner) Status() Status {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	status := Status{Runs: r.finished, Of: len(r.jobs), Events: r.events}
	parts := float64(r.finished)
	for number := range r.jobs[:r.next] { // in their order: maps have none
		if !r.running[number] {
			continue
		}
		run := r.jobs[number].run
		done, total := run.done.Load(), run.total.Load()
		status.Events += done
		if total > 0 {
			parts += min(float64(done)/float64(total), 1)
		}
		if name := r.plan.Experiments[r.jobs[number].experiment].Name; !slices.Contains(status.Running, name) {
			status.Running = append(status.Running, name)
		}
	}
	if len(r.jobs) > 0 {
		status.Part = parts / float64(len(r.jobs))
	}
	return status
}

// ballast-lab sim run, and what all commands share that run experiments.
package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ballast-lb/ballast/internal/cli/command"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/all"
	"github.com/ballast-lb/ballast/internal/lab/sim/plot"
	"github.com/ballast-lb/ballast/internal/lab/sim/report"
)

var errClaimsFail = errors.New("claims fail")

// simFlags are those of all commands that run experiments.
type simFlags struct {
	seeds, workers int
	base           uint64
}

func (f *simFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&f.seeds, "seeds", 0, "how often each experiment is run (default: as often as it wants, mostly 10)")
	flags.Uint64Var(&f.base, "seed", 1, "the first seed; the next ones follow")
	flags.IntVar(&f.workers, "workers", runtime.GOMAXPROCS(0), "runs at the same time; the results do not depend on it")
}

// maxSeeds bounds the memory of results.
const maxSeeds = 10_000

func (f *simFlags) check() error {
	if f.seeds < 0 || f.seeds > maxSeeds || f.workers < 1 || f.workers > 1024 {
		return command.Usage("run with %d seeds and %d workers: not possible: give up to %d seeds and 1 to 1024 workers", f.seeds, f.workers, maxSeeds)
	}
	return nil
}

// plan is what is to be run for these names.
func (f *simFlags) plan(names []string) (sim.Plan, error) {
	selected, unknown := sim.Select(all.Experiments(), names)
	if len(unknown) > 0 {
		return sim.Plan{}, command.Usage("find experiments %s: there are none of these names: `ballast-lab sim list` shows all", strings.Join(unknown, ", "))
	}
	return sim.Plan{Experiments: selected, Seeds: f.seeds, Base: f.base, Workers: f.workers}, f.check()
}

func run() *cobra.Command {
	var flags simFlags
	var o output
	cmd := &cobra.Command{
		Use:   "run EXPERIMENT...",
		Short: "Run experiments and judge their claims; the exit status is 1 when one fails, 2 when one is inconclusive",
		RunE: func(cmd *cobra.Command, names []string) error {
			plan, err := flags.plan(names)
			if err != nil {
				return err
			}
			if err := checkPicture(o.picture, len(plan.Experiments)); err != nil {
				return err
			}
			results, err := simulate(cmd.Context(), plan)
			return errors.Join(err, o.show(cmd, results))
		},
	}
	flags.add(cmd)
	command.Complete(cmd, func() (names []string) {
		for _, one := range all.Experiments() {
			names = append(names, one.Name)
		}
		return append(names, "all")
	})
	o.add(cmd, "draw the figures of the experiment into this `FILE`.svg or .png")
	return cmd
}

// output is where results go.
type output struct {
	output  *command.Output
	picture string
}

func (o *output) add(cmd *cobra.Command, plotHelp string) {
	o.output = command.NewOutput(cmd.Flags())
	cmd.Flags().StringVar(&o.picture, "plot", "", plotHelp)
}

// show prints, draws and judges results.
func (o *output) show(cmd *cobra.Command, results []sim.Result) (err error) {
	if len(results) > 0 && o.output.Structured() {
		err = o.output.Write(cmd.OutOrStdout(), results)
	} else if len(results) > 0 {
		err = report.Text(cmd.OutOrStdout(), results)
	}
	if o.picture != "" && len(results) == 1 {
		err = errors.Join(err, savePicture(o.picture, results[0]))
	}
	return errors.Join(err, failures(results))
}

// statusInconclusive is that of runs which cannot tell whether all claims hold.
const statusInconclusive = 2

// failures is an error that names the claims that fail, or else those that too few seeds were run for.
func failures(results []sim.Result) error {
	named := func(verdict sim.Verdict) string {
		var names []string
		for _, r := range results {
			for _, f := range r.With(verdict) {
				names = append(names, r.Experiment+" "+f.ID)
			}
		}
		return strings.Join(names, ", ")
	}
	if failed := named(sim.Fail); failed != "" {
		return fmt.Errorf("judge results: %w: %s", errClaimsFail, failed)
	}
	if unclear := named(sim.Inconclusive); unclear != "" {
		return command.WithStatus(fmt.Errorf("judge results: claims are inconclusive: %s: run more seeds", unclear), statusInconclusive)
	}
	return nil
}

// checkPicture refuses, before a long run, what savePicture could not do.
func checkPicture(name string, experiments int) error {
	if name == "" {
		return nil
	}
	if extension := filepath.Ext(name); extension != ".svg" && extension != ".png" {
		return command.Usage("draw %s: not the name of a picture: end it with .svg or .png", name)
	}
	if experiments != 1 {
		return command.Usage("draw %s: %d experiments do not fit in one picture: run one, or use `ballast-lab sim report`", name, experiments)
	}
	return nil
}

func savePicture(name string, result sim.Result) (err error) {
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("save picture: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if filepath.Ext(name) == ".png" {
		err = plot.PNG(file, result.Diagrams)
	} else {
		err = plot.SVG(file, result.Diagrams)
	}
	if err != nil {
		return fmt.Errorf("draw %s: %w", name, err)
	}
	return nil
}

const (
	simRedraw = 250 * time.Millisecond // of the line on a terminal
	simLine   = 15 * time.Second       // between lines in a file
	simQuiet  = 3 * time.Second        // before the first estimate of the time that is left: earlier ones mislead
)

// simulate runs a plan and shows on standard error how far it is.
func simulate(ctx context.Context, plan sim.Plan) ([]sim.Result, error) {
	runner := sim.NewRunner(plan)
	stopped, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		watch(runner, stopped)
	}()
	results, err := runner.Run(ctx)
	close(stopped)
	<-finished
	return results, err
}

// watch shows the status of a runner until it is stopped.
func watch(runner *sim.Runner, stopped <-chan struct{}) {
	line, interval := command.NewLine(os.Stderr, 0), simLine
	if line.Live {
		interval = simRedraw
	}
	begin := time.Now()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-stopped:
			line.Say("")
			return
		case now := <-ticker.C:
			line.Renew(progressLine(runner.Status(), now.Sub(begin)))
		}
	}
}

// progressLine tells how far a runner is, how fast, and how long it will take.
func progressLine(status sim.Status, elapsed time.Duration) string {
	line := fmt.Sprintf("%3.0f %%  %d of %d runs", 100*status.Part, status.Runs, status.Of)
	if rate := float64(status.Events) / elapsed.Seconds(); rate > 0 {
		line += "  " + command.Short(uint64(rate)) + " events/s"
	}
	if elapsed > simQuiet && status.Part > 0 {
		left := time.Duration(float64(elapsed) * (1/status.Part - 1))
		line += fmt.Sprintf("  %v left", left.Round(time.Second))
	}
	return line + "  " + strings.Join(status.Running, " ")
}
